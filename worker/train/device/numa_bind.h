/* Where a rank stays. */
#ifndef DPT_WORKER_TRAIN_DEVICE_NUMA_BIND_H
#define DPT_WORKER_TRAIN_DEVICE_NUMA_BIND_H

#include "base/config.h"
#include "worker/agent/rank_protocol.h"

/* Keeps the calling thread, and those that it starts, on the cores beside the rank's GPU, or, for a
 * rank without one, on those of the NUMA node that is its share of the machine (cluster.numa), and
 * says so. All ranks of this node do, or none does: where there is one NUMA node, where the
 * nodes are not known, where a CPU quota is less than the machine, or where a rank would have fewer
 * cores than without. `sys`: DPT_NUMA_SYS. Before there are threads. */
void dpt_rank_bind(const struct dpt_rank_start *start, const struct dpt_config *config,
                   const char *sys);

#endif
