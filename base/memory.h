/* The memory that a process can still allocate, and the memory that it has. */
#ifndef DPT_BASE_MEMORY_H
#define DPT_BASE_MEMORY_H

#include <stdint.h>

/* The bytes that this process can allocate now without swapping; 0: the kernel does not say. This
 * is the kernel's estimate (MemAvailable of /proc/meminfo) or, if less, what a control group of
 * this process leaves (version 2: memory.max less the used bytes, without inactive pages of files).
 * `root` is put before the paths; "" except in tests. Other processes may allocate at the same
 * time. */
int64_t dpt_memory_available(const char *root);

/* An upper bound of the bytes that this process can allocate now; 0: the kernel does not say. This
 * is MemAvailable or, if less, what a control group leaves when the kernel drops all its pages of
 * files; plus the free swap of the machine. */
int64_t dpt_memory_at_most(const char *root);

/* The bytes that all processes together can have: the memory of the machine or, if less, the
 * tightest limit of this process's control groups; plus swap. 0: the kernel does not say. */
int64_t dpt_memory_of_machine(const char *root);

/* The number of processes that the kernel has ended for lack of memory: of this process's control
 * group (version 2: memory.events; version 1: memory.oom_control) or, where it has none, of the
 * machine (/proc/vmstat). -1: the kernel does not say. It counts an end before the process dies. */
int64_t dpt_memory_oom_kills(const char *root);

/* Memory of this process in bytes (/proc/self/status); -1: the kernel does not say. A page of
 * shared memory counts in `resident` as soon as this process touches the page, even if another
 * process allocated it. */
struct dpt_process_memory {
    int64_t peak;               /* VmHWM: the largest value of `resident` so far */
    int64_t resident;           /* VmRSS: the sum of the next three */
    int64_t anon, file, shared; /* RssAnon, RssFile, RssShmem */
};
void dpt_memory_of_process(const char *root, struct dpt_process_memory *ret);

#endif
