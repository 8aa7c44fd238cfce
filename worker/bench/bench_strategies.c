/* dpt-bench strategies: runs every strategy of the config on one model, with the real programs on
 * this machine. Compares the time, memory, sent bytes and waiting of a step with the formulas.
 *
 * The strategies' runs alternate, round after round, so that other load on the machine slows all of
 * them. A run has a server and a worker for each node; its first steps are not counted. Strategies
 * that add gradients in the same order must end with the same weights hash; else the bench
 * fails. */
#include "worker/bench/bench_strategies.h"

#include "base/config_table.h"
#include "base/fs.h"
#include "worker/bench/bench.h"
#include "worker/bench/programs.h"
#include "worker/model/model.h"

#include <stdlib.h>
#include <string.h>

enum { TEXT_BYTES = 400 * 1000, WHY_BYTES = 1024 };

static struct strategies_args args = {
    .model = "n_layer: 4, n_head: 4, n_embd: 256, context: 64, vocab: 8192, dropout: 0.0",
    .precision = "fp32",
    .accumulate = "auto",
    .ranks = 2,
    .hosts = 1,
    .rounds = 3,
    .steps = 8,
    .global_batch = 16,
    .micro_batch = 2,
    .seq_len = 64};
static const char *html; /* NULL: no page */

static const struct dpt_option options[] = {
    {"--ranks", "N", "ranks of a run (2)", .number = &args.ranks, .min = 1, .max = ST_RANKS_MAX},
    {"--hosts", "N", "hosts that share the ranks evenly (1)", .number = &args.hosts, .min = 1,
     .max = ST_RANKS_MAX},
    {"--rounds", "N", "runs of each strategy (3)", .number = &args.rounds, .min = 1,
     .max = ST_ROUNDS_MAX},
    {"--steps", "N", "measured steps of a run (8)", .number = &args.steps, .min = 1,
     .max = ST_STEPS_MAX},
    {"--batch", "N", "train.global_batch (16)", .number = &args.global_batch, .min = 1,
     .max = ST_SAMPLES_MAX},
    {"--micro", "N", "train.micro_batch (2)", .number = &args.micro_batch, .min = 1,
     .max = ST_SAMPLES_MAX},
    {"--seq", "N", "train.seq_len (64)", .number = &args.seq_len, .min = 1, .max = ST_SAMPLES_MAX},
    {"--model", "KEYS", "keys of the config's section model (a GPT-2 of 4 blocks)",
     .text = &args.model},
    {"--precision", "fp32|bf16|fp16", "train.precision (fp32)", .text = &args.precision},
    {"--accumulate", "auto|local|reduce", "train.accumulate (auto)", .text = &args.accumulate},
    {"--only", "NAME,...", "these strategies (all)", .text = &args.only},
    {"--html", "FILE", "writes a page with charts to FILE", .text = &html}};

static const struct dpt_choice *choices_of(const char *key)
{
    return dpt_config_keys[dpt_config_key_index(key)].choices;
}

/* Adds a strategy that the user asked for. If it cannot run here, prints the reason instead.
 * hybrid_shard shards inside a node, so its nodes have several ranks. */
static void strategies_add(struct strategies_bench *b, const char *label, const char *name,
                           const char *sharding)
{
    char text[2048];
    struct dpt_err err = {.text = ""};
    if (!dpt_bench_is_listed(b->args.only, label))
        return;
    DPT_ASSERT(b->n < ST_STRATEGIES_MAX);
    struct strategies_strategy *s = &b->strategies[b->n];
    s->nodes = (int)b->args.ranks;
    if (strcmp(sharding, "hybrid_shard") == 0)
        s->nodes = b->args.hosts > 1 || b->args.ranks == 1 ? (int)b->args.hosts : 2;
    else if (strcmp(name, "dp") == 0) /* of one machine */
        s->nodes = 1;
    if (b->args.ranks % s->nodes != 0) {
        (void)fprintf(stderr, "%s is left out: %d nodes cannot share %d ranks evenly\n", label,
                      s->nodes, (int)b->args.ranks);
        return;
    }
    strategies_config_text(b, name, sharding, s->nodes, text);
    if (dpt_config_load_text(text, label, NULL, 0, &s->config, &err) != DPT_OK) {
        (void)fprintf(stderr, "%s is left out: %.*s\n", label, WHY_BYTES, err.text);
        return;
    }
    (void)snprintf(s->label, sizeof s->label, "%s", label);
    (void)snprintf(s->name, sizeof s->name, "%s", name);
    (void)snprintf(s->sharding, sizeof s->sharding, "%s", sharding);
    b->n++;
}

