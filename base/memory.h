/* How much memory a process may still take. */
#ifndef DPT_BASE_MEMORY_H
#define DPT_BASE_MEMORY_H

#include <stdint.h>

/* Bytes that could be taken now without swapping, by the kernel's estimate (MemAvailable of
 * /proc/meminfo) and the limits of this process's control groups (v2: memory.max less what is used
 * and cannot be reclaimed); 0 when the kernel says nothing. `root` comes before the paths, "" but
 * in tests. An estimate: others take memory, too. */
int64_t dpt_memory_available(const char *root);

#endif
