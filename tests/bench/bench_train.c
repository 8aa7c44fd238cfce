/* dpt-bench train: the rate of whole training steps, by the real rank (link, loader, steps, commit,
 * log) in a world of one.
 *
 * The share of the gemm rate is taken within the run: products are timed right before and after the
 * steps. Allocations are counted by this program's own malloc and mmap, on every thread but the one
 * that plays the agent, between two steps in the middle of the run. */
#include "tests/bench/bench.h"

#include "base/fs.h"
#include "base/rng.h"
#include "tests/bench/alloc_count.h"
#include "tests/tmp.h"
#include "tests/worker/train/director.h"
#include "worker/model/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WARMUP_STEPS = 2, TOKENS = 1 << 20, YAML_BYTES = 2048, COUNT_MAX = 1 << 20 };

struct train_args {
    const char *preset, *json, *checkpointing;
    int batch, seq, slots, threads, steps;
    enum dpt_dtype dtype;
    enum dpt_pack_weights pack;
};

static const char *const pack_names[] = {"auto", "on", "off"};

static bool take_pack(const char *text, enum dpt_pack_weights *ret)
{
    for (int i = DPT_PACK_WEIGHTS_AUTO; i <= DPT_PACK_WEIGHTS_OFF; i++)
        if (strcmp(text, pack_names[i]) == 0) {
            *ret = (enum dpt_pack_weights)i;
            return true;
        }
    return false;
}

static bool parse(int argc, char **argv, struct train_args *a)
{
    *a = (struct train_args){.preset = "gpt2-124m",
                             .checkpointing = "none",
                             .batch = 4,
                             .seq = 64,
                             .slots = 1,
                             .threads = 2,
                             .steps = 12};
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        bool ok = true;
        if (strcmp(argv[i], "--preset") == 0)
            a->preset = value;
        else if (strcmp(argv[i], "--json") == 0)
            a->json = value;
        else if (strcmp(argv[i], "--checkpointing") == 0)
            a->checkpointing = value;
        else if (strcmp(argv[i], "--batch") == 0)
            ok = dpt_bench_parse_int(value, 1, COUNT_MAX, &a->batch);
        else if (strcmp(argv[i], "--seq") == 0)
            ok = dpt_bench_parse_int(value, 1, COUNT_MAX, &a->seq);
        else if (strcmp(argv[i], "--slots") == 0)
            ok = dpt_bench_parse_int(value, 1, COUNT_MAX, &a->slots);
        else if (strcmp(argv[i], "--threads") == 0)
            ok = dpt_bench_parse_int(value, 1, COUNT_MAX, &a->threads);
        else if (strcmp(argv[i], "--steps") == 0)
            ok = dpt_bench_parse_int(value, 1, COUNT_MAX, &a->steps) && a->steps > WARMUP_STEPS + 2;
        else if (strcmp(argv[i], "--precision") == 0)
            ok = dpt_bench_parse_precision(value, &a->dtype);
        else if (strcmp(argv[i], "--pack-weights") == 0)
            ok = take_pack(value, &a->pack);
        else
            ok = false;
        if (!ok || !*value) {
            (void)fprintf(stderr,
                          "usage: dpt-bench train [--preset gpt2-124m] [--batch 4] [--seq 64] "
                          "[--slots 1] [--threads 2] "
                          "[--steps 12] [--precision fp32|bf16|fp16] [--pack-weights auto|on|off] "
                          "[--checkpointing none|selective|full] [--json FILE]\n"
                          "  batch: sequences a micro-batch; slots: micro-batches a step; steps: "
                          "at least %d\n",
                          WARMUP_STEPS + 3);
            return false;
        }
        i++;
    }
    return true;
}

/* A shard of tokens drawn evenly: the rate of a step does not depend on which they are. */
static enum dpt_status write_shard(const char *path, struct dpt_err *err)
{
    enum { HEADER_INTS = 256 };
    size_t bytes = HEADER_INTS * 4 + (size_t)TOKENS * 2;
    uint8_t *file = calloc(1, bytes);
    if (!file)
        return dpt_fail(err, DPT_ENOMEM, "tokens: out of memory");
    const int32_t header[] = {20240520, 1, TOKENS};
    memcpy(file, header, sizeof header);
    struct dpt_rng_key key = dpt_rng_key(1, DPT_RNG_TEST, 0, 0, 0);
    for (int i = 0; i < TOKENS; i += 4) {
        uint32_t block[4];
        uint16_t tokens[4];
        dpt_philox(key, (uint64_t)i / 4, block);
        for (int j = 0; j < 4; j++)
            tokens[j] = (uint16_t)(block[j] % 50257);
        memcpy(file + HEADER_INTS * 4 + (size_t)i * 2, tokens, sizeof tokens);
    }
    enum dpt_status status = dpt_fs_write_file_atomic(path, file, bytes, err);
    free(file);
    return status;
}

