/* The fate of steps that are not finite (step_fate.h). */
#include "worker/optim/step_fate.h"

#include <math.h>

enum dpt_step_fate dpt_step_fate_of(const struct dpt_config *config, double loss, double norm,
                                    const struct dpt_scaler *scaler)
{
    const bool overflowed = dpt_scaler_skips(config, norm);
    if (isfinite(loss) && isfinite(norm))
        return DPT_STEP_APPLIED;
    if (overflowed && isfinite(loss) && scaler->scale >= 1)
        return DPT_STEP_OVERFLOWED;
    switch (config->train.on_divergence) {
    case DPT_DIVERGENCE_CONTINUE:
        return overflowed ? DPT_STEP_OVERFLOWED : DPT_STEP_APPLIED;
    case DPT_DIVERGENCE_SKIP:
        if (scaler->diverged_in_row < config->train.divergence_limit)
            return DPT_STEP_SKIPPED;
        break;
    case DPT_DIVERGENCE_STOP:
        break;
    }
    return DPT_STEP_STOPS;
}

void dpt_step_fate_note(const struct dpt_config *config, enum dpt_step_fate fate, double norm,
                        struct dpt_scaler *scaler)
{
    const bool overflowed = dpt_scaler_skips(config, norm);
    DPT_ASSERT(fate != DPT_STEP_STOPS);
    dpt_scaler_advance(config, overflowed, scaler);
    if (fate == DPT_STEP_APPLIED)
        scaler->diverged_in_row = 0;
    if (fate != DPT_STEP_SKIPPED)
        return;
    scaler->diverged_in_row++;
    if (!overflowed) /* else dpt_scaler_advance has counted it */
        scaler->skipped++;
}
