/* The plain loop (plain.h): the gradients of a lane's slots one after another, the lanes added up
 * by recursion over their tree; slot after slot under `accumulate: reduce`. */
#include "tests/worker/train/plain.h"

#include "base/accum.h"
#include "base/strategy_traits.h"
#include "checkpoint/checkpoint.h"
#include "kernels/device.h"
#include "kernels/half.h"
#include "kernels/ops.h"
#include "worker/data/data.h"
#include "worker/model/model.h"
#include "worker/optim/optim.h"
#include "worker/plan/lanes.h"
#include "worker/train/device/frozen_base.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LANES_MAX = 16, TENSORS_MAX = 64 };

struct plain {
    const struct dpt_config *config;
    struct dpt_device *device;
    struct dpt_stream *stream;
    const struct dpt_ops *ops;
    struct dpt_model *model;
    struct dpt_frozen_base *base; /* of adapters; else NULL */
    struct dpt_data *data;
    struct dpt_loader *loader;
    int64_t numel;
    float *param, *m, *v, *lane[LANES_MAX], *slot;
    char *copy; /* the weights in the compute dtype, converted from the parameters for each slot */
    float *token_losses;
    double *squares;
    bool scales;
    double scale; /* of the loss: the rules of worker/optim/scaler.h, implemented again */
    int64_t good_steps, skipped;
    void *saved, *scratch;
};

#define OK(call)                                                                                   \
    do {                                                                                           \
        struct dpt_err *const err_ = &(struct dpt_err){.status = DPT_OK};                          \
        if ((call) != DPT_OK)                                                                      \
            fail_msg("%s", err_->text);                                                            \
    } while (0)

static void *room(size_t bytes)
{
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    assert_non_null(memory);
    memset(memory, 0, bytes);
    return memory;
}

static void plain_begin(struct plain *p)
{
    const struct dpt_config *c = p->config;
    OK(dpt_device_cpu_create(&p->device, err_));
    OK(dpt_stream_create(p->device, 1, &p->stream, err_));
    p->ops = dpt_device_ops(p->device);
    OK(dpt_model_create(c, &p->model, err_));
    const struct dpt_frozen_base_options base = {.config = c,
                                                 .model = p->model,
                                                 .host_ops = p->ops,
                                                 .host_stream = p->stream,
                                                 .device = p->device,
                                                 .stream = p->stream,
                                                 .ranks = 1};
    if (dpt_model_base(p->model))
        OK(dpt_frozen_base_create(&base, &p->base, err_));
    OK(dpt_data_open(c, &p->data, err_));
    OK(dpt_loader_create(c, p->data, &p->loader, err_));
    int64_t b = c->train.micro_batch, t = c->train.seq_len;
    p->numel = dpt_model_flat_numel(p->model);
    size_t bytes = (size_t)p->numel * sizeof(float);
    p->param = room(bytes);
    p->copy = room(bytes);
    p->m = room(bytes);
    p->v = room(bytes);
    p->slot = room(bytes);
    assert_true(dpt_config_lanes(c) <= LANES_MAX);
    for (int i = 0; i < dpt_config_lanes(c); i++)
        p->lane[i] = room(bytes);
    p->token_losses = room((size_t)(b * t) * sizeof(float));
    p->squares = room((size_t)dpt_optim_squares_max(p->model, p->numel) * sizeof(double));
    p->scales =
        c->train.precision == DPT_PRECISION_FP16 || c->strategy.compression == DPT_COMPRESSION_FP16;
    p->scale = p->scales ? c->train.loss_scale : 1.0;
    p->saved = room(dpt_model_saved_bytes(p->model, b, t));
    p->scratch = room(dpt_model_scratch_bytes(p->model, b, t));
    dpt_model_init_range(p->model, p->ops, p->stream, c->seed,
                         (struct dpt_span){0, dpt_model_flat_numel(p->model)}, p->param);
    OK(dpt_stream_sync(p->stream, err_));
}

static void plain_end(struct plain *p)
{
    for (int i = 0; i < LANES_MAX; i++)
        free(p->lane[i]);
    free(p->slot);
    free(p->param);
    free(p->copy);
    free(p->m);
    free(p->v);
    free(p->token_losses);
    free(p->squares);
    free(p->saved);
    free(p->scratch);
    dpt_loader_destroy(&p->loader);
    dpt_data_close(&p->data);
    dpt_frozen_base_destroy(&p->base);
    dpt_model_destroy(&p->model);
    dpt_stream_destroy(&p->stream);
    dpt_device_destroy(&p->device);
}

static void ignore(void *ctx, int param)
{
    (void)ctx;
    (void)param;
}