static enum dpt_status make_config(const struct train_args *a, const char *dir,
                                   struct dpt_config *ret, struct dpt_err *err)
{
    char yaml[YAML_BYTES];
    (void)snprintf(yaml, sizeof yaml,
                   "run: bench\n"
                   "cluster: {nnodes: 1, threads: %d, timeout_s: 60, pack_weights: %s}\n"
                   "model: {name: gpt2, preset: %s}\n"
                   "data: {kind: tokens, train: \"%s/tokens.bin\"}\n"
                   "train: {steps: %d, global_batch: %d, micro_batch: %d, seq_len: %d, precision: "
                   "%s, activation_checkpointing: %s, log_every: 1}\n"
                   "optimizer: {warmup_steps: 1}\n"
                   "checkpoint: {every_steps: 0}\n",
                   a->threads, pack_names[a->pack], a->preset, dir, a->steps, a->batch * a->slots,
                   a->batch, a->seq, dpt_bench_precision(a->dtype), a->checkpointing);
    return dpt_config_load(yaml, strlen(yaml), "bench", NULL, 0, ret, err);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median of step_ms over the steps after the warm-up. */
static double median_step_ms(const char *dir, int *ret_n)
{
    char path[256], line[1024];
    (void)snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    double ms[4096];
    int n = 0;
    FILE *f = fopen(path, "r");
    while (f && n < 4096 && fgets(line, sizeof line, f)) {
        json_t *object = json_loads(line, 0, NULL);
        if (json_integer_value(json_object_get(object, "step")) > WARMUP_STEPS)
            ms[n++] = json_number_value(json_object_get(object, "step_ms"));
        json_decref(object);
    }
    if (f)
        (void)fclose(f);
    *ret_n = n;
    qsort(ms, (size_t)n, sizeof *ms, by_value);
    return n > 0 ? ms[n / 2] : NAN;
}

struct train_result {
    double step_ms;
    int steps_timed;
    int64_t allocations;
    int steps_counted;
};

static void train(const struct dpt_config *config, const char *dir, struct train_result *ret)
{
    struct director *d = director_create_without_checkpoints(config, dir);
    (void)director_start(d, 0);
    if (!director_form(d, false))
        abort();
    director_await_step(d, WARMUP_STEPS);
    int64_t first = dpt_alloc_count_others();
    ret->steps_counted = -(int)director_best_step(d);
    director_await_step(d, config->train.steps - 1);
    ret->allocations = dpt_alloc_count_others() - first;
    ret->steps_counted += (int)director_best_step(d);
    (void)director_finish(d);
    director_destroy(&d);
    ret->step_ms = median_step_ms(dir, &ret->steps_timed);
}

static enum dpt_status run_in(const struct train_args *a, const char *dir, json_t **ret,
                              struct dpt_err *err)
{
    char path[256];
    static struct dpt_config config;
    struct dpt_model *model = NULL;
    struct train_result result;
    double before = 0, after = 0;
    (void)snprintf(path, sizeof path, "%s/tokens.bin", dir);
    DPT_TRY(write_shard(path, err));
    DPT_TRY(make_config(a, dir, &config, err));
    DPT_TRY(dpt_model_create(&config, &model, err));
    int64_t parameters = dpt_model_param_count(model);
    const size_t saved = dpt_model_saved_bytes(model, a->batch, a->seq),
                 scratch = dpt_model_scratch_bytes(model, a->batch, a->seq);
    dpt_model_destroy(&model);
    DPT_TRY(dpt_bench_gemm_rate(a->threads, a->dtype, &before, err));
    train(&config, dir, &result);
    DPT_TRY(dpt_bench_gemm_rate(a->threads, a->dtype, &after, err));
    double rate = before > after ? before : after;
    double tokens_per_s = (double)a->batch * a->seq * a->slots / (result.step_ms * 1e-3);
    double gflops = 6e-9 * (double)parameters * tokens_per_s;
    printf("%s in %s, B=%d T=%d, %d slots a step, %d threads: %.0f ms a step (median of %d), %.1f "
           "tokens/s\n",
           a->preset, dpt_bench_precision(a->dtype), a->batch, a->seq, a->slots, a->threads,
           result.step_ms, result.steps_timed, tokens_per_s);
    printf("6N flops a token: %.1f GFLOP/s, %.1f%% of the gemm rate of %.1f GFLOP/s\n", gflops,
           100 * gflops / rate, rate);
    printf("packed weights: %s\n", pack_names[a->pack]);
    printf("activations: %.1f MiB kept (activation_checkpointing: %s) and %.1f MiB of scratch\n",
           (double)saved / 0x1p20, a->checkpointing, (double)scratch / 0x1p20);
    printf("allocations in %d steps: %lld\n", result.steps_counted, (long long)result.allocations);
    *ret = json_pack(
        "{s:s,s:s,s:s,s:s,s:i,s:i,s:i,s:i,s:I,s:f,s:f,s:f,s:f,s:f,s:I,s:i,s:s,s:I,s:I}", "bench",
        "train", "preset", a->preset, "precision", dpt_bench_precision(a->dtype), "pack_weights",
        pack_names[a->pack], "batch", a->batch, "seq", a->seq, "slots", a->slots, "threads",
        a->threads, "parameters", (json_int_t)parameters, "step_ms", result.step_ms, "tokens_per_s",
        tokens_per_s, "gflops", gflops, "gemm_gflops", rate, "share", gflops / rate,
        "allocations_in_step", (json_int_t)result.allocations, "steps_counted",
        result.steps_counted, "checkpointing", a->checkpointing, "saved_bytes", (json_int_t)saved,
        "scratch_bytes", (json_int_t)scratch);
    return DPT_OK;
}

static int run(int argc, char **argv)
{
    struct train_args args;
    struct dpt_err err;
    json_t *report = NULL;
    char dir[128];
    if (!parse(argc, argv, &args))
        return 2;
    if (!test_make_dir(dir, sizeof dir, "bench-train"))
        return 1;
    enum dpt_status status = run_in(&args, dir, &report, &err);
    if (status != DPT_OK)
        (void)fprintf(stderr, "dpt-bench train: %s\n", err.text);
    struct dpt_err cleanup;
    if (dpt_fs_remove_tree(dir, &cleanup) != DPT_OK)
        (void)fprintf(stderr, "dpt-bench train: %s\n", cleanup.text);
    if (status != DPT_OK)
        return 1;
    return dpt_bench_finish(&(struct dpt_bench_args){.json = args.json}, report);
}

const struct dpt_bench dpt_bench_train = {
    .name = "train",
    .help = "rate of training steps and its share of the gemm rate; allocations in a step",
    .run = run};
