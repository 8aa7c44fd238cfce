/* One run for the memory bench: dpt-rdzv and dpt-worker as real programs, found beside dpt-bench,
 * to their end; the memory that each rank reports. */
#ifndef DPT_WORKER_BENCH_BENCH_MEMORY_RUN_H
#define DPT_WORKER_BENCH_BENCH_MEMORY_RUN_H

#include "base/err.h"

#include <jansson.h>
#include <stdbool.h>

enum { MEM_RANKS_MAX = 8, MEM_NODES_MAX = 4, MEM_RUN_MS = 15 * 60 * 1000 };

struct mem_run {
    const char *model;    /* the config's section without its name */
    const char *strategy; /* the config's section */
    const char *precision, *accumulate;
    bool packed;      /* cluster.pack_weights: on; else off */
    int nodes, world; /* nodes are hosts of their own, joined by sockets; ranks divided evenly */
    int batch, seq, slots, steps;
};

/* Files go to a folder `name` under `dir`. *ret_ranks: a JSON array, by rank, of what they left
 * (rank-N.memory.json), owned by the caller. Nothing that was started is left, whatever happens;
 * DPT_ETIMEOUT after MEM_RUN_MS. */
DPT_MUST_USE enum dpt_status mem_run(const struct mem_run *run, const char *dir, const char *name,
                                     json_t **ret_ranks, struct dpt_err *err);

#endif