/* The parameters in the compute dtype, unit by unit. */
static void round_weights(struct plain *p, const void *ret[DPT_UNITS_MAX])
{
    const enum dpt_dtype dtype = dpt_model_dtype(p->model);
    p->ops->cast(p->stream, p->numel, p->param, dtype, p->copy);
    for (int u = 0; u < dpt_model_n_units(p->model); u++)
        ret[u] = p->copy + (size_t)dpt_model_unit(p->model, u)->offset * dpt_dtype_bytes(dtype);
}

/* As it is carried: strategy.compression. */
static float carried(const struct plain *p, float x)
{
    if (p->config->strategy.compression == DPT_COMPRESSION_BF16)
        return dpt_f32_of_bf16(dpt_bf16_of_f32(x));
    if (p->config->strategy.compression == DPT_COMPRESSION_FP16)
        return dpt_f32_of_f16(dpt_f16_of_f32(x));
    return x;
}

/* Forward and backward of one slot; its gradient is added to the sum's. Slots that travel one by
 * one are rounded one by one. */
static void run_slot(struct plain *p, int64_t step, int index, float *sum, bool accumulate)
{
    const struct dpt_config *c = p->config;
    int n_units = dpt_model_n_units(p->model);
    const void *weights[DPT_UNITS_MAX];
    float *grads[DPT_UNITS_MAX];
    round_weights(p, weights);
    for (int u = 0; u < n_units; u++)
        grads[u] = p->slot + dpt_model_unit(p->model, u)->offset;
    const int64_t b = c->train.micro_batch, losses = dpt_sample_form(c).losses;
    struct dpt_slot slot = {
        .mode = DPT_MODE_TRAIN,
        .seed = c->seed,
        .step = step,
        .slot = index,
        .b = b,
        .weights = weights,
        .base = dpt_frozen_base_weights(p->base),
        .base_packed = dpt_frozen_base_packed(p->base),
        .grads = grads,
        .dloss = (float)p->scale * (float)(1.0 / ((double)(b * losses) * dpt_config_slots(c))),
        .share = (float)(1.0 / dpt_config_slots(c)),
        .saved = p->saved,
        .scratch = p->scratch,
        .losses = p->token_losses,
        .announce = ignore,
    };
    OK(dpt_loader_next(p->loader, step, index, &slot.batch, err_));
    slot.t = slot.batch.positions;
    for (int u = 0; u < n_units; u++)
        dpt_model_forward(p->model, p->ops, p->stream, u, &slot);
    for (int u = n_units - 1; u >= 0; u--)
        dpt_model_backward(p->model, p->ops, p->stream, u, &slot);
    OK(dpt_stream_sync(p->stream, err_));
    const bool reduce = dpt_strategy_traits(c).order == DPT_ACCUMULATE_REDUCE;
    for (int64_t i = 0; i < p->numel; i++) {
        const float term = reduce ? carried(p, p->slot[i]) : p->slot[i];
        sum[i] = accumulate ? sum[i] + term : term;
    }
}

static float tree(const struct plain *p, struct dpt_range node, int64_t i)
{
    if (node.end - node.first == 1)
        return carried(p, p->lane[node.first][i]);
    int half = 1;
    while (2 * half < node.end - node.first)
        half *= 2;
    float left = tree(p, (struct dpt_range){node.first, node.first + half}, i);
    float right = tree(p, (struct dpt_range){node.first + half, node.end}, i);
    return carried(p, left + right);
}

/* fp16: true when the step is not to be applied. */
static bool overflowed(struct plain *p, double norm)
{
    const struct dpt_config *c = p->config;
    if (!p->scales)
        return false;
    if (!isfinite(norm)) {
        p->scale *= c->train.loss_scale_backoff;
        p->good_steps = 0;
        p->skipped++;
        return true;
    }
    p->good_steps++;
    if (p->good_steps == c->train.loss_scale_interval) {
        p->scale *= c->train.loss_scale_growth;
        p->good_steps = 0;
    }
    return false;
}

/* What is differentiated carries the loss's scale; running statistics do not. */
static void unscale(struct plain *p)
{
    for (int i = 0; i < dpt_model_n_params(p->model); i++) {
        const struct dpt_param *param = dpt_model_param(p->model, i);
        for (int64_t j = 0; j < param->numel && !param->averaged; j++)
            p->lane[0][param->offset + j] /= (float)p->scale;
    }
}

