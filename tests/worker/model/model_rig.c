/* A small model with its memory (model_rig.h). */
#include "tests/worker/model/model_rig.h"

#include "kernels/cpu/kernels.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { GUARD_BYTES = 64, GUARD = 0x5a, SEED = 5, LABELS = 5 };

static struct dpt_err err;
const struct dpt_cpu_kernels *rig_kernels;
enum rig_family rig_family;

void rig_choose(int argc, char **argv)
{
    static const char *const names[] = {
        "gpt2",      "llama",      "llama_untied",      "gpt2_labels", "llama_labels",
        "gpt2_lora", "llama_lora", "llama_labels_lora", "resnet",      "resnet_deep"};
    for (int i = 0; argc == 2 && i < (int)(sizeof names / sizeof *names); i++)
        if (strcmp(argv[1], names[i]) == 0) {
            rig_family = (enum rig_family)i;
            return;
        }
    (void)fprintf(stderr, "usage: %s FAMILY, one of model_rig.h\n", argv[0]);
    exit(2);
}

bool rig_is_gpt2(void)
{
    return rig_family == RIG_GPT2 || rig_family == RIG_GPT2_LABELS || rig_family == RIG_GPT2_LORA;
}

bool rig_is_lora(void)
{
    return rig_family >= RIG_GPT2_LORA && rig_family <= RIG_LLAMA_LABELS_LORA;
}

bool rig_reads_images(void)
{
    return rig_family == RIG_RESNET || rig_family == RIG_RESNET_DEEP;
}

static bool has_labels(void)
{
    return rig_family == RIG_GPT2_LABELS || rig_family == RIG_LLAMA_LABELS ||
           rig_family == RIG_LLAMA_LABELS_LORA || rig_reads_images();
}

void *rig_memory(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (p == NULL)
        abort();
    return p;
}

static void *guarded(size_t bytes)
{
    uint8_t *p = rig_memory(bytes + GUARD_BYTES);
    memset(p, GUARD, bytes + GUARD_BYTES);
    return p;
}

static void check_guard(const void *p, size_t bytes)
{
    const uint8_t *guard = (const uint8_t *)p + bytes;
    for (int i = 0; i < GUARD_BYTES; i++)
        assert_int_equal(guard[i], GUARD);
}

static float *floats(int64_t n)
{
    return rig_memory((size_t)n * sizeof(float));
}

static void fill_weights(struct rig *rig, const struct dpt_model *model, float *flat)
{
    memset(flat, 0, (size_t)dpt_model_flat_numel(model) * sizeof(float));
    for (int i = 0; i < dpt_model_n_params(model); i++) {
        const struct dpt_param *p = dpt_model_param(model, i);
        const float mean = p->init == DPT_INIT_ONE ? 1.0f : 0.0f;
        rig->ops->fill_normal(
            rig->stream, p->numel,
            &(struct dpt_normal){dpt_rng_key(SEED, DPT_RNG_TEST, (uint64_t)i, 0, 0), 0, mean,
                                 0.15f},
            flat + p->offset);
    }
    assert_int_equal(dpt_stream_sync(rig->stream, &err), DPT_OK);
}

/* What the adapters go with. */
static void make_base(struct rig *rig)
{
    const struct dpt_model *base = dpt_model_base(rig->model);
    if (base == NULL)
        return;
    const int64_t numel = dpt_model_flat_numel(base);
    const size_t elem = dpt_dtype_bytes(dpt_model_dtype(base));
    rig->base = floats(numel);
    if (dpt_model_dtype(base) != DPT_F32)
        rig->base_copy = rig_memory((size_t)numel * elem);
    const char *weights = rig->base_copy ? rig->base_copy : (void *)rig->base;
    for (int u = 0; u < dpt_model_n_units(base); u++)
        rig->base_weights[u] = weights + (size_t)dpt_model_unit(base, u)->offset * elem;
    fill_weights(rig, base, rig->base);
    rig->slot.base = rig->base_weights;
}

static void fill_images(struct rig *rig, int which)
{
    rig->ops->fill_normal(
        rig->stream, rig->slot.b * rig->pixels,
        &(struct dpt_normal){dpt_rng_key(SEED, DPT_RNG_TEST, 1, 2, (uint64_t)which), 0, 0.0f, 1.0f},
        rig->images);
    assert_int_equal(dpt_stream_sync(rig->stream, &err), DPT_OK);
}

void rig_vary(struct rig *rig, int by)
{
    if (rig->images != NULL)
        fill_images(rig, by);
    for (int64_t i = 0; i < rig->n; i++) {
        if (rig->images == NULL)
            rig->tokens[i] = (rig->tokens[i] + by) % rig->config.model.vocab;
        rig->targets[i] = (rig->targets[i] + 5 * by) % rig->classes;
    }
}

