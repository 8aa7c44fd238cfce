/* dpt-bench compare: configs of the user's beside each other, with the real programs on this
 * machine: time and rate of a step, peak memory, and sentences that follow from the figures.
 *
 * The runs of all configs alternate, repeat after repeat, in worlds of one number of nodes. */
#include "worker/bench/bench.h"
#include "worker/bench/compare_text.h"
#include "worker/bench/cost.h"
#include "worker/bench/measured_run.h"
#include "worker/bench/programs.h"
#include "worker/bench/user_config.h"

#include "base/strategy_traits.h"

#include <stdio.h>
#include <string.h>

enum { METHODS_MAX = 8, NAME_BYTES = 32, KEYS_BYTES = 512, RUN_TIMEOUT_MS = 60 * 60 * 1000 };

struct method {
    char name[NAME_BYTES];
    const char *path;
    struct user_config user;
    struct compare_figures figures;
    char hash[MEASURED_HASH_BYTES];
    int world_size;
    double loss;
};

static struct {
    int n;
    struct method methods[METHODS_MAX];
    struct dpt_bench_sets sets;
    struct dpt_bench_real price; /* of this machine and hour; 0: not given */
    int64_t repeats, steps, warmup, nodes;
} args = {.price = {BENCH_PRICE_RANGE}, .repeats = 5, .steps = 10, .warmup = 2};

static enum dpt_status add_method(const char *name, size_t bytes, const char *path,
                                  struct dpt_err *err)
{
    if (args.n == METHODS_MAX)
        return dpt_fail(err, DPT_EINVAL, "more than %d configs", METHODS_MAX);
    if (bytes == 0 || bytes >= NAME_BYTES || !*path)
        return dpt_fail(err, DPT_EINVAL,
                        "expected NAME=FILE with a name of at most %d bytes, got '%.40s'",
                        NAME_BYTES - 1, name);
    struct method *m = &args.methods[args.n++];
    (void)snprintf(m->name, sizeof m->name, "%.*s", (int)bytes, name);
    m->path = path;
    return DPT_OK;
}

/* ctx: the method's name. */
static enum dpt_status set_named(void *ctx, const char *value, struct dpt_err *err)
{
    return add_method(ctx, strlen(ctx), value, err);
}

static enum dpt_status set_config(void *ctx, const char *value, struct dpt_err *err)
{
    (void)ctx;
    const size_t bytes = strcspn(value, "=");
    return add_method(value, bytes, value + bytes + (value[bytes] == '='), err);
}

static char ddp_name[] = "ddp", fsdp_name[] = "fsdp";

static const struct dpt_option options[] = {
    {"--ddp-config", "FILE", "a config of dpt-worker, named ddp in the table", .set = set_named,
     .ctx = ddp_name},
    {"--fsdp-config", "FILE", "another, named fsdp", .set = set_named, .ctx = fsdp_name},
    {"--config", "NAME=FILE", "a config with any name; repeatable, at most 8 in all",
     .set = set_config},
    {"--repeats", "N", "runs of each config (5)", .number = &args.repeats, .min = 1,
     .max = SPREAD_REPEATS_MAX},
    {"--steps", "N", "measured steps of a run (10)", .number = &args.steps, .min = 1,
     .max = MEASURED_STEPS_MAX},
    {"--warmup", "N", "steps before them (2)", .number = &args.warmup, .min = 0,
     .max = MEASURED_WARMUP_MAX},
    {"--nodes", "N", "cluster.nnodes of every run (the largest minimum of the configs)",
     .number = &args.nodes, .min = 1, .max = BENCH_NODES_MAX},
    BENCH_PRICE_OPTION(args.price, "this machine"),
    {"--set", "KEY=VALUE", "changes a key of all configs; repeatable", .set = dpt_bench_add_set,
     .ctx = &args.sets}};

/* ---- runs ---- */

static enum dpt_status load_methods(int nodes, struct dpt_err *err)
{
    const struct user_config_changes changes = {.sets = args.sets.set,
                                                .n_sets = args.sets.n,
                                                .nodes = nodes,
                                                .steps = args.warmup + args.steps};
    for (int i = 0; i < args.n; i++)
        DPT_TRY(dpt_wrap(
            err, user_config_load(args.methods[i].path, &changes, &args.methods[i].user, err), "%s",
            args.methods[i].name));
    return DPT_OK;
}

/* Reads the configs; then again with the nodes of all runs. */
static enum dpt_status compare_prepare(struct dpt_err *err)
{
    if (args.n < 2)
        return dpt_fail(err, DPT_EINVAL,
                        "expected two configs at least: --ddp-config FILE --fsdp-config FILE, or "
                        "--config NAME=FILE");
    DPT_TRY(load_methods((int)args.nodes, err));
    for (int i = 0; i < args.n; i++)
        if (args.methods[i].user.config.cluster.nnodes_min > args.nodes)
            args.nodes = args.methods[i].user.config.cluster.nnodes_min;
    if (args.nodes > BENCH_NODES_MAX)
        return dpt_fail(err, DPT_ECONFIG, "the configs need %d nodes, more than %d; give --nodes",
                        (int)args.nodes, BENCH_NODES_MAX);
    return load_methods((int)args.nodes, err);
}

