/* dpt-bench rdzv --model: the phases of the bench for a number of nodes that this machine cannot
 * play.
 *
 * The bench measures a quarter of --nodes, then --nodes, with real processes, each several times.
 * Light nodes go through the same phases around the same state machine in this process
 * (bench_rdzv_crowd.h). What the real server took beside that is the cost of sockets, journal and
 * handshakes (bench_rdzv_costs.h). The model is checked before it is used: with the costs of the
 * smaller runs it computes the larger ones, and its errors are printed. If they are small enough,
 * it computes N nodes with the costs of the larger runs. */
#ifndef DPT_WORKER_BENCH_BENCH_RDZV_MODEL_H
#define DPT_WORKER_BENCH_BENCH_RDZV_MODEL_H

#include "worker/bench/bench_rdzv_costs.h"

enum { RDZV_MODEL_NODES_MAX = 200 * 1000 };

struct rdzv_model_options {
    int nodes;                /* to compute */
    int repeats;              /* of each measurement, 1 to RDZV_REPEATS_MAX */
    double error_max_percent; /* largest error of a CPU time in the check */
    /* Makes a run and prints its phases. */
    enum dpt_status (*measure)(const struct rdzv_setup *setup, struct rdzv_figures *ret,
                               struct dpt_err *err);
};

/* `setup` is of the larger runs. DPT_EREFUSED: the check has failed. Owned by the caller:
 * *ret_report. */
DPT_MUST_USE enum dpt_status rdzv_model(const struct rdzv_setup *setup,
                                        const struct rdzv_model_options *options,
                                        json_t **ret_report, struct dpt_err *err);

#endif
