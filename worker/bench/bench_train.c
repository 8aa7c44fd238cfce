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

enum { WARMUP_STEPS = 2, STEPS_MIN = WARMUP_STEPS + 3, STEPS_MAX = 4096, COUNT_MAX = 1 << 20 };
enum { TOKENS = 1 << 20, YAML_BYTES = 2048, VOCAB = 49152 /* the smallest of the presets */ };

static struct {
    const char *preset, *precision, *device, *offload, *pack_weights, *checkpointing, *op_times;
    struct dpt_bench_list batches;
    int64_t seq, slots, threads, steps;
    int64_t peak_tflops; /* 0: the rate in the table of chips */
    bool no_gemm;
} args = {.preset = "gpt2-124m",
          .precision = "fp32",
          .device = "cpu",
          .offload = "none",
          .pack_weights = "auto",
          .checkpointing = "none",
          .op_times = "off",
          .batches = {.min = 1, .max = COUNT_MAX, .n = 1, .values = {4}},
          .seq = 64,
          .slots = 1,
          .threads = 2,
          .steps = 12};

static const struct dpt_option options[] = {
    {"--preset", "NAME", "model.preset, or tiny (gpt2-124m)", .text = &args.preset},
    {"--batch", "N,...", "sequences of a micro-batch; each size in turn (4)",
     .set = dpt_bench_set_list, .ctx = &args.batches},
    {"--seq", "N", "tokens of a sequence (64)", .number = &args.seq, .min = 1, .max = COUNT_MAX},
    {"--slots", "N", "micro-batches of a step (1)", .number = &args.slots, .min = 1,
     .max = COUNT_MAX},
    {"--threads", "N", "compute threads (2)", .number = &args.threads, .min = 1,
     .max = DPT_BENCH_THREADS_MAX},
    {"--steps", "N", "of which the first 2 are not measured (12)", .number = &args.steps,
     .min = STEPS_MIN, .max = STEPS_MAX},
    {"--precision", "fp32|tf32|bf16|fp16", "train.precision (fp32)", .text = &args.precision},
    {"--device", "cpu|cuda", "cluster.device (cpu)", .text = &args.device},
    {"--offload", "none|optimizer", "strategy.offload, with cuda (none)", .text = &args.offload},
    {"--pack-weights", "auto|on|off", "cluster.pack_weights (auto)", .text = &args.pack_weights},
    {"--checkpointing", "none|selective|full", "train.activation_checkpointing (none)",
     .text = &args.checkpointing},
    {"--op-times", "on|off", "the time of kernels by class; costs time on a GPU (off)",
     .text = &args.op_times},
    {"--peak", "TFLOPS", "the peak of a GPU that the table of chips lacks, for the MFU",
     .number = &args.peak_tflops, .min = 1, .max = COUNT_MAX},
    {"--no-gemm", .help = "does not measure the gemm rate before and after the steps",
     .flag = &args.no_gemm}};

/* Writes a shard of tokens drawn uniformly below `vocab`: the rate of a step does not depend on the
 * tokens. */
static enum dpt_status write_shard(const char *path, uint32_t vocab, struct dpt_err *err)
{
    enum { HEADER_INTS = 256 };
    size_t bytes = HEADER_INTS * 4 + (size_t)TOKENS * 2;
    uint8_t *file = calloc(1, bytes);
    if (!file)
        return dpt_fail_nomem(err, "tokens");
    const int32_t header[] = {20240520, 1, TOKENS};
    memcpy(file, header, sizeof header);
    struct dpt_rng_key key = dpt_rng_key(1, DPT_RNG_TEST, 0, 0, 0);
    for (int i = 0; i < TOKENS; i += 4) {
        uint32_t block[4];
        uint16_t tokens[4];
        dpt_philox(key, (uint64_t)i / 4, block);
        for (int j = 0; j < 4; j++)
            tokens[j] = (uint16_t)(block[j] % vocab);
        memcpy(file + HEADER_INTS * 4 + (size_t)i * 2, tokens, sizeof tokens);
    }
    enum dpt_status status = dpt_fs_write_file_atomic(path, file, bytes, err);
    free(file);
    return status;
}

