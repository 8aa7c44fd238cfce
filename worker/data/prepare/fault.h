/* Seam for tests: what dpt-data encode asks of the operating system to change the disk passes here
 * first, so that a test can end the process at any step or let any call fail. */
#ifndef DPT_WORKER_DATA_PREPARE_FAULT_H
#define DPT_WORKER_DATA_PREPARE_FAULT_H

/* Called before the operation ("write", "fsync", "rename", …) on `path`; 0 lets it happen, an errno
 * makes it fail with that instead. Called by one thread. NULL normally. */
extern int (*dpt_prepare_fault_hook)(const char *operation, const char *path);

#endif
