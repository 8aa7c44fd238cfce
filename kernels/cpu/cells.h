/* Small blocks of memory for a C++ library that allocates in each call (cells.c). */
#ifndef DPT_KERNELS_CPU_CELLS_H
#define DPT_KERNELS_CPU_CELLS_H

/* Between enter and leave, C++'s operator new gives this thread's small requests cells of a fixed
 * store. Calls nest. Any thread may delete the memory at any time. */
void dpt_cells_enter(void);
void dpt_cells_leave(void);

/* Returns this thread's free cells to the store. A thread calls it when it ends. */
void dpt_cells_thread_end(void);

#endif
