/* The gradients of a first step, tensor by tensor, against the CPU device's in f32: the whole
 * model, forward and backward, from the same initial weights, rounded to the compute dtype, and the
 * same tokens. With the argument `124m` GPT-2's own size, else small ones of each family. */
#include "tests/gpu/gpu.h"

#include "base/config.h"
#include "worker/model/model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MICRO_BATCH = 2 };

static const struct {
    enum dpt_precision precision;
    const char *name;
    double tolerance; /* of the relative 2-norm */
    float scale;      /* of the loss */
} precisions[] = {{DPT_PRECISION_FP32, "fp32", 1e-4, 1},
                  {DPT_PRECISION_BF16, "bf16", 1e-2, 1},
                  {DPT_PRECISION_FP16, "fp16", 1e-2, 1024}};
enum { PRECISIONS = sizeof precisions / sizeof precisions[0] };

static void must(enum dpt_status status, const struct dpt_err *err)
{
    if (status == DPT_OK)
        return;
    (void)fprintf(stderr, "%s\n", err->text);
    exit(1);
}

static void ignore(void *ctx, int param)
{
    (void)ctx;
    (void)param;
}

struct family {
    const char *name, *model; /* the config's section */
    int t;
};
static const struct family small[] = {
    {"gpt2", "name: gpt2, n_layer: 2, n_head: 2, n_embd: 128, context: 64, vocab: 512", 64},
    {"llama",
     "name: llama, n_layer: 2, n_head: 4, n_kv_head: 2, n_embd: 128, n_inner: 192, context: 64, "
     "vocab: 512",
     64},
    {"llama, untied",
     "name: llama, n_layer: 2, n_head: 4, n_kv_head: 1, head_size: 64, n_embd: 128, n_inner: 192, "
     "context: 64, vocab: 512, tied_head: false, attention_bias: true, mlp_bias: true, "
     "rope_scaling: llama3, rope_original_context: 32",
     64}};
static const struct family gpt2_124m = {"gpt2 124m", "name: gpt2, preset: gpt2-124m", 256};

static struct dpt_model *make_family_model(const struct family *family,
                                           enum dpt_precision precision)
{
    char yaml[1024];
    (void)snprintf(yaml, sizeof yaml,
                   "run: gradients\nseed: 3\nmodel: {%s, dropout: 0.1}\n"
                   "data: {kind: text, train: none, tokenizer: bytes}\n"
                   "train: {steps: 1, global_batch: 2, micro_batch: 2, seq_len: %d}\n",
                   family->model, family->t);
    struct dpt_err err;
    struct dpt_config config;
    struct dpt_model *model;
    must(dpt_config_load_text(yaml, "test", NULL, 0, &config, &err), &err);
    config.train.precision = precision;
    must(dpt_model_create(&config, &model, &err), &err);
    return model;
}

struct step {
    const struct dpt_model *model;
    const float *weights; /* (flat) f32 */
    const int32_t *tokens, *targets;
    int64_t t;
    float scale;
    int64_t step; /* dropout's */
};

/* The flat gradients, as the device computes them. To be freed. */
static float *gradients_of(struct test_stream *device, const struct step *s)
{
    const int64_t numel = dpt_model_flat_numel(s->model), n = MICRO_BATCH * s->t;
    const enum dpt_dtype dtype = dpt_model_dtype(s->model);
    const size_t bytes = (size_t)numel * sizeof(float), width = dpt_dtype_bytes(dtype);
    const size_t saved = dpt_model_saved_bytes(s->model, MICRO_BATCH, s->t);
    const size_t scratch = dpt_model_scratch_bytes(s->model, MICRO_BATCH, s->t);
    float *ret = calloc((size_t)numel, sizeof *ret);
    char *zeros = calloc(1, saved > scratch ? saved : scratch);
    DPT_ASSERT(ret && zeros);
    float *masters = test_upload(device, s->weights, bytes);
    float *grads = test_upload(device, ret, bytes);
    char *rounded = test_upload(device, ret, (size_t)numel * width);
    float *losses = test_upload(device, ret, (size_t)n * sizeof *losses);
    struct dpt_slot slot = {
        .mode = DPT_MODE_TRAIN,
        .seed = 3,
        .step = s->step,
        .b = MICRO_BATCH,
        .t = s->t,
        .batch = {.part = {test_upload(device, s->tokens, (size_t)n * sizeof *s->tokens),
                           test_upload(device, s->targets, (size_t)n * sizeof *s->targets)}},
        .dloss = s->scale / (float)n,
        .saved = test_upload(device, zeros, saved),
        .scratch = test_upload(device, zeros, scratch),
        .losses = losses,
        .announce = ignore,
    };
    const void *unit_weights[DPT_UNITS_MAX];
    float *unit_grads[DPT_UNITS_MAX];
    const int n_units = dpt_model_n_units(s->model);
    for (int u = 0; u < n_units; u++) {
        unit_weights[u] = rounded + (size_t)dpt_model_unit(s->model, u)->offset * width;
        unit_grads[u] = grads + dpt_model_unit(s->model, u)->offset;
    }
    slot.weights = unit_weights;
    slot.grads = unit_grads;
    device->ops->cast(device->stream, numel, masters, dtype, rounded);
    for (int u = 0; u < n_units; u++)
        dpt_model_forward(s->model, device->ops, device->stream, u, &slot);
    for (int u = n_units - 1; u >= 0; u--)
        dpt_model_backward(s->model, device->ops, device->stream, u, &slot);
    test_download(device, grads, bytes, ret);
    dpt_device_free(device->device, masters, bytes);
    dpt_device_free(device->device, grads, bytes);
    dpt_device_free(device->device, rounded, (size_t)numel * width);
    dpt_device_free(device->device, losses, (size_t)n * sizeof *losses);
    for (int part = 0; part < DPT_SAMPLE_PARTS; part++)
        dpt_device_free(device->device, slot.batch.part[part], (size_t)n * sizeof *s->tokens);
    dpt_device_free(device->device, slot.saved, saved);
    dpt_device_free(device->device, slot.scratch, scratch);
    free(zeros);
    return ret;
}

