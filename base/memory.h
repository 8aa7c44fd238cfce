/* How much memory a process may still take, and what it has. */
#ifndef DPT_BASE_MEMORY_H
#define DPT_BASE_MEMORY_H

#include <stdint.h>

/* Bytes that could be taken now without swapping, by the kernel's estimate (MemAvailable of
 * /proc/meminfo) and the limits of this process's control groups (v2: memory.max less what is used
 * and cannot be reclaimed); 0 when the kernel says nothing. `root` comes before the paths, "" but
 * in tests. An estimate: others take memory, too. */
int64_t dpt_memory_available(const char *root);

/* Bytes that this process could take now if every page of a file were given up and all swap were
 * its own: what needs more cannot be held here. 0 when the kernel says nothing. */
int64_t dpt_memory_at_most(const char *root);

/* Bytes of the whole machine, swap included, or of the tightest control group of this process: what
 * several processes together cannot exceed, whatever they have taken already. 0 when the kernel
 * says nothing. */
int64_t dpt_memory_of_machine(const char *root);

/* What the kernel says of this process, in bytes (/proc/self/status); -1 where it does not say.
 * Shared memory that another process made counts in `resident` as soon as its pages are touched
 * here. */
struct dpt_process_memory {
    int64_t peak;               /* the most that `resident` ever was: VmHWM */
    int64_t resident;           /* VmRSS: the sum of the next three */
    int64_t anon, file, shared; /* RssAnon, RssFile, RssShmem */
};
void dpt_memory_of_process(const char *root, struct dpt_process_memory *ret);

#endif