static void compare_take(struct method *m, const struct measured *r)
{
    struct compare_figures *f = &m->figures;
    double sum = 0;
    for (int i = 0; i < r->n; i++)
        sum += r->step_ms[i];
    f->step_s[f->n] = sum * 1e-3 / r->n;
    f->memory[f->n] = (double)(r->device_bytes > 0 ? r->device_bytes : r->own_bytes);
    f->wait_share[f->n] = r->wait_share;
    f->sent_bytes = r->sent_bytes;
    measured_keep_hash(r, f->n++ == 0, m->hash);
    m->world_size = r->world_size;
    m->loss = r->loss;
}

/* The config decides the order of addition, unless it leaves the order open. */
static enum dpt_status compare_check_hash(const struct method *m, struct dpt_err *err)
{
    if (m->hash[0] || dpt_strategy_traits(&m->user.config).lane_per_rank)
        return DPT_OK;
    return dpt_fail(err, DPT_ECORRUPT, "two runs of %s (%s) ended with different weights", m->name,
                    m->path);
}

static enum dpt_status compare_run(const char *folder, struct method *m, struct dpt_err *err)
{
    static struct measured result;
    char dir[DPT_BENCH_DIR_BYTES + 64];
    (void)snprintf(dir, sizeof dir, "%s/%d-%d", folder, (int)(m - args.methods), m->figures.n);
    const struct measured_run run = {.dir = dir,
                                     .config = m->path,
                                     .sets = m->user.set,
                                     .n_sets = m->user.n_sets,
                                     .nodes = (int)args.nodes,
                                     .hosts = 1,
                                     .warmup = (int)args.warmup,
                                     .steps = (int)args.steps,
                                     .timeout_ms = RUN_TIMEOUT_MS};
    DPT_TRY(dpt_wrap(err, measured_run(&run, &result, err), "%s", m->name));
    compare_take(m, &result);
    return compare_check_hash(m, err);
}

static enum dpt_status compare_measure(const char *folder, struct dpt_err *err)
{
    for (int repeat = 0; repeat < args.repeats; repeat++)
        for (int i = 0; i < args.n; i++)
            DPT_TRY(compare_run(folder, &args.methods[i], err));
    return DPT_OK;
}

/* ---- the report ---- */

static bool of_images(const struct method *m)
{
    return dpt_config_reads_images(&m->user.config);
}

/* Images or tokens of a step. */
static double work_of(const struct method *m)
{
    const struct dpt_config_train *t = &m->user.config.train;
    return (double)t->global_batch * (of_images(m) ? 1 : t->seq_len);
}

static struct spread rate_of(const struct method *m)
{
    double rate[SPREAD_REPEATS_MAX];
    for (int i = 0; i < m->figures.n; i++)
        rate[i] = work_of(m) / m->figures.step_s[i];
    return spread_of(rate, m->figures.n);
}

/* What all methods count: one of three words. */
static const char *work_word(const char *images_word, const char *tokens_word,
                             const char *both_word)
{
    int images = 0;
    for (int i = 0; i < args.n; i++)
        images += of_images(&args.methods[i]);
    return images == args.n ? images_word : images == 0 ? tokens_word : both_word;
}

/* All nodes of a run are on this machine. */
static double dollars_per_1m(const struct method *m)
{
    return bench_dollars_per_1m(args.price.value, 1, rate_of(m).mean);
}

static double dollars_of_all(void)
{
    double dollars = 0;
    for (int i = 0; i < args.n; i++)
        for (int k = 0; k < args.methods[i].figures.n; k++)
            dollars += bench_dollars(args.price.value, 1,
                                     (double)args.steps * args.methods[i].figures.step_s[k]);
    return dollars;
}

static void compare_print_row(const struct method *m)
{
    const struct spread step = spread_of(m->figures.step_s, m->figures.n), rate = rate_of(m),
                        memory = spread_of(m->figures.memory, m->figures.n);
    char steps[48], rates[48], memories[48];
    (void)snprintf(steps, sizeof steps, "%.4f ± %.4f", step.mean, step.deviation);
    (void)snprintf(rates, sizeof rates, "%.1f ± %.1f", rate.mean, rate.deviation);
    (void)snprintf(memories, sizeof memories, "%.1f ± %.1f", memory.mean / 0x1p20,
                   memory.deviation / 0x1p20);
    printf("%-16s | %-18s | %-20s | ", m->name, steps, rates);
    if (args.price.value > 0)
        printf("%-17s | %.6f\n", memories, dollars_per_1m(m));
    else
        printf("%s\n", memories);
}