/* Softmax ignores a component that all keys share. The rest of their gradient is small beside the
 * rounding of the scores' gradient, above all for a bias; while attention is still weak, so is the
 * queries' gradient. GPT-2 has both in one tensor with the values' gradient. */
static double allowance(const char *name)
{
    enum { QUERIES = 2, KEYS = 4, KEYS_BIAS = 16 };
    if (strstr(name, "k_proj") == NULL)
        return strstr(name, "q_proj") == NULL ? 1 : QUERIES;
    return strstr(name, "bias") == NULL ? KEYS : KEYS_BIAS;
}

/* How many tensors are further apart than that; the worst is printed. */
static int compare(const struct dpt_model *model, const char *what, double tolerance,
                   const float *a, const float *b)
{
    int off = 0, worst = 0;
    double most = -1;
    for (int i = 0; i < dpt_model_n_params(model); i++) {
        const struct dpt_param *param = dpt_model_param(model, i);
        double distance = 0, norm = 0;
        for (int64_t k = param->offset; k < param->offset + param->numel; k++) {
            distance += ((double)a[k] - b[k]) * ((double)a[k] - b[k]);
            norm += (double)b[k] * b[k];
        }
        const double error = sqrt(distance / norm) / allowance(param->name);
        if (!(error <= tolerance))
            off++;
        if (!(error <= most)) {
            most = error;
            worst = i;
        }
    }
    (void)fprintf(stderr, "%s: the worst of %d tensors: %s, %.3g of %.3g\n", what,
                  dpt_model_n_params(model), dpt_model_param(model, worst)->name, most, tolerance);
    return off;
}

static void check_gradients(struct test_stream *gpu, struct test_stream *cpu,
                            const struct family *family, int which)
{
    struct dpt_model *model = make_family_model(family, precisions[which].precision);
    struct dpt_model *exact = make_family_model(family, DPT_PRECISION_FP32);
    const int64_t t = family->t, n = MICRO_BATCH * t;
    char what[64];
    (void)snprintf(what, sizeof what, "%s, %s", family->name, precisions[which].name);
    float *weights = calloc((size_t)dpt_model_flat_numel(model), sizeof *weights);
    float *noise = malloc((size_t)n * 2 * sizeof *noise);
    int32_t *tokens = malloc((size_t)n * 2 * sizeof *tokens);
    DPT_ASSERT(weights && noise && tokens);
    dpt_model_init_range(model, cpu->ops, cpu->stream, fill_random_seed,
                         (struct dpt_span){0, dpt_model_flat_numel(model)}, weights);
    cpu->ops->round_to(cpu->stream, dpt_model_flat_numel(model), dpt_model_dtype(model), weights);
    test_stream_check(cpu);
    fill_random(noise, n * 2, 1);
    for (int64_t i = 0; i < n * 2; i++) /* few are frequent, as in texts */
        tokens[i] = (int32_t)pow(dpt_model_vocab(model), fmin(fabs(noise[i]), 0.999)) - 1;
    struct step step = {.model = exact,
                        .weights = weights,
                        .tokens = tokens,
                        .targets = tokens + n,
                        .t = t,
                        .scale = precisions[which].scale};
    float *theirs = gradients_of(cpu, &step);
    step.model = model;
    float *mine = gradients_of(gpu, &step);
    CHECK(compare(model, what, precisions[which].tolerance, mine, theirs) == 0);
    free(mine);
    step.step = 1; /* other masks of dropout: that must be noticed */
    mine = gradients_of(gpu, &step);
    CHECK(compare(model, "another step's", precisions[which].tolerance, mine, theirs) > 0);
    free(mine);
    free(theirs);
    free(weights);
    free(noise);
    free(tokens);
    dpt_model_destroy(&model);
    dpt_model_destroy(&exact);
}

int main(int argc, char **argv)
{
    const bool large = argc > 1 && strcmp(argv[1], "124m") == 0;
    struct test_stream gpu = gpu_open(), cpu = test_stream_open(2);
    gpu_seed();
    const struct family *const families = large ? &gpt2_124m : small;
    const int n_families = large ? 1 : (int)(sizeof small / sizeof *small);
    for (int f = 0; f < n_families; f++)
        for (int i = 0; i < PRECISIONS; i++)
            check_gradients(&gpu, &cpu, &families[f], i);
    test_stream_close(&gpu);
    test_stream_close(&cpu);
    return gpu_verdict("gradients");
}
