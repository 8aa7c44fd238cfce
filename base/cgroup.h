/* The CPU time that control groups allow this process.
 *
 * A quota limits the microseconds that the processes of a group may run in a period. The process's
 * group and every group above it may have a quota. */
#ifndef DPT_BASE_CGROUP_H
#define DPT_BASE_CGROUP_H

#include <stdbool.h>
#include <stdint.h>

#define DPT_CGROUP_MEMBERSHIP "/proc/self/cgroup"
#define DPT_CGROUP_MOUNT      "/sys/fs/cgroup"

/* Finds the tightest quota of the groups that `membership` names (a file in the form of
 * /proc/PID/cgroup), and of the groups above them. It reads the hierarchies below `mount` in
 * version 2 (cpu.max) and version 1 (cpu.cfs_quota_us). *ret_cpus gets the quota in CPUs.
 * *ret_group gets a number that is equal for all processes that share this quota. False: there is
 * no quota, or it cannot be read; both outputs are untouched. Any thread. */
bool dpt_cgroup_quota(const char *membership, const char *mount, double *ret_cpus,
                      uint64_t *ret_group);

#endif
