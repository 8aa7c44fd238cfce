/* dpt-bench scaling: one model in worlds of different size, with the real programs on this machine.
 * Speed-up and efficiency with their spread, exposed communication, waits for late ranks, and the
 * cause of most lost time.
 *
 * The runs of all worlds alternate, round after round: each round gives one speed-up of each world,
 * beside the run of the smallest world in the same round. Each rank has its own node, but dp, GPUs
 * and hybrid_shard have several ranks a node. */
#include "worker/bench/bench_scaling.h"

#include "base/cores.h"
#include "base/fs.h"
#include "base/median.h"
#include "base/strategy_traits.h"
#include "worker/bench/programs.h"
#include "worker/model/model.h"
#include "worker/planner/planned_world.h"
#include "worker/planner/strategies.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    TEXT_BYTES = 400 * 1000,
    WARMUP_STEPS = 2,
    COUNT_MAX = 1 << 16,
    WHY_BYTES = 1024,
    RUN_TIMEOUT_MS = 30 * 60 * 1000
};

static struct scaling_args args = {
    .strategies = "ddp",
    .model = "n_layer: 4, n_head: 4, n_embd: 256, context: 64, vocab: 8192, dropout: 0.0",
    .precision = "fp32",
    .accumulate = "auto",
    .worlds = {.min = 1, .max = SCALING_RANKS_MAX, .n = 4, .values = {1, 2, 4, 8}},
    .batch = 16,
    .micro_batch = 2,
    .seq_len = 64,
    .threads = 1,
    .hosts = 1,
    .rounds = 5,
    .steps = 8,
    .price = {BENCH_PRICE_RANGE}};
static bool strong;
static const char *html; /* NULL: no page */

static const struct dpt_option options[] = {
    {"--worlds", "N,...", "numbers of ranks; the smallest is the base (1,2,4,8)",
     .set = dpt_bench_set_list, .ctx = &args.worlds},
    {"--strong", .help = "every world has the same global batch (the default)", .flag = &strong},
    {"--weak", .help = "every rank has the same batch", .flag = &args.weak},
    {"--strategy", "NAME,...", "ddp, zero2, full_shard, zero2+shadow, ... (ddp)",
     .text = &args.strategies},
    {"--model", "KEYS", "keys of the config's section model (a GPT-2 of 4 blocks)",
     .text = &args.model},
    {"--preset", "NAME", "model.preset, or tiny; instead of --model", .text = &args.preset},
    {"--precision", "fp32|bf16|fp16", "train.precision (fp32)", .text = &args.precision},
    {"--accumulate", "auto|local|reduce", "train.accumulate (auto)", .text = &args.accumulate},
    {"--batch", "N", "strong: train.global_batch; weak: samples of a rank (16)",
     .number = &args.batch, .min = 1, .max = COUNT_MAX},
    {"--micro", "N", "train.micro_batch (2)", .number = &args.micro_batch, .min = 1,
     .max = COUNT_MAX},
    {"--seq", "N", "train.seq_len (64)", .number = &args.seq_len, .min = 1, .max = COUNT_MAX},
    {"--threads", "N", "compute threads of a rank (1)", .number = &args.threads, .min = 1,
     .max = DPT_BENCH_THREADS_MAX},
    {"--hosts", "N", "hosts that share the ranks, connected by sockets; at most one a rank (1)",
     .number = &args.hosts, .min = 1, .max = SCALING_RANKS_MAX},
    {"--rounds", "N", "runs of each world (5)", .number = &args.rounds, .min = 1,
     .max = SPREAD_REPEATS_MAX},
    {"--steps", "N", "measured steps of a run (8)", .number = &args.steps, .min = 1,
     .max = MEASURED_STEPS_MAX},
    BENCH_PRICE_OPTION(args.price, "one of the hosts"),
    {"--set", "KEY=VALUE", "changes a key of the config; repeatable", .set = dpt_bench_add_set,
     .ctx = &args.sets},
    {"--html", "FILE", "writes a page with charts to FILE", .text = &html}};

