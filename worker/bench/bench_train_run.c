/* One run of dpt-bench train: a real rank (link, loader, steps, commit, log) in a world of one. The
 * program's own malloc and mmap count allocations between two steps in the middle of the run, on
 * every thread except the one that plays the agent. */
#include "worker/bench/bench_train.h"

#include "base/fs.h"
#include "base/median.h"
#include "base/rng.h"
#include "worker/bench/alloc_count.h"
#include "worker/bench/bench.h"
#include "worker/bench/bench_train_rank.h"
#include "worker/bench/chips.h"
#include "worker/bench/memory_record.h"
#include "worker/model/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 1 << 20, YAML_BYTES = 2048, VOCAB = 49152 /* the smallest of the presets */ };

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

static enum dpt_status train_make_config(const struct train_case *c, struct dpt_config *ret,
                                         struct dpt_err *err)
{
    char yaml[YAML_BYTES], model[DPT_BENCH_MODEL_BYTES];
    dpt_bench_model_keys(c->preset, model);
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
                   (long long)c->threads, c->pack_weights, c->device, c->offload, model, c->dir,
                   (long long)c->steps, (long long)(c->batch * c->slots), (long long)c->batch,
                   (long long)c->seq, c->precision, c->checkpointing, c->dir,
                   c->op_times ? "true" : "false");
    return dpt_config_load_text(yaml, "bench", NULL, 0, ret, err);
}

enum dpt_status train_case_check(const struct train_case *c, struct dpt_err *err)
{
    static struct dpt_config config;
    struct dpt_model *model = NULL;
    DPT_TRY(train_make_config(c, &config, err));
    DPT_TRY(dpt_model_create(&config, &model, err));
    dpt_model_destroy(&model);
    return DPT_OK;
}

struct train_result {
    double median_ms, elapsed_ms, loss;
    int steps_timed;
    int64_t allocations;
    int steps_counted;
    json_t *memory, *op_times; /* owned; NULL: there is no record */
};

/* Reads the times of the steps after the warm-up, and the loss of the last step. */
static enum dpt_status read_metrics(const struct train_case *c, struct train_result *ret,
                                    struct dpt_err *err)
{
    char path[256], line[1024];
    (void)snprintf(path, sizeof path, "%s/metrics.jsonl", c->dir);
    double ms[TRAIN_STEPS_MAX];
    int n = 0;
    FILE *f = fopen(path, "r");
    while (f && n < TRAIN_STEPS_MAX && fgets(line, sizeof line, f)) {
        json_t *object = json_loads(line, 0, NULL);
        if (json_integer_value(json_object_get(object, "step")) > c->warmup) {
            ms[n] = json_number_value(json_object_get(object, "step_ms"));
            ret->elapsed_ms += ms[n++];
            ret->loss = json_number_value(json_object_get(object, "loss"));
        }
        json_decref(object);
    }
    if (f)
        (void)fclose(f);
    if (n != c->steps - c->warmup)
        return dpt_fail(err, DPT_EPROTO, "'%s' has %d timed steps, expected %d", path, n,
                        (int)(c->steps - c->warmup));
    ret->steps_timed = n;
    dpt_sort_doubles(ms, n);
    ret->median_ms = ms[n / 2];
    return DPT_OK;
}

/* The record NAME that the rank wrote at its end. */
static enum dpt_status read_record(const char *dir, const char *name, json_t **ret,
                                   struct dpt_err *err)
{
    char path[256];
    json_error_t why;
    (void)snprintf(path, sizeof path, "%s/node-bench/rank-0.%s.json", dir, name);
    *ret = json_load_file(path, 0, &why);
    return *ret ? DPT_OK : dpt_fail(err, DPT_ECORRUPT, "'%s': %s", path, why.text);
}

/* Counts the allocations between the warm-up and the last step but one. */
static enum dpt_status count_allocations(struct bench_rank *rank, const struct train_case *c,
                                         struct train_result *ret, struct dpt_err *err)
{
    int64_t first = 0, last = 0;
    DPT_TRY(bench_rank_await_step(rank, c->warmup, &first, err));
    const int64_t before = dpt_alloc_count_others();
    DPT_TRY(bench_rank_await_step(rank, c->steps - 1, &last, err));
    ret->allocations = dpt_alloc_count_others() - before;
    ret->steps_counted = (int)(last - first);
    return bench_rank_finish(rank, err);
}

static enum dpt_status train_steps(const struct dpt_config *config, const struct train_case *c,
                                   struct train_result *ret, struct dpt_err *err)
{
    struct bench_rank *rank = NULL;
    DPT_TRY(bench_rank_start(config, &rank, err));
    const enum dpt_status status = count_allocations(rank, c, ret, err);
    bench_rank_destroy(&rank);
    DPT_TRY(status);
    DPT_TRY(read_metrics(c, ret, err));
    DPT_TRY(read_record(c->dir, "memory", &ret->memory, err));
    return c->op_times ? read_record(c->dir, "op_times", &ret->op_times, err) : DPT_OK;
}

/* ---- the figures as JSON ---- */

static void set_number(json_t *object, const char *key, double value)
{
    json_object_set_new(object, key, json_real(value));
}

static void set_bytes(json_t *object, const char *key, int64_t bytes)
{
    json_object_set_new(object, key, json_integer((json_int_t)bytes));
}

