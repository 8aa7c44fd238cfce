/* Light nodes around the server's state machine, in one process: the part of dpt-bench rdzv --model
 * that runs with any number of nodes.
 *
 * A light node is what the server sees of a node: it obeys at once, and its messages have the ranks
 * and the number that struct rdzv_habits says. A message takes the way of a real one without the
 * socket: it is encoded, decoded and checked, the state machine takes it, and the answers are
 * encoded. The CPU time of that is measured. The clock is simulated: work moves it as struct
 * rdzv_pace says, and when no node has anything to say it jumps to the server's deadline. Nodes
 * that are too many for one run make several runs of the same server. */
#ifndef DPT_WORKER_BENCH_BENCH_RDZV_CROWD_H
#define DPT_WORKER_BENCH_BENCH_RDZV_CROWD_H

#include "worker/bench/bench_rdzv_costs.h"

struct rdzv_crowd;

/* Runs that so many nodes need, and the nodes of the first one. Another may have one more. */
int rdzv_crowd_runs(int nodes, int ranks);
int rdzv_crowd_first_run(int nodes, int ranks);

/* setup->nodes is the number in all runs; a rack is in the first one. Owned by the caller. */
DPT_MUST_USE enum dpt_status rdzv_crowd_create(const struct rdzv_setup *setup,
                                               const struct rdzv_habits *habits,
                                               struct rdzv_crowd **ret, struct dpt_err *err);
/* Accepts NULL. */
void rdzv_crowd_destroy(struct rdzv_crowd **crowd);

/* Carries out the command, one of those of the real client processes, until all nodes have got
 * there, as struct rdzv_phase says; LOSE and JOIN are about nodes of the first run, and about them
 * alone. Fills `ret` but for its name. DPT_EPROTO: the server refuses a node, or the nodes do not
 * get there. */
DPT_MUST_USE enum dpt_status rdzv_crowd_phase(struct rdzv_crowd *crowd,
                                              const struct rdzv_command *command,
                                              const struct rdzv_pace *pace, struct rdzv_phase *ret,
                                              struct dpt_err *err);

/* Heap of the state machine: now, and the most so far. Nothing else of the process may take or free
 * memory since the crowd was created. */
void rdzv_crowd_memory(const struct rdzv_crowd *crowd, int64_t *ret_now_bytes,
                       int64_t *ret_peak_bytes);

/* Each node sends a heartbeat. *ret_us: CPU time of core and codec for one of them. */
DPT_MUST_USE enum dpt_status rdzv_crowd_beat(struct rdzv_crowd *crowd, double *ret_us,
                                             struct dpt_err *err);

#endif
