/* dpt-bench train: the rate of whole training steps by a real rank (link, loader, steps, commit,
 * log) in a world of one. Measures one or several sizes of micro-batch, one after another. If the
 * memory does not suffice for a size, the bench says so and continues with the next size.
 *
 * On the CPU the share of the gemm rate is measured within the run: products are timed right before
 * and right after the steps. This program's own malloc and mmap count allocations between two steps
 * in the middle of the run, on every thread except the one that plays the agent. */
#include "worker/bench/bench.h"

#include "base/fs.h"
#include "base/rng.h"
#include "worker/bench/alloc_count.h"
#include "worker/bench/bench_train_rank.h"
#include "worker/bench/chips.h"
#include "worker/model/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    WARMUP_STEPS = 2,
    TOKENS = 1 << 20,
    YAML_BYTES = 2048,
    COUNT_MAX = 1 << 20,
    BATCHES_MAX = 16
};

struct train_args {
    const char *preset, *json, *checkpointing;
    int batches[BATCHES_MAX], n_batches;
    int batch; /* the current one of `batches` */
    int seq, slots, threads, steps;
    bool cuda, op_times;
    const char *offload;
    int peak_tflops; /* 0: the rate in the table of chips */
    const char *precision;
    enum dpt_dtype dtype; /* of the operands in memory */
    enum dpt_pack_weights pack;
};

static const char *const pack_names[] = {"auto", "on", "off"};

static bool take_switch(const char *text, bool *ret)
{
    *ret = strcmp(text, "on") == 0;
    return *ret || strcmp(text, "off") == 0;
}

static bool take_pack(const char *text, enum dpt_pack_weights *ret)
{
    for (int i = DPT_PACK_WEIGHTS_AUTO; i <= DPT_PACK_WEIGHTS_OFF; i++)
        if (strcmp(text, pack_names[i]) == 0) {
            *ret = (enum dpt_pack_weights)i;
            return true;
        }
    return false;
}

static bool take_precision(struct train_args *a, const char *value)
{
    const bool tf32 = strcmp(value, "tf32") == 0;
    a->precision = value;
    a->dtype = DPT_F32;
    return tf32 || dpt_bench_parse_precision(value, &a->dtype);
}

static const char usage[] =
    "usage: dpt-bench train [--preset gpt2-124m] [--batch N[,N…]] [--seq 64] [--slots 1] "
    "[--threads 2] [--steps 12] [--precision fp32|tf32|bf16|fp16] [--device cpu|cuda] "
    "[--offload none|optimizer] [--peak TFLOPS] [--pack-weights auto|on|off] "
    "[--checkpointing none|selective|full] [--op-times on|off] [--json FILE]\n"
    "  batch: sequences a micro-batch (4), each size in turn; slots: micro-batches a step; steps: "
    "at least 5;\n"
    "  offload: where the state is, with cuda; peak: dense products of the chip, for the MFU of "
    "16-bit precisions; op-times: what kernels took, by class (their marks cost time on a GPU)\n";
_Static_assert(WARMUP_STEPS + 3 == 5, "the usage says so");

static bool parse_train_args(int argc, char **argv, struct train_args *a)
{
    *a = (struct train_args){.preset = "gpt2-124m",
                             .checkpointing = "none",
                             .offload = "none",
                             .precision = "fp32",
                             .batches = {4},
                             .n_batches = 1,
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
            ok = dpt_bench_parse_ints(value, 1, COUNT_MAX, BATCHES_MAX, a->batches, &a->n_batches);
        else if (strcmp(argv[i], "--seq") == 0)
            ok = dpt_bench_parse_int(value, 1, COUNT_MAX, &a->seq);
        else if (strcmp(argv[i], "--slots") == 0)
            ok = dpt_bench_parse_int(value, 1, COUNT_MAX, &a->slots);
        else if (strcmp(argv[i], "--threads") == 0)
            ok = dpt_bench_parse_int(value, 1, COUNT_MAX, &a->threads);
        else if (strcmp(argv[i], "--steps") == 0)
            ok = dpt_bench_parse_int(value, 1, COUNT_MAX, &a->steps) && a->steps > WARMUP_STEPS + 2;
        else if (strcmp(argv[i], "--precision") == 0)
            ok = take_precision(a, value);
        else if (strcmp(argv[i], "--peak") == 0)
            ok = dpt_bench_parse_int(value, 1, COUNT_MAX, &a->peak_tflops);
        else if (strcmp(argv[i], "--device") == 0)
            ok = (a->cuda = strcmp(value, "cuda") == 0) || strcmp(value, "cpu") == 0;
        else if (strcmp(argv[i], "--offload") == 0)
            a->offload = value;
        else if (strcmp(argv[i], "--op-times") == 0)
            ok = take_switch(value, &a->op_times);
        else if (strcmp(argv[i], "--pack-weights") == 0)
            ok = take_pack(value, &a->pack);
        else
            ok = false;
        if (!ok || !*value)
            return dpt_bench_misused("train", usage, argv[i]);
        i++;
    }
    return true;
}

