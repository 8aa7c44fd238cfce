/* The strategies of the recovery bench by name: ddp, zero2+shadow, hybrid_shard, … */
#ifndef DPT_WORKER_BENCH_BENCH_RECOVER_STRATEGY_H
#define DPT_WORKER_BENCH_BENCH_RECOVER_STRATEGY_H

#include "base/err.h"

#include <stdbool.h>

enum { REC_STRATEGIES_MAX = 16, REC_STRATEGY_BYTES = 32 };

/* The copies of the state that a run has after the loss of a node. */
enum recover_copies {
    REC_COPY_EVERYWHERE, /* every rank has everything */
    /* The next rank has a copy of a rank's shard; the first rank copies the last one. */
    REC_COPY_SHADOW,
    REC_COPY_NODE /* every node has everything, each of its ranks one shard */
};

struct recover_strategy {
    char name[REC_STRATEGY_BYTES];
    enum recover_copies copies;
    int ranks_per_node;
};

/* Parses a list such as "ddp,full_shard+shadow"; *ret_n: the number of strategies in it. `ranks`:
 * the number of ranks in each strategy's run. DPT_EINVAL: a strategy that by design loses steps
 * when one rank is killed, or one that cannot run on `ranks` ranks. The programs refuse an unknown
 * name. */
DPT_MUST_USE enum dpt_status
recover_strategies_parse(const char *list, int ranks,
                         struct recover_strategy ret[REC_STRATEGIES_MAX], int *ret_n,
                         struct dpt_err *err);

/* The strategy section of the config: `{name: …}`. */
void recover_strategy_yaml(const struct recover_strategy *strategy, double rebuild_mib, char *ret,
                           size_t bytes);

#endif
