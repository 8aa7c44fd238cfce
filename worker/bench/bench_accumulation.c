/* dpt-bench accumulation: one global batch in micro-batches of different sizes. Time and memory of
 * a step, and the convergence: the losses of all steps and the hash of the weights.
 *
 * A smaller micro-batch means more slots, whose gradients are added one after another: less memory
 * for activations, the same samples in the same order. The sum is the same but for its rounding, so
 * the losses of two micro-batches differ in their last digits. Within one micro-batch every world
 * has the same bits: the bench fails otherwise. */
#include "base/median.h"
#include "worker/bench/cost.h"
#include "worker/bench/measured_run.h"
#include "worker/bench/programs.h"
#include "worker/bench/spread.h"
#include "worker/bench/user_config.h"

#include "base/fs.h"
#include "base/strategy_traits.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    ROWS_MAX = 32,
    RANKS_MAX = 8,
    BATCH_MAX = 1 << 16,
    WARMUP_STEPS = 2,
    TEXT_BYTES = 400 * 1000,
    RUN_TIMEOUT_MS = 60 * 60 * 1000,
    WHY_BYTES = 1024
};

/* One micro-batch in one world. */
struct accumulation_row {
    int micro_batch, ranks, slots;
    struct user_config user;
    int n_runs;
    double step_ms[SPREAD_REPEATS_MAX]; /* medians of a run */
    int64_t held_bytes, own_bytes;
    int n_losses;
    double losses[MEASURED_LOSSES_MAX];
    char hash[MEASURED_HASH_BYTES];
};

static struct {
    const char *config;
    struct dpt_bench_sets sets;
    struct dpt_bench_list micros, worlds;
    struct dpt_bench_real price; /* of this machine and hour; 0: not given */
    int64_t repeats, steps;
    int n;
    struct accumulation_row rows[ROWS_MAX];
} args = {.micros = {.min = 1, .max = BATCH_MAX, .n = 4, .values = {1, 2, 4, 8}},
          .worlds = {.min = 1, .max = RANKS_MAX, .n = 1, .values = {1}},
          .price = {BENCH_PRICE_RANGE},
          .repeats = 3,
          .steps = 20};

static const struct dpt_option options[] = {
    {"--micro", "N,...", "values of train.micro_batch (1,2,4,8)", .set = dpt_bench_set_list,
     .ctx = &args.micros},
    {"--worlds", "N,...", "each micro-batch on these numbers of ranks (1)",
     .set = dpt_bench_set_list, .ctx = &args.worlds},
    {"--config", "FILE", "a config of dpt-worker (a GPT-2 of 4 blocks, global batch 16)",
     .text = &args.config},
    {"--repeats", "N", "runs of each row (3)", .number = &args.repeats, .min = 1,
     .max = SPREAD_REPEATS_MAX},
    {"--steps", "N", "measured steps of a run, after 2 others (20)", .number = &args.steps,
     .min = 1, .max = MEASURED_STEPS_MAX},
    BENCH_PRICE_OPTION(args.price, "this machine"),
    {"--set", "KEY=VALUE", "changes a key of the config; repeatable", .set = dpt_bench_add_set,
     .ctx = &args.sets}};

/* The config for a call without --config. */
static enum dpt_status write_own_config(const char *dir, char ret_path[BENCH_PATH_BYTES],
                                        struct dpt_err *err)
{
    char text[1024], path[BENCH_PATH_BYTES];
    DPT_TRY(dpt_fs_join(dir, "text.txt", path, sizeof path, err));
    DPT_TRY(bench_text_write(path, TEXT_BYTES, err));
    (void)snprintf(text, sizeof text,
                   "run: accumulation\n"
                   "cluster: {gpus_per_node: 1, device: cpu, threads: 1, timeout_s: 60}\n"
                   "model: {n_layer: 4, n_head: 4, n_embd: 256, context: 64, vocab: 8192}\n"
                   "data: {kind: text, train: \"%s\", tokenizer: bytes}\n"
                   "train: {global_batch: 16, seq_len: 64}\n"
                   "optimizer: {name: adamw, lr: 1.0e-3}\n",
                   path);
    DPT_TRY(dpt_fs_join(dir, "config.yaml", ret_path, BENCH_PATH_BYTES, err));
    return dpt_fs_write_file_atomic(ret_path, text, strlen(text), err);
}