static void fill_samples(struct rig *rig)
{
    const struct dpt_rng_key key = dpt_rng_key(SEED, DPT_RNG_TEST, 1, 1, 0);
    if (rig->images != NULL)
        fill_images(rig, 0);
    for (int64_t i = 0; i < rig->n; i++) {
        uint32_t block[4];
        dpt_philox(key, (uint64_t)i, block);
        if (rig->images == NULL)
            rig->tokens[i] = (int32_t)(block[0] % (uint32_t)rig->config.model.vocab);
        rig->targets[i] = (int32_t)(block[1] % (uint32_t)rig->classes);
    }
    for (int64_t i = 0; i < rig->slot.b; i++)
        rig->lengths[i] = i == 0 ? (int32_t)rig->slot.t : 1 + (int32_t)(i * 5 % rig->slot.t);
}

void rig_open(struct rig *rig, const struct rig_size *size)
{
    rig_open_checkpointing(rig, size, DPT_ACTIVATION_CHECKPOINTING_NONE);
}

static void choose_llama(struct dpt_config *config)
{
    (void)snprintf(config->model.name, sizeof config->model.name, "%s", "llama");
    const int heads = config->model.n_head;
    config->model.n_kv_head = heads % 3 == 0 ? heads / 3 : heads;
    config->model.head_size = 32;
    config->model.n_inner = 96;
    config->model.norm_eps = 1e-5;
    config->model.rope_theta = 100.0;
    config->model.tied_head = rig_family != RIG_LLAMA_UNTIED;
    if (rig_family != RIG_LLAMA_UNTIED)
        return;
    config->model.attention_bias = config->model.mlp_bias = true;
    config->model.rope_scaling = DPT_ROPE_SCALING_LLAMA3;
    config->model.rope_factor = 4.0;
    config->model.rope_low_freq_factor = 1.0;
    config->model.rope_high_freq_factor = 4.0;
    config->model.rope_original_context = 16;
}

/* The last stage sees more than one pixel of a single image. */
static void choose_resnet(struct dpt_config *config, const struct rig_size *size)
{
    const bool deep = rig_family == RIG_RESNET_DEEP;
    const int side = (size->t + 1) / 2, least = deep ? 9 : 3, second = size->n_layer / 2;
    (void)snprintf(config->model.name, sizeof config->model.name, "%s", "resnet");
    config->model.width = (size->n_embd + 3) / 4;
    config->model.stem = deep ? DPT_STEM_IMAGENET : DPT_STEM_CIFAR;
    config->model.block = deep ? DPT_RESIDUAL_BLOCK_BOTTLENECK : DPT_RESIDUAL_BLOCK_BASIC;
    config->model.stages =
        (struct dpt_config_steps){second > 0 ? 2 : 1, {size->n_layer - second, second}};
    config->data.kind = DPT_DATA_IMAGES;
    config->data.image_size = side > least ? side : least;
}

void rig_open_checkpointing(struct rig *rig, const struct rig_size *size,
                            enum dpt_activation_checkpointing checkpointing)
{
    static struct dpt_config config;
    memset(&config, 0, sizeof config);
    (void)snprintf(config.model.name, sizeof config.model.name, "%s", "gpt2");
    config.model.n_layer = size->n_layer;
    config.model.n_head = size->n_head;
    config.model.n_embd = size->n_embd;
    config.model.context = size->context;
    config.model.vocab = size->vocab;
    config.model.dropout = size->dropout;
    config.train.precision = size->precision;
    config.train.activation_checkpointing = checkpointing;
    if (rig_reads_images())
        choose_resnet(&config, size);
    else if (!rig_is_gpt2())
        choose_llama(&config);
    if (has_labels())
        config.model.labels = LABELS;
    if (rig_is_lora()) {
        config.train.lora.rank = 3;
        config.train.lora.alpha = 4.5;
        config.train.lora.targets = has_labels() ? DPT_LORA_Q_PROJ | DPT_LORA_V_PROJ : DPT_LORA_ALL;
    }
    rig_open_config(rig, &config, size->b, rig_reads_images() ? 1 : size->t, size->threads);
}