static enum dpt_status train_make_config(int64_t batch, const char *dir, struct dpt_config *ret,
                                         struct dpt_err *err)
{
    char yaml[YAML_BYTES], model[DPT_BENCH_MODEL_BYTES];
    const bool op_times = strcmp(args.op_times, "on") == 0;
    if (!op_times && strcmp(args.op_times, "off") != 0)
        return dpt_fail(err, DPT_EINVAL, "--op-times: expected on or off, got '%.40s'",
                        args.op_times);
    dpt_bench_model_keys(args.preset, model);
    (void)snprintf(yaml, sizeof yaml,
                   "run: bench\n"
                   "cluster: {nnodes: 1, threads: %lld, timeout_s: 60, pack_weights: %s, device: "
                   "%s}\n"
                   "strategy: {offload: %s}\n"
                   "model: {%s}\n"
                   "data: {kind: tokens, train: \"%s/tokens.bin\"}\n"
                   "train: {steps: %lld, global_batch: %lld, micro_batch: %lld, seq_len: %lld, "
                   "precision: %s, activation_checkpointing: %s, log_every: 1}\n"
                   "optimizer: {warmup_steps: 1}\n"
                   "checkpoint: {dir: null}\n"
                   "log: {dir: \"%s\", op_times: %s}\n",
                   (long long)args.threads, args.pack_weights, args.device, args.offload, model,
                   dir, (long long)args.steps, (long long)(batch * args.slots), (long long)batch,
                   (long long)args.seq, args.precision, args.checkpointing, dir,
                   op_times ? "true" : "false");
    return dpt_config_load_text(yaml, "bench", NULL, 0, ret, err);
}

