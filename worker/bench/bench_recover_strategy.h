/* Strategies by the names that the recovery bench knows them by: ddp, zero2+shadow, hybrid_shard …
 */
#ifndef DPT_WORKER_BENCH_BENCH_RECOVER_STRATEGY_H
#define DPT_WORKER_BENCH_BENCH_RECOVER_STRATEGY_H

#include "base/err.h"

#include <stdbool.h>

enum { REC_STRATEGIES_MAX = 16, REC_STRATEGY_BYTES = 32 };

/* The copies of the state that a run has after the loss of a node. */
enum rec_copies {
    REC_COPY_EVERYWHERE, /* every rank has everything */
    REC_COPY_SHADOW,     /* the next rank has a copy of a rank's shard, the last one's the first */
    REC_COPY_NODE        /* every node has everything, its ranks a shard each */
};

struct rec_strategy {
    char name[REC_STRATEGY_BYTES];
    enum rec_copies copies;
    int ranks_per_node;
};

/* A list such as "ddp,full_shard+shadow", with `ranks` ranks each; returns how many in *ret_n.
 * DPT_ECONFIG: a strategy that a single kill costs steps by design, or one that `ranks` does not
 * fit. Whether there is such a strategy the programs say. */
DPT_MUST_USE enum dpt_status rec_strategies_parse(const char *list, int ranks,
                                                  struct rec_strategy ret[REC_STRATEGIES_MAX],
                                                  int *ret_n, struct dpt_err *err);

/* Its part of the config: `{name: …}`. */
void rec_strategy_yaml(const struct rec_strategy *strategy, double rebuild_mib, char *ret,
                       size_t bytes);

#endif
