/* The fate of a step whose loss or gradient is not finite (train.on_divergence).
 *
 * The fate of a step is a function of the config, of the step's outcome and of the scaler. All
 * three are the same on all ranks, and so is the fate.
 *
 * An overflow of fp16 does not count as divergence while the loss is finite and the scale of the
 * loss is at least 1: the step is left out, and the next step has a smaller scale. At a scale below
 * 1 the network itself overflows. Pure. */
#ifndef DPT_WORKER_OPTIM_STEP_FATE_H
#define DPT_WORKER_OPTIM_STEP_FATE_H

#include "worker/optim/scaler.h"

enum dpt_step_fate {
    DPT_STEP_APPLIED,
    DPT_STEP_OVERFLOWED, /* left out by the rules of fp16 */
    DPT_STEP_SKIPPED,    /* left out: train.on_divergence skip */
    DPT_STEP_STOPS,      /* not applied, and the run ends */
    DPT_STEP_FATE_COUNT
};

/* The fate of a step with this loss and this norm of its unscaled gradient; `scaler` is the state
 * before the step. */
enum dpt_step_fate dpt_step_fate_of(const struct dpt_config *config, double loss, double norm,
                                    const struct dpt_scaler *scaler);

/* Call it after a step of any fate except STOPS. It updates the scale and counts skipped steps. */
void dpt_step_fate_note(const struct dpt_config *config, enum dpt_step_fate fate, double norm,
                        struct dpt_scaler *scaler);

#endif