/* Adds every strategy and every sharding that the config knows. */
static void add_all(struct strategies_bench *b)
{
    for (const struct dpt_choice *c = choices_of("strategy.name"); c->name; c++) {
        if (strcmp(c->name, "fsdp") != 0) {
            strategies_add(b, c->name, c->name, "");
            continue;
        }
        for (const struct dpt_choice *k = choices_of("strategy.sharding"); k->name; k++)
            if (k->value != DPT_SHARDING_NULL)
                strategies_add(b, k->name, c->name, k->name);
    }
}

static enum dpt_status strategies_prepare(struct strategies_bench *b, struct dpt_err *err)
{
    struct dpt_model *model = NULL;
    char path[BENCH_PATH_BYTES];
    DPT_TRY(dpt_fs_join(b->dir, "text.txt", path, sizeof path, err));
    DPT_TRY(bench_text_write(path, TEXT_BYTES, err));
    add_all(b);
    if (b->n == 0)
        return dpt_fail(err, DPT_ECONFIG, "there is no strategy to measure");
    DPT_TRY(dpt_model_create(&b->strategies[0].config, &model, err));
    for (int i = 0; i < dpt_model_n_params(model); i++)
        b->parameters += dpt_model_param(model, i)->numel;
    dpt_model_destroy(&model);
    return DPT_OK;
}

static enum dpt_status measure_strategies(struct strategies_bench *b, struct dpt_err *err)
{
    for (int round = 0; round < b->args.rounds; round++)
        for (int i = 0; i < b->n; i++) {
            struct strategies_strategy *s = &b->strategies[i];
            DPT_TRY(strategies_run(b, s, round, &s->runs[s->n_runs], err));
            s->n_runs++;
        }
    return DPT_OK;
}

static enum dpt_status report_strategies(struct strategies_bench *b, json_t **ret_report,
                                         struct dpt_err *err)
{
    strategies_conclude(b);
    strategies_print(b);
    *ret_report = strategies_json(b);
    if (html)
        DPT_TRY(strategies_page(b, html, err));
    if (strategies_one_hash(b, DPT_ACCUMULATE_LOCAL) &&
        strategies_one_hash(b, DPT_ACCUMULATE_REDUCE))
        return DPT_OK;
    return dpt_fail(err, DPT_ECORRUPT,
                    "runs with one order of addition ended with different weights");
}

static enum dpt_status run_strategies(json_t **ret_report, struct dpt_err *err)
{
    static struct strategies_bench bench;
    struct strategies_bench *b = &bench;
    b->args = args;
    if (b->args.ranks % b->args.hosts != 0)
        return dpt_fail(err, DPT_EINVAL, "--hosts: %d hosts cannot share %d ranks evenly",
                        (int)b->args.hosts, (int)b->args.ranks);
    DPT_TRY(dpt_bench_dir_create(NULL, "strategies", b->dir, err));
    (void)getloadavg(&b->load_before, 1);
    enum dpt_status status = bench_programs_begin(err);
    if (status == DPT_OK)
        status = strategies_prepare(b, err);
    if (status == DPT_OK)
        status = measure_strategies(b, err);
    (void)getloadavg(&b->load_after, 1);
    if (status == DPT_OK)
        status = report_strategies(b, ret_report, err);
    dpt_bench_dir_remove(b->dir);
    return status;
}

const struct dpt_bench dpt_bench_strategies = {
    .name = "strategies",
    .help = "every strategy on one model: time, memory, bytes sent, weights hash",
    .options = options,
    .n_options = sizeof options / sizeof *options,
    .run = run_strategies};
