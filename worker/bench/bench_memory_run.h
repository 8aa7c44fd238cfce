/* One run of the memory bench. Starts dpt-rdzv and dpt-worker, the real programs beside dpt-bench,
 * waits for their end, and reads the memory that each rank reports. */
#ifndef DPT_WORKER_BENCH_BENCH_MEMORY_RUN_H
#define DPT_WORKER_BENCH_BENCH_MEMORY_RUN_H

#include "base/err.h"

#include <jansson.h>
#include <stdbool.h>

enum { MEM_RANKS_MAX = 8 };

struct memory_run {
    const char *model;    /* keys of the config's section `model` */
    const char *strategy; /* keys of the config's section `strategy` */
    const char *precision, *accumulate;
    bool packed; /* cluster.pack_weights: on; else off */
    /* Each node is a separate host, connected by sockets; `world` ranks, divided evenly among the
     * nodes. */
    int nodes, world;
    int batch, seq, slots, steps;
};

/* Writes the run's files to folder `name` under `dir`. *ret_ranks: a JSON array with the report of
 * each rank (rank-N.memory.json), in the order of the ranks; the caller owns it. Errors of
 * bench_cluster_run; DPT_ETIMEOUT: the run takes longer than 15 minutes. */
DPT_MUST_USE enum dpt_status memory_run(const struct memory_run *run, const char *dir,
                                        const char *name, json_t **ret_ranks, struct dpt_err *err);

#endif
