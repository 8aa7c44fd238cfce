/* AdamW over a range of the flat vectors (optim.h). */
#include "worker/optim/optim.h"

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

void dpt_optim_adamw(const struct dpt_config *config, const struct dpt_model *model,
                     const struct dpt_ops *ops, struct dpt_stream *stream, int64_t step,
                     float grad_scale, int64_t first, int64_t end,
                     const struct dpt_optim_vectors *flat)
{
    DPT_ASSERT(step >= 0 && first >= 0 && first <= end && end <= dpt_model_flat_numel(model));
    struct dpt_adamw args = {
        .lr = (float)dpt_lr(config, step),
        .beta1 = (float)config->optimizer.beta1,
        .beta2 = (float)config->optimizer.beta2,
        .eps = (float)config->optimizer.eps,
        .bias1 = (float)(1.0 - power(config->optimizer.beta1, step + 1)),
        .bias2 = (float)(1.0 - power(config->optimizer.beta2, step + 1)),
        .grad_scale = grad_scale,
        .copy_dtype = dpt_model_dtype(model),
    };
    const int n_params = dpt_model_n_params(model);
    for (int i = 0; i < n_params; i++) {
        const struct dpt_param *p = dpt_model_param(model, i);
        const int64_t from = p->offset > first ? p->offset : first;
        const int64_t to = p->offset + p->numel < end ? p->offset + p->numel : end;
        if (from >= to)
            continue;
        args.n = to - from;
        args.weight_decay = p->decay ? (float)config->optimizer.weight_decay : 0.0f;
        args.param = flat->param + from;
        args.grad = flat->grad + from;
        args.m = flat->m + from;
        args.v = flat->v + from;
        if (flat->copy)
            args.copy = (char *)flat->copy + (size_t)from * dpt_dtype_bytes(args.copy_dtype);
        ops->adamw(stream, &args);
    }
}