/* Median of step_ms over the steps after the warm-up. */
static double median_step_ms(const char *dir, int *ret_n)
{
    char path[256], line[1024];
    (void)snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    double ms[STEPS_MAX];
    int n = 0;
    FILE *f = fopen(path, "r");
    while (f && n < STEPS_MAX && fgets(line, sizeof line, f)) {
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

static bool is_16_bit(const struct dpt_config *config)
{
    return config->train.precision == DPT_PRECISION_BF16 ||
           config->train.precision == DPT_PRECISION_FP16;
}

/* Prints the result and returns it as JSON. */
static json_t *report_on(const struct dpt_config *config, const struct dpt_model *model,
                         const struct train_result *result, const struct yardstick *y)
{
    const int64_t batch = config->train.micro_batch, parameters = dpt_model_param_count(model);
    const size_t saved = dpt_model_saved_bytes(model, batch, args.seq),
                 scratch = dpt_model_scratch_bytes(model, batch, args.seq);
    const double tokens_per_s = (double)(batch * args.seq * args.slots) / (result->step_ms * 1e-3);
    const double gflops = 6e-9 * (double)parameters * tokens_per_s;
    const bool has_mfu = y->peak > 0 && is_16_bit(config);
    const double mfu = has_mfu ? dpt_mfu(tokens_per_s, (double)parameters, config->model.n_layer,
                                         config->model.n_embd, (int)args.seq, y->peak)
                               : 0;
    printf("%s in %s, B=%d T=%d, %d slots a step, %d threads: %.0f ms a step (median of %d), %.1f "
           "tokens/s\n",
           args.preset, args.precision, (int)batch, (int)args.seq, (int)args.slots,
           (int)args.threads, result->step_ms, result->steps_timed, tokens_per_s);
    if (y->gemm_gflops > 0)
        printf("6N flops a token: %.1f GFLOP/s, %.1f%% of the gemm rate of %.1f GFLOP/s\n", gflops,
               100 * gflops / y->gemm_gflops, y->gemm_gflops);
    if (has_mfu)
        printf("MFU %.1f%% of %.0f TFLOP/s, at 6N+6LCT flops a token\n", 100 * mfu,
               y->peak * 1e-12);
    if (y->chip[0])
        printf("%s: %.1f MiB at most (offload: %s)\n", y->chip,
               (double)result->device_peak / 0x1p20, args.offload);
    else
        printf("packed weights: %s\n", args.pack_weights);
    printf("activations: %.1f MiB kept (activation_checkpointing: %s) and %.1f MiB of scratch\n",
           (double)saved / 0x1p20, args.checkpointing, (double)scratch / 0x1p20);
    printf("allocations in %d steps: %lld\n", result->steps_counted,
           (long long)result->allocations);
    json_t *object = json_pack(
        "{s:s,s:s,s:s,s:s,s:I,s:I,s:I,s:I,s:I,s:f,s:f,s:f,s:I,s:i,s:s,s:I,s:I,s:s,s:I,s:I,s:s}",
        "bench", "train", "preset", args.preset, "precision", args.precision, "pack_weights",
        args.pack_weights, "batch", (json_int_t)batch, "seq", (json_int_t)args.seq, "slots",
        (json_int_t)args.slots, "threads", (json_int_t)args.threads, "parameters",
        (json_int_t)parameters, "step_ms", result->step_ms, "tokens_per_s", tokens_per_s, "gflops",
        gflops, "allocations_in_step", (json_int_t)result->allocations, "steps_counted",
        result->steps_counted, "checkpointing", args.checkpointing, "saved_bytes",
        (json_int_t)saved, "scratch_bytes", (json_int_t)scratch, "chip", y->chip,
        "device_peak_bytes", (json_int_t)result->device_peak, "device_workspace_bytes",
        (json_int_t)result->device_workspace, "offload", args.offload);
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

/* Trains between two measurements of the gemm rate; keeps the better rate. On a GPU there is no
 * gemm rate, but the chip's peak. */
static enum dpt_status train_between(const struct dpt_config *config, const char *dir,
                                     struct train_result *ret, struct yardstick *y,
                                     struct dpt_err *err)
{
    const bool cuda = config->cluster.device == DPT_DEVICE_CUDA;
    const enum dpt_dtype dtype = config->train.precision == DPT_PRECISION_BF16   ? DPT_BF16
                                 : config->train.precision == DPT_PRECISION_FP16 ? DPT_F16
                                                                                 : DPT_F32;
    double before = 0, after = 0;
    if (cuda)
        DPT_TRY(dpt_device_cuda_name(0, y->chip, err));
    y->peak = args.peak_tflops > 0 ? (double)args.peak_tflops * 1e12 : dpt_chip_peak(y->chip);
    if (cuda || args.no_gemm)
        return train_steps(config, dir, ret, err);
    DPT_TRY(dpt_bench_gemm_rate((int)args.threads, dtype, &before, err));
    DPT_TRY(train_steps(config, dir, ret, err));
    DPT_TRY(dpt_bench_gemm_rate((int)args.threads, dtype, &after, err));
    y->gemm_gflops = before > after ? before : after;
    return DPT_OK;
}

static enum dpt_status run_batch_in(int64_t batch, const char *dir, json_t **ret,
                                    struct dpt_err *err)
{
    char path[DPT_BENCH_DIR_BYTES + 16];
    static struct dpt_config config;
    struct dpt_model *model = NULL;
    struct train_result result = {0};
    struct yardstick yardstick = {0};
    (void)snprintf(path, sizeof path, "%s/tokens.bin", dir);
    DPT_TRY(train_make_config(batch, dir, &config, err));
    DPT_TRY(dpt_model_create(&config, &model, err));
    const int64_t vocab = dpt_model_vocab(model);
    enum dpt_status status = write_shard(path, (uint32_t)(vocab < VOCAB ? vocab : VOCAB), err);
    if (status == DPT_OK)
        status = train_between(&config, dir, &result, &yardstick, err);
    if (status == DPT_OK)
        *ret = report_on(&config, model, &result, &yardstick);
    json_decref(result.op_times);
    dpt_model_destroy(&model);
    return status;
}

/* Runs one size of micro-batch in a new temporary folder. */
static enum dpt_status run_batch(int64_t batch, json_t **ret, struct dpt_err *err)
{
    char dir[DPT_BENCH_DIR_BYTES];
    DPT_TRY(dpt_bench_dir_create(NULL, "train", dir, err));
    const enum dpt_status status = run_batch_in(batch, dir, ret, err);
    dpt_bench_dir_remove(dir);
    return status;
}

/* Measures each batch in turn, and saves the report after each, because a later one may end the
 * program. Keeps the result if a batch does not fit into the memory. */
static enum dpt_status run_batches(json_t *runs, struct dpt_err *err)
{
    for (int i = 0; i < args.batches.n; i++) {
        const int64_t batch = args.batches.values[i];
        struct dpt_err why;
        json_t *run = NULL;
        const enum dpt_status status = run_batch(batch, &run, &why);
        if (status == DPT_EREFUSED && args.batches.n > 1 && strstr(why.text, "memory")) {
            printf("OOM at batch_size=%d: %s\n", (int)batch, why.text);
            run = json_pack("{s:I,s:s}", "batch", (json_int_t)batch, "oom", why.text);
        } else if (status != DPT_OK)
            return dpt_pass(err, &why);
        if (json_array_append_new(json_object_get(runs, "runs"), run) != 0)
            return dpt_fail(err, DPT_EPROTO, "batch %d: the rank logged no step", (int)batch);
        (void)fflush(stdout);
        DPT_TRY(dpt_bench_save(runs, err));
    }
    return DPT_OK;
}

static enum dpt_status run_train(json_t **ret_report, struct dpt_err *err)
{
    json_t *report = json_pack("{s:s,s:[]}", "bench", "train", "runs");
    const enum dpt_status status = run_batches(report, err);
    const json_t *runs = json_object_get(report, "runs");
    *ret_report = args.batches.n > 1 ? json_incref(report) : json_incref(json_array_get(runs, 0));
    json_decref(report);
    return status;
}

const struct dpt_bench dpt_bench_train = {
    .name = "train",
    .help = "the rate of training steps beside the peak of the machine, and allocations in a step",
    .options = options,
    .n_options = sizeof options / sizeof *options,
    .run = run_train};
