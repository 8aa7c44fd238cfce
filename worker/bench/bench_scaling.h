/* Shared by the files of `dpt-bench scaling`: the worlds of a strategy, their figures, the report.
 */
#ifndef DPT_WORKER_BENCH_BENCH_SCALING_H
#define DPT_WORKER_BENCH_BENCH_SCALING_H

#include "worker/bench/cost.h"
#include "worker/bench/measured_run.h"
#include "worker/bench/scaling_figures.h"
#include "worker/bench/spread.h"

#include <jansson.h>
#include <stdbool.h>

enum {
    SCALING_RANKS_MAX = 8,
    SCALING_WORLDS_MAX = 8,
    SCALING_STRATEGIES_MAX = 4,
    SCALING_LINES_MAX = SCALING_STRATEGIES_MAX * SCALING_WORLDS_MAX,
    SCALING_TEXT_BYTES = 2048
};

struct scaling_args {
    bool weak;
    const char *strategies, *model, *preset, *precision, *accumulate;
    struct dpt_bench_list worlds;
    int64_t batch; /* train.global_batch; weak: samples of a rank */
    int64_t micro_batch, seq_len, threads, hosts, rounds, steps;
    struct dpt_bench_real price; /* of a host and hour; 0: not given */
    struct dpt_bench_sets sets;
};

/* A strategy in one world. */
struct scaling_world {
    char label[32]; /* of the strategy */
    int ranks, nodes, hosts, global_batch;
    int waves;     /* most slots of a rank in a step */
    int base;      /* index of the smallest world of the strategy */
    bool one_hash; /* the config decides the order of addition, so all runs of a batch agree */
    /* Medians of a run's steps, by round. */
    int n_runs;
    double step_ms[SPREAD_REPEATS_MAX], exposed_ms[SPREAD_REPEATS_MAX], late_ms[SPREAD_REPEATS_MAX];
    int64_t sent_bytes;
    char hash[MEASURED_HASH_BYTES]; /* of all runs; "": two runs differ */

    /* scaling_conclude */
    struct spread step, speed_up, efficiency; /* over the rounds, each beside the base's run */
    struct scaling_point point;
    struct scaling_loss loss;
    double bound; /* of the efficiency, by the processors */
    double tokens_per_s;
    double dollars_per_1m; /* tokens */
};

struct scaling_bench {
    struct scaling_args args;
    char dir[DPT_BENCH_DIR_BYTES]; /* temporary folder */
    bool cuda;
    int cores, devices;
    double processors; /* scaling_terms */
    int64_t parameters;
    int n;
    struct scaling_world worlds[SCALING_LINES_MAX]; /* strategy by strategy, ascending ranks */
    double load_before, load_after;
};

/* bench_scaling_report.c: the figures over all rounds; the table on standard output; the JSON
 * (owned); the page. DPT_EIO: the page cannot be written. */
void scaling_conclude(struct scaling_bench *b);
void scaling_print(const struct scaling_bench *b);
json_t *scaling_json(const struct scaling_bench *b);
DPT_MUST_USE enum dpt_status scaling_page(const struct scaling_bench *b, const char *path,
                                          struct dpt_err *err);

#endif
