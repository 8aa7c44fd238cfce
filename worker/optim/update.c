/* The optimizer's step over a range of the flat vectors (optim.h). */
#include "worker/optim/optim.h"

#include <string.h>

/* base^n by squaring: no libm, the same bits everywhere. */
static double integer_power(double base, int64_t n)
{
    double result = 1.0;
    for (; n > 0; n >>= 1) {
        if (n & 1)
            result *= base;
        base *= base;
    }
    return result;
}

static bool is_sgd(const struct dpt_config *config)
{
    return strcmp(config->optimizer.name, "sgd") == 0;
}

static bool is_adam(const struct dpt_config *config)
{
    return strcmp(config->optimizer.name, "adam") == 0;
}

bool dpt_optim_has_second_moment(const struct dpt_config *config)
{
    return !is_sgd(config);
}

/* The arguments of the op that makes an update. */
struct update {
    bool is_sgd;
    struct dpt_adamw adamw;
    struct dpt_sgd sgd;
};

static struct update update_of(const struct dpt_config *config, const struct dpt_model *model,
                               const struct dpt_optim_step *step)
{
    const float lr = (float)dpt_optim_lr(config, step->step);
    const float weight_decay = (float)config->optimizer.weight_decay;
    const enum dpt_dtype copy_dtype = dpt_model_dtype(model);
    struct update u = {.is_sgd = is_sgd(config)};
    u.sgd = (struct dpt_sgd){.lr = lr,
                             .momentum = (float)config->optimizer.momentum,
                             .nesterov = config->optimizer.nesterov,
                             .weight_decay = weight_decay,
                             .grad_scale = step->grad_scale,
                             .copy_dtype = copy_dtype};
    const double beta1 = config->optimizer.beta1, beta2 = config->optimizer.beta2;
    u.adamw = (struct dpt_adamw){.lr = lr,
                                 .beta1 = (float)beta1,
                                 .beta2 = (float)beta2,
                                 .eps = (float)config->optimizer.eps,
                                 .weight_decay = weight_decay,
                                 .l2 = is_adam(config),
                                 .bias1 = (float)(1.0 - integer_power(beta1, step->updates + 1)),
                                 .bias2 = (float)(1.0 - integer_power(beta2, step->updates + 1)),
                                 .grad_scale = step->grad_scale,
                                 .copy_dtype = copy_dtype};
    return u;
}

/* Running statistics use SGD's op without momentum: g = p - s, and the factor is the learning rate.
 */
static struct update average_of(const struct dpt_config *config, const struct dpt_model *model)
{
    const double kept =
        integer_power(1.0 - config->model.batch_norm_momentum, dpt_config_slots(config));
    return (struct update){.is_sgd = true,
                           .sgd = {.lr = (float)(1.0 - kept),
                                   .weight_decay = 1.0f,
                                   .grad_scale = -1.0f,
                                   .copy_dtype = dpt_model_dtype(model)}};
}

/* The parts of tensors in `span` that are running statistics (`averaged`), or all others. */
static int find_tensors(const struct dpt_model *model, bool averaged, struct dpt_span span,
                        struct dpt_updated ret[DPT_PARAMS_MAX])
{
    int n = 0;
    for (int i = 0; i < dpt_model_n_params(model); i++) {
        const struct dpt_param *p = dpt_model_param(model, i);
        const struct dpt_span part = dpt_span_overlap(span, dpt_param_span(p));
        if (p->averaged == averaged && part.first < part.end)
            ret[n++] = (struct dpt_updated){part.first - span.first, part.end - span.first,
                                            p->decay || averaged};
    }
    return n;
}

static void update_tensors(struct update *u, const struct dpt_ops *ops, struct dpt_stream *stream,
                           const struct dpt_updated *tensors, int n_tensors,
                           const struct dpt_optim_vectors *v)
{
    const int64_t n = v->span.end - v->span.first, at = v->span.first - v->origin;
    const enum dpt_dtype dtype = u->is_sgd ? u->sgd.copy_dtype : u->adamw.copy_dtype;
    void *copy = v->copy ? (char *)v->copy + (size_t)at * dpt_dtype_bytes(dtype) : NULL;
    if (u->is_sgd) {
        u->sgd.n = n;
        u->sgd.tensors = tensors;
        u->sgd.n_tensors = n_tensors;
        u->sgd.param = v->param + at;
        u->sgd.grad = v->grad + at;
        u->sgd.m = v->m + at;
        u->sgd.copy = copy;
        ops->sgd(stream, &u->sgd);
    } else {
        u->adamw.n = n;
        u->adamw.tensors = tensors;
        u->adamw.n_tensors = n_tensors;
        u->adamw.param = v->param + at;
        u->adamw.grad = v->grad + at;
        u->adamw.m = v->m + at;
        u->adamw.v = v->v + at;
        u->adamw.copy = copy;
        ops->adamw(stream, &u->adamw);
    }
}

void dpt_optim_update(const struct dpt_config *config, const struct dpt_model *model,
                      const struct dpt_ops *ops, struct dpt_stream *stream,
                      const struct dpt_optim_step *step, const struct dpt_optim_vectors *flat)
{
    DPT_ASSERT(step->step >= 0 && step->updates >= 0 && step->updates <= step->step);
    DPT_ASSERT(flat->span.first >= 0 && flat->origin <= flat->span.first &&
               flat->span.first <= flat->span.end && flat->span.end <= dpt_model_flat_numel(model));
    struct dpt_updated tensors[DPT_PARAMS_MAX];
    int n = find_tensors(model, false, flat->span, tensors);
    if (n > 0) {
        struct update u = update_of(config, model, step);
        update_tensors(&u, ops, stream, tensors, n, flat);
    }
    n = find_tensors(model, true, flat->span, tensors);
    if (n > 0) {
        struct update u = average_of(config, model);
        update_tensors(&u, ops, stream, tensors, n, flat);
    }
}