/* Writes a shard of uniformly drawn tokens: the rate of a step does not depend on the tokens. */
static enum dpt_status write_shard(const char *path, struct dpt_err *err)
{
    enum { HEADER_INTS = 256, VOCAB = 49152 }; /* the smallest of the presets */
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
            tokens[j] = (uint16_t)(block[j] % VOCAB);
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
    (void)snprintf(
        yaml, sizeof yaml,
        "run: bench\n"
        "cluster: {nnodes: 1, threads: %d, timeout_s: 60, pack_weights: %s, device: %s}\n"
        "strategy: {offload: %s}\n"
        "model: {preset: %s}\n"
        "data: {kind: tokens, train: \"%s/tokens.bin\"}\n"
        "train: {steps: %d, global_batch: %d, micro_batch: %d, seq_len: %d, precision: "
        "%s, activation_checkpointing: %s, log_every: 1}\n"
        "optimizer: {warmup_steps: 1}\n"
        "checkpoint: {dir: null}\n"
        "log: {dir: \"%s\", op_times: %s}\n",
        a->threads, pack_names[a->pack], a->cuda ? "cuda" : "cpu", a->offload, a->preset, dir,
        a->steps, a->batch * a->slots, a->batch, a->seq, a->precision, a->checkpointing, dir,
        a->op_times ? "true" : "false");
    return dpt_config_load_text(yaml, "bench", NULL, 0, ret, err);
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
    dpt_bench_sort(ms, n);
    return n > 0 ? ms[n / 2] : NAN;
}

struct train_result {
    double step_ms;
    int steps_timed;
    int64_t allocations;
    int steps_counted;
    int64_t device_peak;      /* bytes; 0: all is the host's */
    int64_t device_workspace; /* of these bytes, the workspace of ops */
    json_t *op_times;         /* owned; NULL: none were taken */
};

/* The record NAME that the rank wrote at its end; NULL: there is none. */
static json_t *record_of(const char *dir, const char *name)
{
    char path[256];
    (void)snprintf(path, sizeof path, "%s/node-bench/rank-0.%s.json", dir, name);
    return json_load_file(path, 0, NULL);
}

/* Reads the peak of the device's memory, and the workspace of its ops. */
static void read_device_use(const char *dir, struct train_result *ret)
{
    json_t *account = record_of(dir, "memory");
    const json_t *device = json_object_get(account, "device");
    const json_t *workspace = json_object_get(json_object_get(device, "tags"), "workspace");
    ret->device_peak = json_integer_value(json_object_get(device, "peak"));
    ret->device_workspace = json_integer_value(json_object_get(workspace, "bytes"));
    json_decref(account);
}

/* Counts the allocations between the warm-up and the last step but one. */
static enum dpt_status count_allocations(struct bench_rank *rank, int64_t steps,
                                         struct train_result *ret, struct dpt_err *err)
{
    int64_t first = 0, last = 0;
    DPT_TRY(bench_rank_await_step(rank, WARMUP_STEPS, &first, err));
    const int64_t before = dpt_alloc_count_others();
    DPT_TRY(bench_rank_await_step(rank, steps - 1, &last, err));
    ret->allocations = dpt_alloc_count_others() - before;
    ret->steps_counted = (int)(last - first);
    return bench_rank_finish(rank, err);
}

/* Trains for the config's steps. DPT_EREFUSED: the rank refuses to; the text is its reason. */
static enum dpt_status train_steps(const struct dpt_config *config, const char *dir,
                                   struct train_result *ret, struct dpt_err *err)
{
    struct bench_rank *rank = NULL;
    DPT_TRY(bench_rank_start(config, &rank, err));
    const enum dpt_status status = count_allocations(rank, config->train.steps, ret, err);
    bench_rank_destroy(&rank);
    DPT_TRY(status);
    ret->step_ms = median_step_ms(dir, &ret->steps_timed);
    read_device_use(dir, ret);
    ret->op_times = config->log.op_times ? record_of(dir, "op_times") : NULL;
    return DPT_OK;
}

