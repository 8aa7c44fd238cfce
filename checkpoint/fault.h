/* Seam for tests: what the write path asks of the operating system passes here first, so that a
 * test can end the process at any step or let any call fail. Nothing but tests sets the hook. */
#ifndef DPT_CHECKPOINT_FAULT_H
#define DPT_CHECKPOINT_FAULT_H

enum dpt_fault_op {
    DPT_FAULT_MKDIR,
    DPT_FAULT_CREATE,
    DPT_FAULT_ALLOCATE,
    DPT_FAULT_WRITE,
    DPT_FAULT_FSYNC,
    DPT_FAULT_CLOSE,
    DPT_FAULT_RENAME,
    DPT_FAULT_EXCHANGE,
    DPT_FAULT_UNLINK,
    DPT_FAULT_REMOVE_TREE,
    DPT_FAULT_COUNT
};

/* Called before the operation on `path`; 0 lets it happen, an errno makes it fail with that
 * instead. Set before any thread writes; NULL normally. */
extern int (*dpt_fault_hook)(enum dpt_fault_op op, const char *path);

#endif
