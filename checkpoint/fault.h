/* A hook for tests, called before every system call of the write path: a test can end the process
 * at any step or let any call fail. Only tests set it. */
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
    DPT_FAULT_REMOVE_TREE,
    DPT_FAULT_COUNT
};

/* Called before the operation on `path`. 0: the operation happens; an errno: it fails with this
 * errno. Set it before any thread writes; normally NULL. */
extern int (*dpt_fault_hook)(enum dpt_fault_op op, const char *path);

#endif
