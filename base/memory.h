/* The memory that a process can still allocate, and the memory that it has. */
#ifndef DPT_BASE_MEMORY_H
#define DPT_BASE_MEMORY_H

#include <stdint.h>

/* Bytes that can be allocated now without swapping, by the kernel's estimate (MemAvailable of
 * /proc/meminfo) and the limits of this process's control groups (v2: memory.max less the used
 * bytes that cannot be reclaimed); 0: the kernel does not say. `root` is put before the paths; ""
 * except in tests. Other processes allocate meanwhile. */
int64_t dpt_memory_available(const char *root);

/* The most bytes that this process could allocate now, if the kernel gave up every page of a file
 * and all swap were free for it. 0: the kernel does not say. */
int64_t dpt_memory_at_most(const char *root);

/* Bytes of the whole machine, swap included, or of the tightest control group of this process: the
 * limit of all processes together. 0: the kernel does not say. */
int64_t dpt_memory_of_machine(const char *root);

/* Memory of this process in bytes (/proc/self/status); -1: the kernel does not say. Shared memory
 * of another process counts in `resident` as soon as this process touches its pages. */
struct dpt_process_memory {
    int64_t peak;               /* the most that `resident` ever was: VmHWM */
    int64_t resident;           /* VmRSS: the sum of the next three */
    int64_t anon, file, shared; /* RssAnon, RssFile, RssShmem */
};
void dpt_memory_of_process(const char *root, struct dpt_process_memory *ret);

#endif