/* The keys of section `strategy` for a label of worker/planner/strategies.h, else for a name. */
static void strategy_keys(const char *label, char ret[128])
{
    (void)snprintf(ret, 128, "name: %s", label);
    for (int i = 0; i < DPT_PLAN_STRATEGIES; i++) {
        const struct dpt_plan_strategy *s = &dpt_plan_strategies[i];
        if (strcmp(s->label, label) == 0)
            (void)snprintf(ret, 128, "name: %s, sharding: %s, redundancy: %s", s->name,
                           s->sharding_word, s->shadow ? "shadow" : "none");
    }
}

static void scaling_config_text(const struct scaling_bench *b, const struct scaling_world *w,
                                char ret[SCALING_TEXT_BYTES])
{
    const struct scaling_args *a = &b->args;
    char strategy[128], preset[DPT_BENCH_MODEL_BYTES];
    if (a->preset)
        dpt_bench_model_keys(a->preset, preset);
    strategy_keys(w->label, strategy);
    (void)snprintf(ret, SCALING_TEXT_BYTES,
                   "run: scaling\n"
                   "cluster: {nnodes: %d, gpus_per_node: %d, device: cpu, threads: %d, "
                   "timeout_s: 60}\n"
                   "model: {%s}\n"
                   "data: {kind: text, train: \"%s/text.txt\", tokenizer: bytes}\n"
                   "train: {steps: %d, global_batch: %d, micro_batch: %d, seq_len: %d, "
                   "precision: %s, accumulate: %s, log_every: 1}\n"
                   "optimizer: {name: adamw, lr: 1.0e-3}\n"
                   "strategy: {%s}\n"
                   "checkpoint: {dir: null}\n"
                   "log: {tensorboard: false}\n",
                   w->nodes, w->ranks / w->nodes, (int)a->threads, a->preset ? preset : a->model,
                   b->dir, (int)a->steps + WARMUP_STEPS, w->global_batch, (int)a->micro_batch,
                   (int)a->seq_len, a->precision, a->accumulate, strategy);
}

static enum dpt_status load_world(const struct scaling_bench *b, const struct scaling_world *w,
                                  struct dpt_config *ret, struct dpt_err *err)
{
    char text[SCALING_TEXT_BYTES];
    scaling_config_text(b, w, text);
    DPT_TRY(
        dpt_config_load_text(text, w->label, b->args.sets.set, (size_t)b->args.sets.n, ret, err));
    const int most = dpt_config_world_max(ret);
    if (w->ranks > most)
        return dpt_fail(err, DPT_ECONFIG, "a step of this batch occupies %d ranks at most", most);
    return DPT_OK;
}

/* The hosts and nodes of the world. DPT_ECONFIG: they cannot share its ranks evenly. */
static enum dpt_status place_world(const struct scaling_bench *b, struct scaling_world *w,
                                   enum dpt_state_scope state, struct dpt_err *err)
{
    w->hosts = (int)b->args.hosts < w->ranks ? (int)b->args.hosts : w->ranks;
    w->nodes = w->ranks;
    if (b->cuda)
        w->nodes = w->hosts;
    else if (state == DPT_STATE_FIRST)
        w->nodes = w->hosts = 1;
    else if (state == DPT_STATE_PER_NODE)
        w->nodes = w->hosts > 1 || w->ranks == 1 ? w->hosts : 2;
    if (w->ranks % w->hosts != 0 || w->ranks % w->nodes != 0)
        return dpt_fail(err, DPT_ECONFIG, "%d hosts with %d nodes cannot share them evenly",
                        w->hosts, w->nodes);
    return DPT_OK;
}

static enum dpt_status make_world(struct scaling_bench *b, struct scaling_world *w,
                                  struct dpt_err *err)
{
    static struct dpt_config config;
    static struct dpt_planned_world planned;
    w->nodes = 1; /* until the strategy is known */
    char text[SCALING_TEXT_BYTES];
    scaling_config_text(b, w, text);
    const struct dpt_config_input input = {.text = text,
                                           .bytes = strlen(text),
                                           .name = w->label,
                                           .overrides = b->args.sets.set,
                                           .n_overrides = (size_t)b->args.sets.n};
    DPT_TRY(dpt_config_parse(&input, &config, err));
    b->cuda = config.cluster.device == DPT_DEVICE_CUDA;
    DPT_TRY(place_world(b, w, dpt_strategy_traits(&config).state, err));
    DPT_TRY(load_world(b, w, &config, err));
    const struct dpt_strategy_traits traits = dpt_strategy_traits(&config);
    dpt_planned_world_init(&planned, &config,
                           (struct dpt_world_shape){w->nodes, w->ranks / w->nodes});
    w->waves = dpt_planned_world_waves(&config, &planned.world);
    w->point.busiest = (double)w->waves * w->ranks / dpt_config_slots(&config);
    w->one_hash = !traits.lane_per_rank;
    return DPT_OK;
}

