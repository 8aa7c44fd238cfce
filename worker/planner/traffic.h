/* Bytes that are sent in a step, by the table of docs/strategies.md ("What is sent"), up to blocks.
 * Pure. */
#ifndef DPT_WORKER_PLANNER_TRAFFIC_H
#define DPT_WORKER_PLANNER_TRAFFIC_H

#include "base/config.h"
#include "worker/plan/world.h"

/* Upper bounds: units of zero3, full_shard and hybrid_shard count as gathered twice a wave, a
 * shadow saves no gathered weights, and PowerSGD does not count. Weights that go to all ranks go to
 * each rank of another machine. With dp `sent` is what the rank at position 0 sends or receives,
 * whichever is more. */
struct dpt_traffic {
    double sent;     /* bytes of the rank that sends most */
    double crossing; /* bytes that the ranks of one machine send to other machines, at most */
};

/* `elements`: P, of the flat vector. `weight_bytes`: w, of the compute dtype. In `world` the first
 * machine has the most ranks, and the last has the fewest. */
struct dpt_traffic dpt_traffic_of(const struct dpt_config *config, const struct dpt_world *world,
                                  int64_t elements, int weight_bytes);

#endif