/* The rates that one size of micro-batch is compared with. */
struct yardstick {
    double gemm_gflops;               /* gemm rate of this machine's cores; 0: a GPU computes */
    char chip[DPT_DEVICE_NAME_BYTES]; /* "": the CPU */
    double peak;                      /* FLOP/s of the chip; 0: not known */
};

/* Prints a line for each class of kernels: milliseconds and calls a step, share of the stream's
 * time. */
static void print_op_times(const json_t *record)
{
    json_t *device = json_object_get(record, "device");
    const bool on_device = json_is_object(device);
    json_t *stream = on_device ? device : json_object_get(record, "host"), *class;
    const double steps = (double)json_integer_value(json_object_get(record, "steps"));
    const double idle = json_number_value(json_object_get(stream, "idle_ms"));
    const double all = json_number_value(json_object_get(stream, "busy_ms")) + idle;
    const char *name;
    printf("kernels of the %s, a step:\n", on_device ? "device" : "host");
    json_object_foreach(json_object_get(stream, "classes"), name, class)
    {
        const double ms = json_number_value(json_object_get(class, "ms"));
        printf("  %-10s %10.2f ms  %5.1f %%  %6.0f calls\n", name, ms / steps, 100 * ms / all,
               (double)json_integer_value(json_object_get(class, "calls")) / steps);
    }
    printf("  %-10s %10.2f ms  %5.1f %%\n", "idle", idle / steps, 100 * idle / all);
}

/* Prints the result and returns it as JSON. */
static json_t *report_on(const struct train_args *a, const struct dpt_config *config,
                         const struct dpt_model *model, const struct train_result *result,
                         const struct yardstick *y)
{
    const int64_t parameters = dpt_model_param_count(model);
    const size_t saved = dpt_model_saved_bytes(model, a->batch, a->seq),
                 scratch = dpt_model_scratch_bytes(model, a->batch, a->seq);
    const double tokens_per_s = (double)a->batch * a->seq * a->slots / (result->step_ms * 1e-3);
    const double gflops = 6e-9 * (double)parameters * tokens_per_s;
    const bool has_mfu = y->peak > 0 && a->dtype != DPT_F32;
    const double mfu = has_mfu ? dpt_mfu(tokens_per_s, (double)parameters, config->model.n_layer,
                                         config->model.n_embd, a->seq, y->peak)
                               : 0;
    printf("%s in %s, B=%d T=%d, %d slots a step, %d threads: %.0f ms a step (median of %d), %.1f "
           "tokens/s\n",
           a->preset, a->precision, a->batch, a->seq, a->slots, a->threads, result->step_ms,
           result->steps_timed, tokens_per_s);
    if (y->gemm_gflops > 0)
        printf("6N flops a token: %.1f GFLOP/s, %.1f%% of the gemm rate of %.1f GFLOP/s\n", gflops,
               100 * gflops / y->gemm_gflops, y->gemm_gflops);
    if (has_mfu)
        printf("MFU %.1f%% of %.0f TFLOP/s, at 6N+6LCT flops a token\n", 100 * mfu,
               y->peak * 1e-12);
    if (y->chip[0])
        printf("%s: %.1f MiB at most (offload: %s)\n", y->chip,
               (double)result->device_peak / 0x1p20, a->offload);
    else
        printf("packed weights: %s\n", pack_names[a->pack]);
    printf("activations: %.1f MiB kept (activation_checkpointing: %s) and %.1f MiB of scratch\n",
           (double)saved / 0x1p20, a->checkpointing, (double)scratch / 0x1p20);
    printf("allocations in %d steps: %lld\n", result->steps_counted,
           (long long)result->allocations);
    json_t *object = json_pack(
        "{s:s,s:s,s:s,s:s,s:i,s:i,s:i,s:i,s:I,s:f,s:f,s:f,s:I,s:i,s:s,s:I,s:I,s:s,s:I,s:I,s:s}",
        "bench", "train", "preset", a->preset, "precision", a->precision, "pack_weights",
        pack_names[a->pack], "batch", a->batch, "seq", a->seq, "slots", a->slots, "threads",
        a->threads, "parameters", (json_int_t)parameters, "step_ms", result->step_ms,
        "tokens_per_s", tokens_per_s, "gflops", gflops, "allocations_in_step",
        (json_int_t)result->allocations, "steps_counted", result->steps_counted, "checkpointing",
        a->checkpointing, "saved_bytes", (json_int_t)saved, "scratch_bytes", (json_int_t)scratch,
        "chip", y->chip, "device_peak_bytes", (json_int_t)result->device_peak,
        "device_workspace_bytes", (json_int_t)result->device_workspace, "offload", a->offload);
    if (result->op_times) {
        print_op_times(result->op_times);
        json_object_set(object, "op_times", result->op_times);
    }
    if (y->gemm_gflops > 0) {
        json_object_set_new(object, "gemm_gflops", json_real(y->gemm_gflops));
        json_object_set_new(object, "share", json_real(gflops / y->gemm_gflops));
    }
    if (has_mfu) {
        json_object_set_new(object, "peak_tflops", json_real(y->peak * 1e-12));
        json_object_set_new(object, "mfu", json_real(mfu));
    }
    return object;
}

