/* dpt-bench rdzv --model: the phases of the bench for a number of nodes that this machine cannot
 * play.
 *
 * The bench measures a quarter of --nodes, then --nodes, with real processes. Light nodes go
 * through the same phases around the same state machine in this process (bench_rdzv_crowd.h). What
 * the real server took beside that is the cost of sockets and handshakes (bench_rdzv_costs.h). The
 * model is checked before it is used: with the costs of the smaller run it computes the larger one,
 * and its errors are printed. Then it computes N nodes with the costs of the larger run. */
#ifndef DPT_WORKER_BENCH_BENCH_RDZV_MODEL_H
#define DPT_WORKER_BENCH_BENCH_RDZV_MODEL_H

#include "worker/bench/bench_rdzv_figures.h"

enum { RDZV_MODEL_NODES_MAX = 200 * 1000 };

/* `setup` is the larger run; `measure` makes a run and prints its phases. Owned by the caller:
 * *ret_report. */
DPT_MUST_USE enum dpt_status rdzv_model(const struct rdzv_setup *setup, int nodes,
                                        enum dpt_status (*measure)(const struct rdzv_setup *setup,
                                                                   struct rdzv_figures *ret,
                                                                   struct dpt_err *err),
                                        json_t **ret_report, struct dpt_err *err);

#endif