void rig_open_config(struct rig *rig, const struct dpt_config *config, int b, int t, int threads)
{
    memset(rig, 0, sizeof *rig);
    rig->config = *config;
    assert_int_equal(dpt_model_create(&rig->config, &rig->model, &err), DPT_OK);
    assert_int_equal(rig_kernels ? dpt_device_cpu_create_with(rig_kernels, &rig->dev, &err)
                                 : dpt_device_cpu_create(&rig->dev, &err),
                     DPT_OK);
    assert_int_equal(dpt_stream_create(rig->dev, threads, &rig->stream, &err), DPT_OK);
    rig->ops = dpt_device_ops(rig->dev);
    rig->n = (int64_t)b * t;
    rig->losses = dpt_model_labels(rig->model) > 0 ? b : rig->n;
    rig->classes = dpt_model_labels(rig->model) > 0 ? dpt_model_labels(rig->model)
                                                    : dpt_model_vocab(rig->model);
    rig->numel = dpt_model_flat_numel(rig->model);
    rig->flat = floats(rig->numel);
    rig->grad = floats(rig->numel);
    rig->tokens = rig_memory((size_t)rig->n * sizeof *rig->tokens);
    if (dpt_config_reads_images(config)) {
        rig->pixels = (int64_t)config->data.image_size * config->data.image_size * 3;
        rig->images = floats(b * rig->pixels);
    }
    rig->targets = rig_memory((size_t)rig->n * sizeof *rig->targets);
    rig->lengths = rig_memory((size_t)b * sizeof *rig->lengths);
    rig->right = floats(b);
    for (int64_t i = 0; i < rig->numel; i++)
        rig->grad[i] = NAN;
    const size_t elem = dpt_dtype_bytes(dpt_model_dtype(rig->model));
    if (dpt_model_dtype(rig->model) != DPT_F32)
        rig->copy = rig_memory((size_t)rig->numel * elem);
    const char *weights = rig->copy ? rig->copy : (void *)rig->flat;
    for (int u = 0; u < dpt_model_n_units(rig->model); u++) {
        rig->weights[u] = weights + (size_t)dpt_model_unit(rig->model, u)->offset * elem;
        rig->grads[u] = rig->grad + dpt_model_unit(rig->model, u)->offset;
    }
    fill_weights(rig, rig->model, rig->flat);
    rig->saved_bytes = dpt_model_saved_bytes(rig->model, b, t);
    rig->scratch_bytes = dpt_model_scratch_bytes(rig->model, b, t);
    rig->slot = (struct dpt_slot){
        .mode = DPT_MODE_TRAIN,
        .seed = SEED,
        .b = b,
        .t = t,
        .batch = {.part = {rig->images ? (void *)rig->images : rig->tokens, rig->targets,
                           rig->lengths},
                  .positions = t},
        .weights = rig->weights,
        .grads = rig->grads,
        .dloss = 1.0f / (float)rig->losses,
        .share = 1.0f,
        .saved = guarded(rig->saved_bytes),
        .scratch = guarded(rig->scratch_bytes),
        .losses = floats(rig->n),
        .right = dpt_model_labels(rig->model) > 0 ? rig->right : NULL,
    };
    make_base(rig);
    memset(rig->slot.losses, 0, (size_t)rig->n * sizeof *rig->slot.losses);
    fill_samples(rig);
}

void rig_close(struct rig *rig)
{
    check_guard(rig->slot.saved, rig->saved_bytes);
    check_guard(rig->slot.scratch, rig->scratch_bytes);
    free(rig->slot.saved);
    free(rig->slot.scratch);
    free(rig->slot.losses);
    free(rig->tokens);
    free(rig->images);
    free(rig->targets);
    free(rig->lengths);
    free(rig->right);
    free(rig->flat);
    free(rig->copy);
    free(rig->base);
    free(rig->base_copy);
    free(rig->grad);
    dpt_model_destroy(&rig->model);
    dpt_stream_destroy(&rig->stream);
    dpt_device_destroy(&rig->dev);
}

double rig_mean_loss(const struct rig *rig)
{
    double sum = 0.0;
    for (int64_t i = 0; i < rig->losses; i++)
        sum += (double)rig->slot.losses[i];
    return sum / (double)rig->losses;
}

double rig_run(struct rig *rig)
{
    const int units = dpt_model_n_units(rig->model);
    if (rig->copy)
        rig->ops->cast(rig->stream, rig->numel, rig->flat, dpt_model_dtype(rig->model), rig->copy);
    if (rig->base_copy)
        rig->ops->cast(rig->stream, dpt_model_flat_numel(dpt_model_base(rig->model)), rig->base,
                       dpt_model_dtype(rig->model), rig->base_copy);
    for (int u = 0; u < units; u++)
        dpt_model_forward(rig->model, rig->ops, rig->stream, u, &rig->slot);
    if (rig->slot.mode == DPT_MODE_TRAIN)
        for (int u = units - 1; u >= 0; u--)
            dpt_model_backward(rig->model, rig->ops, rig->stream, u, &rig->slot);
    assert_int_equal(dpt_stream_sync(rig->stream, &err), DPT_OK);
    return rig_mean_loss(rig);
}
