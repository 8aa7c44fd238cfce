/* The recovery bench's strategies. */
#include "worker/bench/bench_recover_strategy.h"

#include <stdio.h>
#include <string.h>

enum { GROUP_RANKS = 2 }; /* ranks of a node that together hold one state */

static const char shadow[] = "+shadow";
static const char *const shardings[] = {"full_shard", "shard_grad_op", "hybrid_shard", "no_shard"};
static const char *const sharded[] = {"zero1", "zero2", "zero3", "full_shard", "shard_grad_op"};

static bool is_in(const char *name, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

/* The strategy's name without "+shadow". */
static void base_of(const struct recover_strategy *s, char ret[REC_STRATEGY_BYTES])
{
    (void)snprintf(ret, REC_STRATEGY_BYTES, "%s", s->name);
    char *plus = strstr(ret, shadow);
    if (plus)
        *plus = '\0';
}

static enum dpt_status parse_one(const char *name, size_t bytes, int ranks,
                                 struct recover_strategy *ret, struct dpt_err *err)
{
    struct recover_strategy s = {.ranks_per_node = 1};
    char base[REC_STRATEGY_BYTES];
    if (bytes == 0 || bytes >= sizeof s.name)
        return dpt_fail(err, DPT_EINVAL, "'%.*s' is the name of no strategy", (int)bytes, name);
    memcpy(s.name, name, bytes);
    base_of(&s, base);
    if (strcmp(base, "hybrid_shard") == 0) {
        s.copies = REC_COPY_NODE;
        s.ranks_per_node = GROUP_RANKS;
    } else if (is_in(base, sharded, sizeof sharded / sizeof *sharded)) {
        s.copies = REC_COPY_SHADOW;
        if (strcmp(base, s.name) == 0)
            return dpt_fail(err, DPT_EINVAL,
                            "%s alone goes back to a checkpoint when a rank dies; try %s%s", base,
                            base, shadow);
    }
    if (ranks % s.ranks_per_node != 0 || ranks / s.ranks_per_node < 2)
        return dpt_fail(err, DPT_EINVAL,
                        "%s has %d ranks on each of at least 2 nodes, which %d ranks do not give",
                        s.name, s.ranks_per_node, ranks);
    *ret = s;
    return DPT_OK;
}

enum dpt_status recover_strategies_parse(const char *list, int ranks,
                                         struct recover_strategy ret[REC_STRATEGIES_MAX],
                                         int *ret_n, struct dpt_err *err)
{
    int n = 0;
    for (const char *name = list; name; n++) {
        if (n == REC_STRATEGIES_MAX)
            return dpt_fail(err, DPT_EINVAL, "more than %d strategies", REC_STRATEGIES_MAX);
        const char *comma = strchr(name, ',');
        const size_t bytes = comma ? (size_t)(comma - name) : strlen(name);
        DPT_TRY(parse_one(name, bytes, ranks, &ret[n], err));
        name = comma ? comma + 1 : NULL;
    }
    *ret_n = n;
    return DPT_OK;
}

void recover_strategy_yaml(const struct recover_strategy *s, double rebuild_mib, char *ret,
                           size_t bytes)
{
    char base[REC_STRATEGY_BYTES];
    base_of(s, base);
    const bool fsdp = is_in(base, shardings, sizeof shardings / sizeof *shardings);
    (void)snprintf(ret, bytes,
                   "{name: %s%s%s, bucket_mib: 0.05, first_bucket_mib: 0.01, "
                   "redundancy: %s, rebuild_mib: %g}",
                   fsdp ? "fsdp" : base, fsdp ? ", sharding: " : "", fsdp ? base : "",
                   strcmp(base, s->name) == 0 ? "none" : "shadow", rebuild_mib);
}