static void train_step(struct plain *p, int64_t step)
{
    /* `reduce` adds slot after slot: one lane. */
    const bool reduce = dpt_strategy_traits(p->config).order == DPT_ACCUMULATE_REDUCE;
    int slots = dpt_config_slots(p->config), lanes = reduce ? 1 : dpt_config_lanes(p->config);
    for (int lane = 0; lane < lanes; lane++) {
        struct dpt_range of_lane = dpt_lane_slots(slots, lanes, lane);
        for (int s = of_lane.first; s < of_lane.end; s++)
            run_slot(p, step, s, p->lane[lane], s != of_lane.first);
    }
    for (int64_t i = 0; i < p->numel; i++)
        p->lane[0][i] = tree(p, (struct dpt_range){0, lanes}, i);
    unscale(p);
    struct dpt_accum sum;
    dpt_accum_init(&sum);
    const struct dpt_span all = {0, p->numel};
    (void)dpt_optim_squares(p->model, p->ops, p->stream, all, p->lane[0], p->squares);
    (void)dpt_optim_squares_add(p->model, all, p->squares, &sum);
    const double norm = sqrt(dpt_accum_value(&sum));
    const struct dpt_optim_step update = {
        .step = step,
        .updates = step - p->skipped,
        .grad_scale = dpt_optim_clip_scale(norm, p->config->train.grad_clip)};
    if (overflowed(p, norm))
        return;
    const struct dpt_optim_vectors flat = {
        .span = all, .param = p->param, .m = p->m, .v = p->v, .grad = p->lane[0]};
    dpt_optim_update(p->config, p->model, p->ops, p->stream, &update, &flat);
    OK(dpt_stream_sync(p->stream, err_));
}

static struct plain_validation validate(struct plain *p, int64_t samples)
{
    const struct dpt_sample_form form = dpt_sample_form(p->config);
    const void *weights[DPT_UNITS_MAX];
    round_weights(p, weights);
    void *memory = room(dpt_batch_bytes(&form, 1));
    float right = 0;
    struct dpt_data *val = NULL;
    OK(dpt_data_open_val(p->config, &val, err_));
    struct dpt_slot slot = {.mode = DPT_MODE_EVAL,
                            .b = 1,
                            .batch = dpt_batch_at(&form, 1, memory),
                            .weights = weights,
                            .base = dpt_frozen_base_weights(p->base),
                            .base_packed = dpt_frozen_base_packed(p->base),
                            .saved = p->saved,
                            .scratch = p->scratch,
                            .losses = p->token_losses,
                            .right = dpt_model_labels(p->model) > 0 ? &right : NULL};
    struct plain_validation found = {0};
    for (int64_t s = 0; s < samples; s++) {
        OK(dpt_data_read(val, s, DPT_DATA_NOT_VARIED, &slot.batch, 0, err_));
        dpt_batch_close(&form, &slot.batch, 1);
        slot.t = slot.batch.positions;
        for (int u = 0; u < dpt_model_n_units(p->model); u++)
            dpt_model_forward(p->model, p->ops, p->stream, u, &slot);
        OK(dpt_stream_sync(p->stream, err_));
        for (int64_t i = 0; i < form.losses; i++)
            found.loss += (double)p->token_losses[i];
        found.right += right != 0;
    }
    dpt_data_close(&val);
    free(memory);
    found.loss /= (double)(samples * form.losses);
    return found;
}

void plain_train_and_evaluate(const struct dpt_config *config, int64_t samples,
                              char ret_hex[DPT_HASH_HEX_BYTES], struct plain_validation *ret)
{
    struct plain p = {.config = config};
    plain_begin(&p);
    dpt_loader_start(p.loader, 0, 0, dpt_config_slots(config), 1);
    for (int64_t step = 0; step < config->train.steps; step++)
        train_step(&p, step);
    static struct dpt_checkpoint_tensor tensors[TENSORS_MAX];
    int n = dpt_model_n_params(p.model);
    assert_true(n <= TENSORS_MAX);
    for (int i = 0; i < n; i++) {
        const struct dpt_param *param = dpt_model_param(p.model, i);
        tensors[i] = (struct dpt_checkpoint_tensor){
            .name = param->name, .ndim = param->ndim, .param = p.param + param->offset};
        memcpy(tensors[i].dim, param->dim, sizeof param->dim);
    }
    dpt_hash128_hex(dpt_weights_hash(tensors, n), ret_hex);
    if (samples > 0)
        *ret = validate(&p, samples);
    plain_end(&p);
}

void plain_train_and_validate(const struct dpt_config *config, int64_t sequences,
                              char ret_hex[DPT_HASH_HEX_BYTES], double *ret_loss)
{
    struct plain_validation found;
    plain_train_and_evaluate(config, sequences, ret_hex, &found);
    *ret_loss = found.loss;
}

void plain_train(const struct dpt_config *config, char ret_hex[DPT_HASH_HEX_BYTES])
{
    plain_train_and_evaluate(config, 0, ret_hex, NULL);
}