static enum dpt_status look_at_chip(const struct train_args *a, struct yardstick *ret,
                                    struct dpt_err *err)
{
    if (a->cuda)
        DPT_TRY(dpt_device_cuda_name(0, ret->chip, err));
    ret->peak = a->peak_tflops > 0 ? a->peak_tflops * 1e12 : dpt_chip_peak(ret->chip);
    return DPT_OK;
}

/* Trains between two measurements of the gemm rate; keeps the better rate. */
static enum dpt_status train_between(const struct train_args *a, const struct dpt_config *config,
                                     const char *dir, struct train_result *ret, struct yardstick *y,
                                     struct dpt_err *err)
{
    double before = 0, after = 0;
    if (a->cuda)
        return train_steps(config, dir, ret, err);
    DPT_TRY(dpt_bench_gemm_rate(a->threads, a->dtype, &before, err));
    DPT_TRY(train_steps(config, dir, ret, err));
    DPT_TRY(dpt_bench_gemm_rate(a->threads, a->dtype, &after, err));
    y->gemm_gflops = before > after ? before : after;
    return DPT_OK;
}

static enum dpt_status run_batch_in(const struct train_args *a, const char *dir, json_t **ret,
                                    struct dpt_err *err)
{
    char path[256];
    static struct dpt_config config;
    struct dpt_model *model = NULL;
    struct train_result result = {0};
    struct yardstick yardstick = {0};
    (void)snprintf(path, sizeof path, "%s/tokens.bin", dir);
    DPT_TRY(look_at_chip(a, &yardstick, err));
    DPT_TRY(write_shard(path, err));
    DPT_TRY(make_config(a, dir, &config, err));
    DPT_TRY(train_between(a, &config, dir, &result, &yardstick, err));
    DPT_TRY(dpt_model_create(&config, &model, err));
    *ret = report_on(a, &config, model, &result, &yardstick);
    json_decref(result.op_times);
    dpt_model_destroy(&model);
    return DPT_OK;
}

/* Runs one size of micro-batch in a new temporary folder. */
static enum dpt_status run_batch(const struct train_args *a, json_t **ret, struct dpt_err *err)
{
    char dir[DPT_BENCH_DIR_BYTES];
    DPT_TRY(dpt_bench_dir_create(NULL, "train", dir, err));
    const enum dpt_status status = run_batch_in(a, dir, ret, err);
    dpt_bench_dir_remove(dir);
    return status;
}

/* Called after each batch, because a later batch may end the program. */
static int write_train_report(const struct train_args *a, json_t *runs)
{
    json_t *report = a->n_batches == 1 ? json_incref(json_array_get(runs, 0))
                                       : json_pack("{s:s,s:O}", "bench", "train", "runs", runs);
    return dpt_bench_finish(&(struct dpt_bench_args){.json = a->json}, report);
}

static int run_train(int argc, char **argv)
{
    struct train_args args;
    struct dpt_err err;
    if (!parse_train_args(argc, argv, &args))
        return 2;
    json_t *runs = json_array();
    int code = 0;
    for (int i = 0; i < args.n_batches && code == 0; i++) {
        json_t *report = NULL;
        args.batch = args.batches[i];
        const enum dpt_status status = run_batch(&args, &report, &err);
        if (status == DPT_EREFUSED && args.n_batches > 1 && strstr(err.text, "memory")) {
            printf("OOM at batch_size=%d: %s\n", args.batch, err.text);
            report = json_pack("{s:i,s:s}", "batch", args.batch, "oom", err.text);
        } else if (status != DPT_OK) {
            (void)fprintf(stderr, "dpt-bench train: %s\n", err.text);
            code = 1;
            break;
        }
        json_array_append_new(runs, report);
        code = write_train_report(&args, runs);
        (void)fflush(stdout);
    }
    json_decref(runs);
    return code;
}

const struct dpt_bench dpt_bench_train = {
    .name = "train",
    .help = "rate of training steps, its share of the gemm rate or of a GPU's peak; allocations",
    .run = run_train};
