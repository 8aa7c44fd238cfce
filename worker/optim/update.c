/* The optimizer's step over a range of the flat vectors (optim.h). */
#include "worker/optim/optim.h"

#include <string.h>

/* base^n by squaring: no libm, the same bits everywhere. */
static double power(double base, int64_t n)
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

bool dpt_optim_has_second_moment(const struct dpt_config *config)
{
    return !is_sgd(config);
}

/* One kind of update; its numbers are the step's, its vectors are set for each tensor. */
struct update {
    bool is_sgd;
    struct dpt_adamw adamw;
    struct dpt_sgd sgd;
    enum dpt_dtype copy_dtype;
    float weight_decay;
};

static struct update update_of(const struct dpt_config *config, const struct dpt_model *model,
                               const struct dpt_optim_step *step)
{
    const float lr = (float)dpt_lr(config, step->step);
    struct update u = {.is_sgd = is_sgd(config),
                       .copy_dtype = dpt_model_dtype(model),
                       .weight_decay = (float)config->optimizer.weight_decay};
    u.sgd = (struct dpt_sgd){.lr = lr,
                             .momentum = (float)config->optimizer.momentum,
                             .nesterov = config->optimizer.nesterov,
                             .grad_scale = step->grad_scale,
                             .copy_dtype = u.copy_dtype};
    const double beta1 = config->optimizer.beta1, beta2 = config->optimizer.beta2;
    u.adamw = (struct dpt_adamw){.lr = lr,
                                 .beta1 = (float)beta1,
                                 .beta2 = (float)beta2,
                                 .eps = (float)config->optimizer.eps,
                                 .bias1 = (float)(1.0 - power(beta1, step->updates + 1)),
                                 .bias2 = (float)(1.0 - power(beta2, step->updates + 1)),
                                 .grad_scale = step->grad_scale,
                                 .copy_dtype = u.copy_dtype};
    return u;
}

/* n elements from `at` on, of a tensor that decays or does not. */
static void run(const struct update *u, const struct dpt_ops *ops, struct dpt_stream *stream,
                int64_t at, int64_t n, bool decay, const struct dpt_optim_vectors *vectors)
{
    void *copy =
        vectors->copy ? (char *)vectors->copy + (size_t)at * dpt_dtype_bytes(u->copy_dtype) : NULL;
    if (u->is_sgd) {
        struct dpt_sgd args = u->sgd;
        args.n = n;
        args.weight_decay = decay ? u->weight_decay : 0.0f;
        args.param = vectors->param + at;
        args.grad = vectors->grad + at;
        args.m = vectors->m + at;
        args.copy = copy;
        ops->sgd(stream, &args);
    } else {
        struct dpt_adamw args = u->adamw;
        args.n = n;
        args.weight_decay = decay ? u->weight_decay : 0.0f;
        args.param = vectors->param + at;
        args.grad = vectors->grad + at;
        args.m = vectors->m + at;
        args.v = vectors->v + at;
        args.copy = copy;
        ops->adamw(stream, &args);
    }
}

void dpt_optim_update(const struct dpt_config *config, const struct dpt_model *model,
                      const struct dpt_ops *ops, struct dpt_stream *stream,
                      const struct dpt_optim_step *step, int64_t first, int64_t end,
                      const struct dpt_optim_vectors *flat)
{
    DPT_ASSERT(step->step >= 0 && step->updates >= 0 && step->updates <= step->step);
    DPT_ASSERT(flat->origin <= first && first >= 0 && first <= end &&
               end <= dpt_model_flat_numel(model));
    const struct update u = update_of(config, model, step);
    const int n_params = dpt_model_n_params(model);
    for (int i = 0; i < n_params; i++) {
        const struct dpt_param *p = dpt_model_param(model, i);
        const int64_t from = p->offset > first ? p->offset : first;
        const int64_t to = p->offset + p->numel < end ? p->offset + p->numel : end;
        if (from < to)
            run(&u, ops, stream, from - flat->origin, to - from, p->decay, flat);
    }
}
