/* The CPU time that control groups allow this process.
 *
 * A quota limits the microseconds that the processes of a group run in a period. The process's
 * group or any group above it may have one. */
#ifndef DPT_BASE_CGROUP_H
#define DPT_BASE_CGROUP_H

#include <stdbool.h>
#include <stdint.h>

#define DPT_CGROUP_MEMBERSHIP "/proc/self/cgroup"
#define DPT_CGROUP_MOUNT      "/sys/fs/cgroup"

/* The tightest quota over the groups that `membership` (a file in the form of /proc/PID/cgroup)
 * names in the hierarchies below `mount`, in version 2 (cpu.max) and 1 (cpu.cfs_quota_us):
 * *ret_cpus in CPUs, *ret_group equal for all processes that share this quota. False: there is no
 * quota, or it cannot be read; both are untouched. Any thread. */
bool dpt_cgroup_quota(const char *membership, const char *mount, double *ret_cpus,
                      uint64_t *ret_group);

#endif
