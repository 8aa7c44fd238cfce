/* Time, price and goodput: see estimate.h. */
#include "worker/planner/estimate.h"

#include "worker/planner/duration.h"
#include "worker/planner/goodput.h"

enum { HOUR_S = 3600 };

/* Refuses options that contradict each other or need others. */
static enum dpt_status check_options(const struct dpt_machines *m,
                                     const struct dpt_fit_model *model, double tokens,
                                     struct dpt_err *err)
{
    const bool rate = m->tokens_per_s > 0 || m->flops > 0;
    if (m->tokens_per_s > 0 && m->flops > 0)
        return dpt_fail(err, DPT_EINVAL, "expected one of --tokens-per-s and --flops, got both");
    if (m->mfu > 0 && m->flops <= 0)
        return dpt_fail(err, DPT_EINVAL, "--mfu is a share of --flops, which is missing");
    if (m->flops > 0 && model->layers == 0)
        return dpt_fail(err, DPT_EINVAL,
                        "--flops: the FLOPs of an image are not known; give --tokens-per-s, in "
                        "images per second");
    if (m->price > 0 && !rate)
        return dpt_fail(err, DPT_EINVAL, "--price needs --tokens-per-s or --flops");
    if (m->mtbf_h > 0 && !rate)
        return dpt_fail(err, DPT_EINVAL, "--mtbf-h needs --tokens-per-s or --flops");
    if (m->save_s > 0 && m->save_rate > 0)
        return dpt_fail(err, DPT_EINVAL,
                        "expected one of --checkpoint-s and --checkpoint-rate, got both");
    if (m->mtbf_h > 0 && m->save_s <= 0 && m->save_rate <= 0)
        return dpt_fail(err, DPT_EINVAL, "--mtbf-h needs --checkpoint-s or --checkpoint-rate");
    if (m->mtbf_h <= 0 && (m->save_s > 0 || m->save_rate > 0 || m->interval_s > 0 ||
                           m->restart_s > 0 || m->recovery_s > 0))
        return dpt_fail(err, DPT_EINVAL,
                        "--checkpoint-s, --checkpoint-rate, --interval-s, --restart-s and "
                        "--recovery-s need --mtbf-h");
    if (tokens > 0 && !rate)
        return dpt_fail(err, DPT_EINVAL, "--tokens needs --tokens-per-s or --flops");
    return DPT_OK;
}

/* A step has as many waves as the rank with the most slots has slots; the last wave may leave ranks
 * idle. */
static void estimate_rate(const struct dpt_machines *m, const struct dpt_fit_model *model,
                          struct dpt_estimate *e)
{
    const int ranks = m->shape.machines * m->shape.each;
    e->waves = (model->slots + ranks - 1) / ranks;
    e->tokens_per_s = dpt_duration_rate(m->flops, m->mfu > 0 ? m->mfu : DPT_ESTIMATE_MFU,
                                        (double)model->slots / e->waves, e->flops_per_token);
}

static enum dpt_status estimate_time(const struct dpt_machines *m,
                                     const struct dpt_fit_model *model, double tokens,
                                     struct dpt_estimate *e, struct dpt_err *err)
{
    e->tokens = tokens > 0 ? tokens : (double)model->steps * (double)model->tokens_per_step;
    if (e->tokens <= 0)
        return dpt_fail(err, DPT_EINVAL,
                        "--tokens is missing: no train.steps gives the length of the run");
    if (model->layers > 0)
        e->flops_per_token =
            dpt_duration_flops(&(struct dpt_duration_model){.trained = model->parameters,
                                                            .frozen = model->frozen_parameters,
                                                            .layers = model->layers,
                                                            .channels = model->channels,
                                                            .seq_len = model->seq_len});
    e->tokens_per_s = m->tokens_per_s;
    if (m->flops > 0)
        estimate_rate(m, model, e);
    e->has_time = true;
    e->step_s = (double)model->tokens_per_step / e->tokens_per_s;
    e->days = dpt_duration_days(e->tokens, e->tokens_per_s);
    e->price = dpt_duration_price(e->days, m->shape.machines, m->price);
    return DPT_OK;
}

static struct dpt_outcome outcome_of(const struct dpt_estimate *e, double goodput)
{
    return (struct dpt_outcome){goodput, e->days / goodput, e->price / goodput};
}

static void estimate_failures(const struct dpt_machines *m, const struct dpt_fit_model *model,
                              struct dpt_estimate *e)
{
    e->has_failures = true;
    e->has_copies = m->shape.machines > 1;
    e->mtbf_s = dpt_goodput_mtbf(m->mtbf_h * HOUR_S, m->shape.machines);
    e->save_s = m->save_s > 0 ? m->save_s : (double)model->checkpoint_bytes / m->save_rate;
    e->young_s = dpt_goodput_young(e->save_s, e->mtbf_s);
    e->daly_s = dpt_goodput_daly(e->save_s, e->mtbf_s);
    e->interval_s = m->interval_s > 0 ? m->interval_s : e->daly_s;
    e->restart_s = m->restart_s > 0 ? m->restart_s : DPT_ESTIMATE_RESTART_S;
    e->recovery_s = m->recovery_s > 0 ? m->recovery_s : model->timeout_s;
    struct dpt_failure_times times = {.mtbf_s = e->mtbf_s,
                                      .interval_s = e->interval_s,
                                      .save_s = e->save_s,
                                      .recover_s = e->restart_s};
    e->restart = outcome_of(e, dpt_goodput(&times));
    times.recover_s = e->recovery_s + e->save_s; /* reading takes the time of writing */
    e->reload = outcome_of(e, dpt_goodput(&times));
    if (!e->has_copies)
        return;
    times.recover_s = e->recovery_s;
    e->copies = outcome_of(e, dpt_goodput_replicated(&times, e->step_s));
}

enum dpt_status dpt_estimate(const struct dpt_machines *machines, const struct dpt_fit_model *model,
                             double tokens, struct dpt_estimate *ret, struct dpt_err *err)
{
    *ret = (struct dpt_estimate){.has_time = false};
    DPT_TRY(check_options(machines, model, tokens, err));
    if (machines->tokens_per_s > 0 || machines->flops > 0)
        DPT_TRY(estimate_time(machines, model, tokens, ret, err));
    if (machines->mtbf_h > 0)
        estimate_failures(machines, model, ret);
    return DPT_OK;
}
