/* The CPU time that control groups allow this process.
 *
 * A quota says how many microseconds the processes of a group may run in a period; what is over
 * stands still until the next one. It may lie on the process's own group or on any above it. */
#ifndef DPT_BASE_CGROUP_H
#define DPT_BASE_CGROUP_H

#include <stdbool.h>
#include <stdint.h>

#define DPT_CGROUP_MEMBERSHIP "/proc/self/cgroup"
#define DPT_CGROUP_MOUNT      "/sys/fs/cgroup"

/* The tightest quota over the groups that `membership` (a file in the form of /proc/PID/cgroup)
 * names in the hierarchies below `mount`, in version 2 (cpu.max) and 1 (cpu.cfs_quota_us):
 * *ret_cpus in CPUs, *ret_group the same for all processes that share this very quota. False, and
 * both untouched: there is none, or it cannot be read. Any thread. */
bool dpt_cgroup_quota(const char *membership, const char *mount, double *ret_cpus,
                      uint64_t *ret_group);

#endif
