/* What the files of `dpt-bench strategies` share: a strategy, the results of its runs, the report.
 */
#ifndef DPT_WORKER_BENCH_BENCH_STRATEGIES_H
#define DPT_WORKER_BENCH_BENCH_STRATEGIES_H

#include "base/config.h"
#include "base/hash.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

enum {
    ST_STRATEGIES_MAX = 32,
    ST_RANKS_MAX = 8,
    ST_ROUNDS_MAX = 15,
    ST_STEPS_MAX = 1000, /* of a run */
    ST_WARMUP_STEPS = 2, /* of each run that are not counted */
    ST_MODEL_BYTES = 256
};

struct st_args {
    int ranks, hosts, rounds, steps;
    int global_batch, micro_batch, seq_len;
    const char *model, *precision, *accumulate, *only;
    const char *json, *html;
};

/* What one run of one strategy gave, by the ranks that write the logs: one a node. Of their figures
 * the largest, unless it says else. */
struct st_run {
    int n_steps;
    double step_ms[ST_STEPS_MAX];
    double wait_share;   /* mean over them */
    int64_t sent_bytes;  /* in a step, median over the steps, of the rank that sends most */
    int64_t sends_bytes; /* of that rank, by its strategy's plan */
    int64_t held_bytes;  /* at most, by the account of the rank that holds most */
    int64_t holds_bytes; /* that it should hold, by the formula */
    int64_t peak_bytes;  /* of a rank's process */
    double loss;         /* at the end */
    char hash[64];
};

struct st_strategy {
    char label[32];    /* one word, a sharding of fsdp by its own */
    char name[32];     /* strategy.name */
    char sharding[32]; /* strategy.sharding; "" */
    struct dpt_config config;
    int nodes; /* a worker each; of one rank, but where what a strategy holds goes by node */
    int n_runs;
    struct st_run runs[ST_ROUNDS_MAX];

    /* Of all runs (st_conclude). */
    double step_ms, step_ms_best, step_ms_worst; /* median of all steps; least and largest median
                                                    of a run */
    double wait_share, tokens_per_s;             /* share: median over the runs */
    int64_t sent_bytes, sends_bytes;             /* sent: median */
    int64_t held_bytes, holds_bytes, peak_bytes; /* largest */
    bool one_hash;                               /* all its runs have one */
};

struct st_bench {
    struct st_args args;
    char dir[128]; /* temporary folder */
    char worker[512];
    int64_t parameters;
    int n;
    struct st_strategy strategies[ST_STRATEGIES_MAX];
    double load_before, load_after;
};

/* One run of strategy `s` in a new folder below b->dir, by real programs: a server, and a worker
 * for each node. Blocks until all have ended. */
DPT_MUST_USE enum dpt_status st_run(const struct st_bench *b, const struct st_strategy *s,
                                    int number, struct st_run *ret, struct dpt_err *err);

/* The config of the runs of a strategy as YAML, without the keys that differ from node to node. */
void st_config_text(const struct st_bench *b, const char *name, const char *sharding, int nodes,
                    char ret[2048]);

/* bench_strategies_report.c: fills the figures of all runs; the table on standard output; the JSON
 * (owned). */
void st_conclude(struct st_bench *b);
/* True when all runs of all strategies that add in one order ended with one hash. */
bool st_one_hash(const struct st_bench *b, enum dpt_accumulate order);
void st_print(const struct st_bench *b);
json_t *st_json(const struct st_bench *b);
/* The page: DPT_EIO. */
DPT_MUST_USE enum dpt_status st_page(const struct st_bench *b, const char *path,
                                     struct dpt_err *err);

#endif
