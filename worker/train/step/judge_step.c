/* Handles steps whose loss or gradient is not finite: makes the error of steps that end the run,
 * and the messages about other ones (worker/optim/step_fate.h). */
#include "worker/train/step/step.h"

#include "base/log.h"
#include "worker/train/log/rank_log.h"

#include <math.h>
#include <stdio.h>

enum { WHAT_BYTES = 128 };

/* Writes, for example, "the loss is nan (gradient's norm inf)". */
static const char *describe_divergence(const struct dpt_outcome *outcome, char ret[WHAT_BYTES])
{
    /* printf prints the sign that a NaN may have. */
    const double loss = isnan(dpt_outcome_loss(outcome)) ? (double)NAN : dpt_outcome_loss(outcome);
    const double norm = fabs(outcome->norm);
    if (isfinite(loss))
        (void)snprintf(ret, WHAT_BYTES, "the gradient's norm is %f (loss %g)", norm, loss);
    else
        (void)snprintf(ret, WHAT_BYTES, "the loss is %f (gradient's norm %g)", loss, norm);
    return ret;
}

enum dpt_status rank_judge_diverged(struct dpt_rank *r, struct dpt_err *err)
{
    char what[WHAT_BYTES], row[64] = "";
    r->state.diverged = true;
    if (r->state.scaler.diverged_in_row > 0)
        (void)snprintf(row, sizeof row, " after %lld such steps in a row",
                       (long long)r->state.scaler.diverged_in_row);
    return dpt_fail(err, DPT_EDIVERGED, "step %lld: %s%s, and the step is not applied",
                    (long long)r->state.step + 1, describe_divergence(&r->state.outcome, what),
                    row);
}

void rank_log_divergence(struct dpt_rank *r, int64_t step, const char *action, int64_t in_row)
{
    const struct dpt_divergence_record record = {.step = step,
                                                 .loss = dpt_outcome_loss(&r->state.outcome),
                                                 .grad_norm = r->state.outcome.norm,
                                                 .action = action,
                                                 .in_row = in_row};
    struct dpt_err err;
    rank_add_line(r, dpt_run_file_divergence(&r->log->files, &record, &err), &err);
}

void rank_tell_divergence(struct dpt_rank *r)
{
    char what[WHAT_BYTES];
    const bool skips = r->config->train.on_divergence == DPT_DIVERGENCE_SKIP;
    const int64_t in_row = r->state.scaler.diverged_in_row;
    if (skips && in_row > 0) {
        dpt_log(DPT_LOG_WARN, "step %lld is left out: %s; %lld in a row, the run ends after %lld",
                (long long)r->state.step, describe_divergence(&r->state.outcome, what),
                (long long)in_row, (long long)r->config->train.divergence_limit);
        rank_log_divergence(r, r->state.step, "skip", in_row);
    }
    /* Logged once for all later steps. An overflow does not count as a divergence if fp16 lowers
     * its scale after it. */
    const bool overflowed = dpt_scaler_skips(r->config, r->state.outcome.norm) &&
                            isfinite(dpt_outcome_loss(&r->state.outcome));
    if (skips || overflowed || r->stepping->told_divergence)
        return;
    r->stepping->told_divergence = true;
    dpt_log(DPT_LOG_ERROR,
            "step %lld: %s: the run has diverged and will not recover; start from an earlier "
            "checkpoint with a lower optimizer.lr, longer warmup_steps or train.grad_clip",
            (long long)r->state.step, describe_divergence(&r->state.outcome, what));
    rank_log_divergence(r, r->state.step, "continue", 0);
}

/* Logs an overflow. If the scale is below 1, the scale does not cause the overflow: the run has
 * diverged. */
void rank_tell_overflow(struct dpt_rank *r)
{
    dpt_log(
        DPT_LOG_INFO,
        "step %lld is skipped: its gradient overflowed with the loss scaled by %g; %lld skipped "
        "so far, now by %g",
        (long long)r->state.step, r->state.outcome.scale, (long long)r->state.scaler.skipped,
        r->state.scaler.scale);
    if (r->state.scaler.scale >= 1 || r->stepping->told_divergence)
        return;
    r->stepping->told_divergence = true;
    dpt_log(
        DPT_LOG_ERROR,
        "gradients overflow though the loss is scaled by %g only: the run has diverged and will "
        "not recover; start from an earlier checkpoint with a lower optimizer.lr or with "
        "bf16 in place of fp16 (train.precision, strategy.compression)",
        r->state.outcome.scale);
}