/* Adds a row, or prints the reason why it cannot run. */
static enum dpt_status add_row(const char *path, int micro_batch, int ranks, struct dpt_err *err)
{
    if (args.n == ROWS_MAX)
        return dpt_fail(err, DPT_EINVAL, "more than %d micro-batches and worlds", ROWS_MAX);
    struct accumulation_row *row = &args.rows[args.n];
    const struct user_config_changes changes = {.sets = args.sets.set,
                                                .n_sets = args.sets.n,
                                                .nodes = ranks,
                                                .steps = WARMUP_STEPS + args.steps,
                                                .micro_batch = micro_batch};
    *row = (struct accumulation_row){.micro_batch = micro_batch, .ranks = ranks};
    const enum dpt_status status = user_config_load(path, &changes, &row->user, err);
    if (status == DPT_ECONFIG) {
        (void)fprintf(stderr, "micro-batch %d on %d ranks is left out: %.*s\n", micro_batch, ranks,
                      WHY_BYTES, err->text);
        return DPT_OK;
    }
    DPT_TRY(status);
    row->slots = dpt_config_slots(&row->user.config);
    if (ranks <= dpt_config_world_max(&row->user.config))
        args.n++;
    else
        (void)fprintf(stderr, "micro-batch %d on %d ranks is left out: a step has %d slots\n",
                      micro_batch, ranks, row->slots);
    return DPT_OK;
}

static enum dpt_status accumulation_prepare(const char *dir, char path[BENCH_PATH_BYTES],
                                            struct dpt_err *err)
{
    if (args.config && snprintf(path, BENCH_PATH_BYTES, "%s", args.config) >= BENCH_PATH_BYTES)
        return dpt_fail(err, DPT_EINVAL, "--config: the path is too long");
    if (!args.config)
        DPT_TRY(write_own_config(dir, path, err));
    for (int m = 0; m < args.micros.n; m++)
        for (int w = 0; w < args.worlds.n; w++)
            DPT_TRY(add_row(path, (int)args.micros.values[m], (int)args.worlds.values[w], err));
    return args.n > 0 ? DPT_OK : dpt_fail(err, DPT_ECONFIG, "there is no micro-batch to measure");
}

/* ---- runs ---- */

static enum dpt_status take_result(struct accumulation_row *row, struct measured *r,
                                   struct dpt_err *err)
{
    measured_keep_hash(r, row->n_runs == 0, row->hash);
    if (!row->hash[0] && !dpt_strategy_traits(&row->user.config).lane_per_rank)
        return dpt_fail(err, DPT_ECORRUPT,
                        "two runs with micro-batch %d on %d ranks end with different weights",
                        row->micro_batch, row->ranks);
    row->step_ms[row->n_runs++] = dpt_median(r->step_ms, r->n);
    row->held_bytes = r->held_bytes;
    row->own_bytes = r->device_bytes > 0 ? r->device_bytes : r->own_bytes;
    row->n_losses = r->n_losses;
    memcpy(row->losses, r->losses, sizeof row->losses);
    return DPT_OK;
}

static enum dpt_status run_row(const char *folder, const char *path, struct accumulation_row *row,
                               struct dpt_err *err)
{
    static struct measured result;
    char dir[DPT_BENCH_DIR_BYTES + 64];
    (void)snprintf(dir, sizeof dir, "%s/%d-%d-%d", folder, row->micro_batch, row->ranks,
                   row->n_runs);
    const struct measured_run run = {.dir = dir,
                                     .config = path,
                                     .sets = row->user.set,
                                     .n_sets = row->user.n_sets,
                                     .nodes = row->ranks,
                                     .hosts = 1,
                                     .warmup = WARMUP_STEPS,
                                     .steps = (int)args.steps,
                                     .timeout_ms = RUN_TIMEOUT_MS};
    DPT_TRY(dpt_wrap(err, measured_run(&run, &result, err), "micro-batch %d on %d ranks",
                     row->micro_batch, row->ranks));
    return take_result(row, &result, err);
}

static enum dpt_status accumulation_measure(const char *folder, const char *path,
                                            struct dpt_err *err)
{
    for (int repeat = 0; repeat < args.repeats; repeat++)
        for (int i = 0; i < args.n; i++)
            DPT_TRY(run_row(folder, path, &args.rows[i], err));
    return DPT_OK;
}

/* ---- the report ---- */

/* The largest difference of the losses of a step, relative to the first row's. */
static double loss_difference(const struct accumulation_row *row)
{
    const struct accumulation_row *first = &args.rows[0];
    double most = 0;
    for (int i = 0; i < row->n_losses && i < first->n_losses; i++)
        most = fmax(most, fabs(row->losses[i] / first->losses[i] - 1));
    return most;
}

/* At the median step; all ranks are on this machine. */
static double dollars_per_1m(const struct accumulation_row *row)
{
    const struct dpt_config *c = &row->user.config;
    const double work =
        (double)c->train.global_batch * (dpt_config_reads_images(c) ? 1 : c->train.seq_len);
    const struct spread step = spread_of(row->step_ms, row->n_runs);
    return bench_dollars_per_1m(args.price.value, 1, work * 1e3 / step.median);
}

static double dollars_of_all(void)
{
    double dollars = 0;
    for (int i = 0; i < args.n; i++)
        for (int k = 0; k < args.rows[i].n_runs; k++)
            dollars += bench_dollars(args.price.value, 1,
                                     (double)args.steps * args.rows[i].step_ms[k] * 1e-3);
    return dollars;
}

