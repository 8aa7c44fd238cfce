/* The scale of the loss (scaler.h). */
#include "worker/optim/scaler.h"

#include <math.h>

void dpt_scaler_init(const struct dpt_config *config, struct dpt_scaler *ret)
{
    *ret = (struct dpt_scaler){.scale =
                                   dpt_config_scales_loss(config) ? config->train.loss_scale : 1.0};
}

enum dpt_status dpt_scaler_resume(const struct dpt_config *config, int64_t step,
                                  const struct dpt_scaler *saved, struct dpt_scaler *ret,
                                  struct dpt_err *err)
{
    if (saved->skipped < 0 || saved->skipped > step)
        return dpt_fail(err, DPT_ECORRUPT,
                        "the state of the loss scale: %lld of %lld steps were skipped",
                        (long long)saved->skipped, (long long)step);
    if (saved->diverged_in_row < 0 || saved->diverged_in_row > saved->skipped)
        return dpt_fail(err, DPT_ECORRUPT,
                        "the state of the loss scale: %lld of %lld skipped steps diverged in a row",
                        (long long)saved->diverged_in_row, (long long)saved->skipped);
    if (!dpt_config_scales_loss(config) || saved->scale == 0) {
        dpt_scaler_init(config, ret);
        ret->skipped = saved->skipped;
        ret->diverged_in_row = saved->diverged_in_row;
        return DPT_OK;
    }
    int exponent;
    if (!(saved->scale >= DPT_SCALE_MIN && saved->scale <= DPT_SCALE_MAX) ||
        frexp(saved->scale, &exponent) != 0.5 || saved->good_steps < 0)
        return dpt_fail(err, DPT_ECORRUPT,
                        "the state of the loss scale is impossible: %g after %lld good steps",
                        saved->scale, (long long)saved->good_steps);
    *ret = *saved;
    return DPT_OK;
}

bool dpt_scaler_skips(const struct dpt_config *config, double norm)
{
    return dpt_config_scales_loss(config) && !isfinite(norm);
}

void dpt_scaler_advance(const struct dpt_config *config, bool skipped, struct dpt_scaler *scaler)
{
    if (!dpt_config_scales_loss(config))
        return;
    double scale = scaler->scale;
    if (skipped) {
        scale *= config->train.loss_scale_backoff;
        scaler->skipped++;
        scaler->good_steps = 0;
    } else if (++scaler->good_steps >= config->train.loss_scale_interval) {
        scale *= config->train.loss_scale_growth;
        scaler->good_steps = 0;
    }
    if (scale >= DPT_SCALE_MIN && scale <= DPT_SCALE_MAX)
        scaler->scale = scale;
}

bool dpt_scaler_equal(const struct dpt_scaler *a, const struct dpt_scaler *b)
{
    return a->scale == b->scale && a->good_steps == b->good_steps && a->skipped == b->skipped &&
           a->diverged_in_row == b->diverged_in_row;
}
