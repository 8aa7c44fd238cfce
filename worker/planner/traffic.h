/* Bytes that are sent in a step, by the table of docs/strategies.md ("What is sent"), up to blocks.
 * Pure. */
#ifndef DPT_WORKER_PLANNER_TRAFFIC_H
#define DPT_WORKER_PLANNER_TRAFFIC_H

#include "base/config.h"

struct dpt_traffic_world {
    int machines, ranks; /* all ranks */
    double elements;     /* P, of the flat vector */
    int weight_bytes;    /* w, of the compute dtype */
};

/* Bytes that a rank sends in a step, at most: units of zero3, full_shard and hybrid_shard count as
 * gathered twice a wave, a rank's lanes as one sum, and PowerSGD does not count. */
double dpt_traffic_sent(const struct dpt_config *config, const struct dpt_traffic_world *world);

/* Bytes that the ranks of one machine send to other machines in a step, at most: a rank sends to
 * all other ranks equally, as if ranks of one machine did not add their sums first. */
double dpt_traffic_crossing(const struct dpt_config *config, const struct dpt_traffic_world *world);

#endif