static void accumulation_print(void)
{
    const struct dpt_config *c = &args.rows[0].user.config;
    const bool priced = args.price.value > 0;
    printf("%s, global batch %d: %d runs of %d steps of each row, in turn\n\n",
           dpt_config_strategy_word(c), c->train.global_batch, (int)args.repeats, (int)args.steps);
    printf("%11s %6s %6s %9s %19s %10s %10s %10s %10s %11s", "micro_batch", "slots", "ranks",
           "step ms", "runs", "held MiB", "peak MiB", "first loss", "last loss", "difference");
    if (priced)
        printf(" %11s", dpt_config_reads_images(c) ? "$/1M images" : "$/1M tokens");
    printf("  weights_hash\n");
    for (int i = 0; i < args.n; i++) {
        const struct accumulation_row *row = &args.rows[i];
        const struct spread step = spread_of(row->step_ms, row->n_runs);
        char runs[32];
        (void)snprintf(runs, sizeof runs, "%.1f … %.1f", step.min, step.max);
        printf("%11d %6d %6d %9.1f %21s %10.1f %10.1f %10.5f %10.5f %11.1e", row->micro_batch,
               row->slots, row->ranks, step.median, runs, (double)row->held_bytes / 0x1p20,
               (double)row->own_bytes / 0x1p20, row->losses[0], row->losses[row->n_losses - 1],
               loss_difference(row));
        if (priced)
            printf(" %11.6f", dollars_per_1m(row));
        printf("  %.16s\n", row->hash);
    }
    printf("\nheld: the account of the rank that holds most; peak: its process, or its GPU; "
           "difference: the largest of a step's loss from the first row's, relative\n");
}

static json_t *row_json(const struct accumulation_row *row)
{
    const struct spread step = spread_of(row->step_ms, row->n_runs);
    json_t *losses = json_array();
    for (int i = 0; i < row->n_losses; i++)
        (void)json_array_append_new(losses, json_real(row->losses[i]));
    json_t *object = json_pack(
        "{s:i, s:i, s:i, s:i, s:f, s:f, s:f, s:I, s:I, s:f, s:o, s:s}", "micro_batch",
        row->micro_batch, "slots", row->slots, "ranks", row->ranks, "runs", row->n_runs, "step_ms",
        step.median, "step_ms_min", step.min, "step_ms_max", step.max, "held_bytes",
        (json_int_t)row->held_bytes, "peak_bytes", (json_int_t)row->own_bytes, "loss_difference",
        loss_difference(row), "losses", losses, "weights_hash", row->hash);
    if (args.price.value > 0)
        (void)json_object_set_new(object, "dollars_per_1m", json_real(dollars_per_1m(row)));
    return object;
}

/* Rows of one micro-batch have one hash. */
static enum dpt_status check_rows(struct dpt_err *err)
{
    for (int i = 1; i < args.n; i++) {
        const struct accumulation_row *row = &args.rows[i], *before = &args.rows[i - 1];
        if (row->micro_batch == before->micro_batch && strcmp(row->hash, before->hash) != 0 &&
            !dpt_strategy_traits(&row->user.config).lane_per_rank)
            return dpt_fail(err, DPT_ECORRUPT,
                            "micro-batch %d: %d and %d ranks end with different weights",
                            row->micro_batch, before->ranks, row->ranks);
    }
    return DPT_OK;
}

static enum dpt_status accumulation_report(json_t **ret_report, struct dpt_err *err)
{
    json_t *rows = json_array();
    accumulation_print();
    for (int i = 0; i < args.n; i++)
        (void)json_array_append_new(rows, row_json(&args.rows[i]));
    *ret_report =
        json_pack("{s:s, s:s?, s:i, s:I, s:I, s:o}", "bench", "accumulation", "config", args.config,
                  "global_batch", args.rows[0].user.config.train.global_batch, "repeats",
                  (json_int_t)args.repeats, "steps", (json_int_t)args.steps, "rows", rows);
    bench_cost_tell(args.price.value, dollars_of_all(), *ret_report);
    return check_rows(err);
}

static enum dpt_status run_accumulation(json_t **ret_report, struct dpt_err *err)
{
    char dir[DPT_BENCH_DIR_BYTES], path[BENCH_PATH_BYTES];
    DPT_TRY(dpt_bench_dir_create(NULL, "accumulation", dir, err));
    enum dpt_status status = bench_programs_begin(err);
    if (status == DPT_OK)
        status = accumulation_prepare(dir, path, err);
    if (status == DPT_OK)
        status = accumulation_measure(dir, path, err);
    if (status == DPT_OK)
        status = accumulation_report(ret_report, err);
    dpt_bench_dir_remove(dir);
    return status;
}

const struct dpt_bench dpt_bench_accumulation = {
    .name = "accumulation",
    .help = "one global batch in micro-batches of different sizes: time, memory, convergence",
    .options = options,
    .n_options = sizeof options / sizeof *options,
    .run = run_accumulation};
