/* Small memory for a C++ library that allocates in each call: see cells.c. */
#ifndef DPT_KERNELS_CPU_CELLS_H
#define DPT_KERNELS_CPU_CELLS_H

/* Between enter and leave, C++'s operator new takes this thread's small requests from a fixed store
 * of cells. Calls nest; memory may be deleted at any time, by any thread. */
void dpt_cells_enter(void);
void dpt_cells_leave(void);

/* Gives this thread's free cells back; called by a thread that ends. */
void dpt_cells_thread_end(void);

#endif