static json_t *describe_case(const struct train_case *c, const struct dpt_model *model)
{
    return json_pack("{s:s,s:s,s:s,s:s,s:I,s:I,s:I,s:I,s:I,s:s,s:I,s:I,s:s}", "bench", "train",
                     "preset", c->preset, "precision", c->precision, "pack_weights",
                     c->pack_weights, "batch", (json_int_t)c->batch, "seq", (json_int_t)c->seq,
                     "slots", (json_int_t)c->slots, "threads", (json_int_t)c->threads, "parameters",
                     (json_int_t)dpt_model_param_count(model), "checkpointing", c->checkpointing,
                     "saved_bytes", (json_int_t)dpt_model_saved_bytes(model, c->batch, c->seq),
                     "scratch_bytes", (json_int_t)dpt_model_scratch_bytes(model, c->batch, c->seq),
                     "offload", c->offload);
}

static void add_times(json_t *run, const struct train_case *c, const struct train_result *result)
{
    const double tokens = (double)(c->batch * c->seq * c->slots),
                 elapsed_s = result->elapsed_ms * 1e-3,
                 tokens_per_s = tokens / (result->median_ms * 1e-3),
                 parameters = (double)json_integer_value(json_object_get(run, "parameters"));
    set_number(run, "step_ms", result->median_ms);
    set_number(run, "tokens_per_s", tokens_per_s);
    set_number(run, "gflops", 6e-9 * parameters * tokens_per_s);
    set_bytes(run, "warmup_steps", c->warmup);
    set_bytes(run, "steps_timed", result->steps_timed);
    set_bytes(run, "total_tokens", (int64_t)tokens * result->steps_timed);
    set_number(run, "elapsed_s", elapsed_s);
    set_number(run, "mean_tokens_per_s", tokens * result->steps_timed / elapsed_s);
    set_number(run, "steps_per_s", result->steps_timed / elapsed_s);
    set_number(run, "loss", result->loss);
    set_bytes(run, "allocations_in_step", result->allocations);
    set_bytes(run, "steps_counted", result->steps_counted);
}

static void add_memory(json_t *run, const struct train_result *result, bool on_device)
{
    const json_t *device = json_object_get(result->memory, "device"),
                 *workspace = json_object_get(json_object_get(device, "tags"), "workspace");
    const int64_t device_peak = json_integer_value(json_object_get(device, "peak"));
    set_bytes(run, "device_peak_bytes", device_peak);
    set_bytes(run, "device_workspace_bytes",
              json_integer_value(json_object_get(workspace, "bytes")));
    set_bytes(run, "memory_bytes",
              on_device ? device_peak : memory_record_bytes(result->memory, "counted", "peak"));
    set_bytes(run, "true_peak_bytes", memory_record_true_peak(result->memory));
    json_object_set(run, "memory", result->memory);
    if (result->op_times)
        json_object_set(run, "op_times", result->op_times);
}

static bool is_16_bit(const struct dpt_config *config)
{
    return config->train.precision == DPT_PRECISION_BF16 ||
           config->train.precision == DPT_PRECISION_FP16;
}

/* The share of the chip's peak, which is known for products of 16 bits; and the FLOP/s. */
static enum dpt_status add_utilisation(json_t *run, const struct dpt_config *config,
                                       const struct train_case *c, struct dpt_err *err)
{
    char chip[DPT_DEVICE_NAME_BYTES] = "";
    if (config->cluster.device == DPT_DEVICE_CUDA)
        DPT_TRY(dpt_device_cuda_name(0, chip, err));
    const double peak = c->peak > 0 ? c->peak : dpt_chip_peak(chip);
    const double flops = dpt_mfu(json_number_value(json_object_get(run, "tokens_per_s")),
                                 (double)json_integer_value(json_object_get(run, "parameters")),
                                 config->model.n_layer, config->model.n_embd, (int)c->seq, 1.0);
    json_object_set_new(run, "chip", json_string(chip));
    set_number(run, "model_flops", flops);
    if (peak > 0 && is_16_bit(config)) {
        set_number(run, "peak_tflops", peak * 1e-12);
        set_number(run, "mfu", flops / peak);
    }
    return DPT_OK;
}

enum dpt_status train_case_run(const void *ctx, json_t **ret, struct dpt_err *err)
{
    const struct train_case *c = ctx;
    char path[DPT_BENCH_DIR_BYTES + 16];
    static struct dpt_config config;
    struct dpt_model *model = NULL;
    struct train_result result = {.loss = (double)NAN};
    (void)snprintf(path, sizeof path, "%s/tokens.bin", c->dir);
    DPT_TRY(train_make_config(c, &config, err));
    DPT_TRY(dpt_model_create(&config, &model, err));
    const int64_t vocab = dpt_model_vocab(model);
    json_t *run = describe_case(c, model);
    enum dpt_status status = write_shard(path, (uint32_t)(vocab < VOCAB ? vocab : VOCAB), err);
    if (status == DPT_OK)
        status = train_steps(&config, c, &result, err);
    if (status == DPT_OK) {
        add_times(run, c, &result);
        add_memory(run, &result, config.cluster.device == DPT_DEVICE_CUDA);
        status = add_utilisation(run, &config, c, err);
    }
    if (status == DPT_OK)
        *ret = json_incref(run);
    json_decref(run);
    json_decref(result.memory);
    json_decref(result.op_times);
    dpt_model_destroy(&model);
    return status;
}
