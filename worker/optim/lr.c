/* The learning rate (optim.h). Only correctly rounded double operations, no libm: the same bits on
 * every machine. */
#include "worker/optim/optim.h"

/* cos(x) and sin(x) for 0 <= x <= pi/4 by Taylor's series to x^17; the first term left out is below
 * 1e-18. */
static double small_cos(double x)
{
    double sum = 0.0;
    for (int k = 16; k >= 2; k -= 2)
        sum = (1.0 + sum) * (-x * x / (k * (k - 1)));
    return 1.0 + sum;
}

static double small_sin(double x)
{
    double sum = 0.0;
    for (int k = 16; k >= 2; k -= 2)
        sum = (1.0 + sum) * (-x * x / (k * (k + 1)));
    return x + x * sum;
}

/* (1 + cos(pi p)) / 2 = cos^2(pi p / 2) for p in [0, 1]; exactly 1 and 0 at the ends. */
static double half_cosine(double p)
{
    const double half_pi = 1.57079632679489661923;
    const double root = p <= 0.5 ? small_cos(half_pi * p) : small_sin(half_pi * (1.0 - p));
    return root * root;
}

static double batch_factor(const struct dpt_config *config)
{
    if (config->optimizer.lr_scaling == DPT_LR_SCALING_NONE)
        return 1.0;
    DPT_ASSERT(config->optimizer.base_batch > 0); /* the config's check */
    return (double)config->train.global_batch / (double)config->optimizer.base_batch;
}

/* The fraction of the decay that is complete `done` steps after the warm-up. With schedule_steps
 * the cosine rises again after that many steps, and then falls again, as PyTorch's does. */
static double part_decayed(const struct dpt_config *config, int64_t done, int64_t span)
{
    if (config->optimizer.schedule == DPT_SCHEDULE_COSINE &&
        config->optimizer.schedule_steps != DPT_AUTO) {
        done %= 2 * span;
        done = done <= span ? done : 2 * span - done;
    }
    return done < span ? (double)done / (double)span : 1.0;
}

double dpt_optim_lr(const struct dpt_config *config, int64_t step)
{
    const double factor = batch_factor(config);
    const double lr = config->optimizer.lr * factor, min_lr = config->optimizer.min_lr * factor;
    const int64_t warmup = config->optimizer.warmup_steps;
    if (step < warmup)
        return lr * ((double)(step + 1) / (double)warmup);
    const int64_t span = config->optimizer.schedule_steps != DPT_AUTO
                             ? config->optimizer.schedule_steps
                             : config->train.steps - 1 - warmup;
    if (config->optimizer.schedule == DPT_SCHEDULE_CONSTANT || span <= 0)
        return lr;
    const double p = part_decayed(config, step - warmup, span);
    const double left =
        config->optimizer.schedule == DPT_SCHEDULE_COSINE ? half_cosine(p) : 1.0 - p;
    return min_lr + (lr - min_lr) * left;
}
