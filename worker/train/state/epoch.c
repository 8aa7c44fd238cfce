/* The account of an epoch (epoch.h). */
#include "worker/train/state/epoch.h"

#include <math.h>

void dpt_epoch_add_step(struct dpt_epoch *epoch, int64_t epoch_steps, int64_t step, double loss)
{
    if (step % epoch_steps == 0 || epoch->to != step)
        *epoch = (struct dpt_epoch){.from = step};
    epoch->to = step + 1;
    /* A step that was skipped or has diverged has no loss to add. */
    if (!isfinite(loss))
        return;
    epoch->finite++;
    epoch->loss_sum += loss;
}

void dpt_epoch_add_time(struct dpt_epoch *epoch, double seconds)
{
    epoch->timed++;
    epoch->seconds += seconds;
}

double dpt_epoch_loss(const struct dpt_epoch *epoch)
{
    return epoch->finite > 0 ? epoch->loss_sum / (double)epoch->finite : (double)NAN;
}

double dpt_epoch_samples_per_s(const struct dpt_epoch *epoch, int64_t batch)
{
    return epoch->seconds > 0 ? (double)(epoch->timed * batch) / epoch->seconds : 0;
}