/* Adds the world, or prints the reason why it cannot run. `first`: index of the strategy's first
 * world. */
static void add_world(struct scaling_bench *b, const char *label, int first, int ranks)
{
    struct dpt_err err = {.text = ""};
    struct scaling_world *w = &b->worlds[b->n];
    *w = (struct scaling_world){.ranks = ranks, .base = first};
    (void)snprintf(w->label, sizeof w->label, "%s", label);
    w->global_batch = (int)(b->args.weak ? b->args.batch * ranks : b->args.batch);
    if (make_world(b, w, &err) == DPT_OK)
        b->n++;
    else
        (void)fprintf(stderr, "%s on %d rank%s is left out: %.*s\n", label, ranks,
                      ranks > 1 ? "s" : "", WHY_BYTES, err.text);
}

static int compare_worlds(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static enum dpt_status add_strategies(struct scaling_bench *b, struct dpt_err *err)
{
    struct dpt_bench_list *worlds = &b->args.worlds;
    qsort(worlds->values, (size_t)worlds->n, sizeof *worlds->values, compare_worlds);
    int strategies = 0;
    for (const char *at = b->args.strategies; at; at = strchr(at, ',')) {
        char label[32];
        at += *at == ',';
        (void)snprintf(label, sizeof label, "%.*s", (int)strcspn(at, ","), at);
        if (strategies++ == SCALING_STRATEGIES_MAX || worlds->n > SCALING_WORLDS_MAX)
            return dpt_fail(err, DPT_EINVAL, "at most %d strategies in %d worlds",
                            SCALING_STRATEGIES_MAX, SCALING_WORLDS_MAX);
        for (int i = 0, first = b->n; i < worlds->n; i++)
            if (i == 0 || worlds->values[i] != worlds->values[i - 1])
                add_world(b, label, first, (int)worlds->values[i]);
    }
    return b->n > 0 ? DPT_OK : dpt_fail(err, DPT_ECONFIG, "there is no world to measure");
}

static enum dpt_status count_parameters(struct scaling_bench *b, struct dpt_err *err)
{
    static struct dpt_config config;
    struct dpt_model *model = NULL;
    DPT_TRY(load_world(b, &b->worlds[0], &config, err));
    DPT_TRY(dpt_model_create(&config, &model, err));
    b->parameters = dpt_model_param_count(model);
    dpt_model_destroy(&model);
    return DPT_OK;
}

static enum dpt_status scaling_prepare(struct scaling_bench *b, struct dpt_err *err)
{
    char path[BENCH_PATH_BYTES];
    DPT_TRY(dpt_fs_join(b->dir, "text.txt", path, sizeof path, err));
    DPT_TRY(bench_text_write(path, TEXT_BYTES, err));
    DPT_TRY(add_strategies(b, err));
    DPT_TRY(count_parameters(b, err));
    b->cores = dpt_cores();
    b->processors = b->cores < b->args.threads ? 1 : (double)b->cores / (double)b->args.threads;
    if (b->cuda) {
        char fingerprint[DPT_FINGERPRINT_BYTES];
        DPT_TRY(dpt_device_cuda_look(&b->devices, fingerprint, err));
        b->processors = b->devices;
    }
    return DPT_OK;
}

/* The result of one run goes to the world's figures of this round. */
static void take_run(struct scaling_world *w, struct measured *m)
{
    const int i = w->n_runs++;
    w->step_ms[i] = dpt_median(m->step_ms, m->n);
    w->exposed_ms[i] = dpt_median(m->exposed_ms, m->n);
    w->late_ms[i] = dpt_median(m->late_ms, m->n);
    w->sent_bytes = m->sent_bytes;
    measured_keep_hash(m, i == 0, w->hash);
}

static enum dpt_status run_world(const struct scaling_bench *b, struct scaling_world *w,
                                 struct dpt_err *err)
{
    static struct measured result;
    char dir[DPT_BENCH_DIR_BYTES + 64], text[SCALING_TEXT_BYTES];
    (void)snprintf(dir, sizeof dir, "%s/%s-%d-%d", b->dir, w->label, w->ranks, w->n_runs);
    scaling_config_text(b, w, text);
    const struct measured_run run = {.dir = dir,
                                     .text = text,
                                     .sets = b->args.sets.set,
                                     .n_sets = b->args.sets.n,
                                     .nodes = w->nodes,
                                     .hosts = w->hosts,
                                     .warmup = WARMUP_STEPS,
                                     .steps = (int)b->args.steps,
                                     .timeout_ms = RUN_TIMEOUT_MS};
    DPT_TRY(dpt_wrap(err, measured_run(&run, &result, err), "%s on %d ranks", w->label, w->ranks));
    take_run(w, &result);
    return DPT_OK;
}

static enum dpt_status scaling_measure(struct scaling_bench *b, struct dpt_err *err)
{
    for (int round = 0; round < b->args.rounds; round++)
        for (int i = 0; i < b->n; i++)
            DPT_TRY(run_world(b, &b->worlds[i], err));
    return DPT_OK;
}

/* All runs of a strategy on one batch end with the same weights, in every world. */
static enum dpt_status check_hashes(const struct scaling_bench *b, struct dpt_err *err)
{
    for (int i = 0; i < b->n; i++) {
        const struct scaling_world *w = &b->worlds[i], *base = &b->worlds[w->base];
        if (w->one_hash && !w->hash[0])
            return dpt_fail(err, DPT_ECORRUPT,
                            "two runs of %s on %d ranks ended with different "
                            "weights",
                            w->label, w->ranks);
        if (w->one_hash && !b->args.weak && strcmp(w->hash, base->hash) != 0)
            return dpt_fail(err, DPT_ECORRUPT, "%s ended with other weights on %d ranks than on %d",
                            w->label, w->ranks, base->ranks);
    }
    return DPT_OK;
}

/* Of the measured steps, on the hosts of each world. */
static double dollars_of_all(const struct scaling_bench *b)
{
    double dollars = 0;
    for (int i = 0; i < b->n; i++)
        for (int k = 0; k < b->worlds[i].n_runs; k++)
            dollars += bench_dollars(b->args.price.value, b->worlds[i].hosts,
                                     (double)b->args.steps * b->worlds[i].step_ms[k] * 1e-3);
    return dollars;
}

static enum dpt_status scaling_report(struct scaling_bench *b, json_t **ret_report,
                                      struct dpt_err *err)
{
    scaling_conclude(b);
    scaling_print(b);
    *ret_report = scaling_json(b);
    bench_cost_tell(b->args.price.value, dollars_of_all(b), *ret_report);
    if (html)
        DPT_TRY(scaling_page(b, html, err));
    return check_hashes(b, err);
}

static enum dpt_status run_scaling(json_t **ret_report, struct dpt_err *err)
{
    static struct scaling_bench bench;
    struct scaling_bench *b = &bench;
    b->args = args;
    if (strong && args.weak)
        return dpt_fail(err, DPT_EINVAL, "--strong and --weak exclude each other");
    DPT_TRY(dpt_bench_dir_create(NULL, "scaling", b->dir, err));
    (void)getloadavg(&b->load_before, 1);
    enum dpt_status status = bench_programs_begin(err);
    if (status == DPT_OK)
        status = scaling_prepare(b, err);
    if (status == DPT_OK)
        status = scaling_measure(b, err);
    (void)getloadavg(&b->load_after, 1);
    if (status == DPT_OK)
        status = scaling_report(b, ret_report, err);
    dpt_bench_dir_remove(b->dir);
    return status;
}

const struct dpt_bench dpt_bench_scaling = {
    .name = "scaling",
    .help = "speed-up and efficiency by the number of ranks, strong or weak, and what limits them",
    .options = options,
    .n_options = sizeof options / sizeof *options,
    .run = run_scaling};
