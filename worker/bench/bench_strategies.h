/* Shared by the files of `dpt-bench strategies`: a strategy, the results of its runs, the
 * report. */
#ifndef DPT_WORKER_BENCH_BENCH_STRATEGIES_H
#define DPT_WORKER_BENCH_BENCH_STRATEGIES_H

#include "base/config.h"
#include "worker/bench/bench.h"
#include "worker/bench/measured_run.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

enum {
    ST_STRATEGIES_MAX = 32,
    ST_RANKS_MAX = 8,
    ST_ROUNDS_MAX = 15,
    ST_STEPS_MAX = MEASURED_STEPS_MAX, /* of a run */
    ST_WARMUP_STEPS = 2,               /* steps of each run that are not counted */
    ST_SAMPLES_MAX = 1 << 16
};

struct strategies_args {
    const char *model, *precision, *accumulate;
    const char *only; /* a list of strategies; NULL: all */
    int64_t ranks, hosts, rounds, steps;
    int64_t global_batch, micro_batch, seq_len;
};

struct strategies_strategy {
    char label[32];    /* one word: the sharding of fsdp, else the name */
    char name[32];     /* strategy.name */
    char sharding[32]; /* strategy.sharding of fsdp; else "" */
    struct dpt_config config;
    /* A node has one worker. It has one rank, except under hybrid_shard, where a node holds the
     * whole state. */
    int nodes;
    int n_runs;
    struct measured runs[ST_ROUNDS_MAX];

    /* Figures over all runs (strategies_conclude). */
    /* step_ms: median of all steps. best, worst: smallest and largest median of a run. */
    double step_ms, step_ms_best, step_ms_worst;
    double wait_share, tokens_per_s;             /* share: median over the runs */
    int64_t sent_bytes, sends_bytes;             /* sent: median */
    int64_t held_bytes, holds_bytes, peak_bytes; /* largest */
    bool one_hash;                               /* all its runs have the same hash */
};

struct strategies_bench {
    struct strategies_args args;
    char dir[DPT_BENCH_DIR_BYTES]; /* temporary folder */
    int64_t parameters;
    int n;
    struct strategies_strategy strategies[ST_STRATEGIES_MAX];
    double load_before, load_after;
};

/* Does one run of strategy `s` in a new folder below b->dir, with the real programs: a server, and
 * a worker for each node. Blocks until all have ended. */
DPT_MUST_USE enum dpt_status strategies_run(const struct strategies_bench *b,
                                            const struct strategies_strategy *s, int number,
                                            struct measured *ret, struct dpt_err *err);

/* The config of the runs of a strategy as YAML, without the keys that differ from node to node. */
void strategies_config_text(const struct strategies_bench *b, const char *name,
                            const char *sharding, int nodes, char ret[2048]);

/* strategies_conclude fills the figures over all runs. strategies_print prints the table to
 * standard output. strategies_json returns the JSON (owned). All are in bench_strategies_report.c.
 */
void strategies_conclude(struct strategies_bench *b);
/* True: all runs of all strategies that add gradients in order `order` ended with one hash. */
bool strategies_one_hash(const struct strategies_bench *b, enum dpt_accumulate order);
void strategies_print(const struct strategies_bench *b);
json_t *strategies_json(const struct strategies_bench *b);
/* Writes the page to file `path`. DPT_EIO: it cannot be written. */
DPT_MUST_USE enum dpt_status strategies_page(const struct strategies_bench *b, const char *path,
                                             struct dpt_err *err);

#endif