static void compare_print_head(void)
{
    printf("%-16s | %-17s | %-19s | ", "Method", "Avg step time (s)",
           work_word("Images/sec", "Tokens/sec", "Images or tokens/sec"));
    if (args.price.value > 0)
        printf("%-16s | %s\n", "Peak memory (MB)",
               work_word("$ per 1M images", "$ per 1M tokens", "$ per 1M images or tokens"));
    else
        printf("Peak memory (MB)\n");
}

/* Prints the sentences about each method beside the first, and returns them as JSON. */
static json_t *compare_tell(void)
{
    char keys[KEYS_BYTES], sentences[COMPARE_SENTENCES_MAX][COMPARE_SENTENCE_BYTES];
    static const char *const length[] = {"train.steps", "optimizer.warmup_steps", NULL};
    json_t *told = json_array();
    struct method *a = &args.methods[0];
    a->figures.name = a->name;
    a->figures.hash = a->hash;
    for (int i = 1; i < args.n; i++) {
        struct method *b = &args.methods[i];
        b->figures.name = b->name;
        b->figures.hash = b->hash;
        keys[0] = '\0';
        (void)dpt_config_diff(&a->user.config, &b->user.config, DPT_CONFIG_TRAJECTORY, length, keys,
                              sizeof keys);
        const int n = compare_sentences(&a->figures, &b->figures, keys, sentences);
        for (int k = 0; k < n; k++) {
            printf("- %s\n", sentences[k]);
            (void)json_array_append_new(told, json_string(sentences[k]));
        }
    }
    return told;
}

static json_t *spread_json(const double *values, int n)
{
    const struct spread s = spread_of(values, n);
    json_t *all = json_array();
    for (int i = 0; i < n; i++)
        (void)json_array_append_new(all, json_real(values[i]));
    return json_pack("{s:f, s:f, s:f, s:f, s:o}", "mean", s.mean, "deviation", s.deviation, "min",
                     s.min, "max", s.max, "values", all);
}

static json_t *method_json(const struct method *m)
{
    const struct compare_figures *f = &m->figures;
    const struct spread rate = rate_of(m);
    json_t *row = json_pack(
        "{s:s, s:s, s:s, s:i, s:i, s:o, s:s, s:f, s:f, s:o, s:o, s:I, s:f, s:s}", "method", m->name,
        "config", m->path, "strategy", dpt_config_strategy_word(&m->user.config), "ranks",
        m->world_size, "repeats", f->n, "step_s", spread_json(f->step_s, f->n), "unit",
        of_images(m) ? "images" : "tokens", "per_s", rate.mean, "per_s_deviation", rate.deviation,
        "peak_bytes", spread_json(f->memory, f->n), "wait_share", spread_json(f->wait_share, f->n),
        "sent_bytes", (json_int_t)f->sent_bytes, "loss", m->loss, "weights_hash", m->hash);
    if (args.price.value > 0)
        (void)json_object_set_new(row, "dollars_per_1m", json_real(dollars_per_1m(m)));
    return row;
}

static json_t *compare_report(void)
{
    json_t *rows = json_array();
    printf("%d repeats of %d steps on %d node%s of this machine, in turn\n\n", (int)args.repeats,
           (int)args.steps, (int)args.nodes, args.nodes > 1 ? "s" : "");
    compare_print_head();
    for (int i = 0; i < args.n; i++) {
        compare_print_row(&args.methods[i]);
        (void)json_array_append_new(rows, method_json(&args.methods[i]));
    }
    printf("\nmean ± deviation of the repeats; memory of the rank that needs most, MB of 2^20 "
           "bytes\n\n");
    json_t *told = compare_tell();
    json_t *report = json_pack("{s:s, s:I, s:I, s:I, s:I, s:o, s:o}", "bench", "compare", "nodes",
                               (json_int_t)args.nodes, "repeats", (json_int_t)args.repeats, "steps",
                               (json_int_t)args.steps, "warmup", (json_int_t)args.warmup, "rows",
                               rows, "observations", told);
    bench_cost_tell(args.price.value, dollars_of_all(), report);
    return report;
}

static enum dpt_status run_compare(json_t **ret_report, struct dpt_err *err)
{
    char dir[DPT_BENCH_DIR_BYTES];
    DPT_TRY(compare_prepare(err));
    DPT_TRY(dpt_bench_dir_create(NULL, "compare", dir, err));
    enum dpt_status status = bench_programs_begin(err);
    if (status == DPT_OK)
        status = compare_measure(dir, err);
    if (status == DPT_OK)
        *ret_report = compare_report();
    dpt_bench_dir_remove(dir);
    return status;
}

const struct dpt_bench dpt_bench_compare = {
    .name = "compare",
    .help = "configs beside each other: time, rate and memory of a step, with observations",
    .options = options,
    .n_options = sizeof options / sizeof *options,
    .run = run_compare};
