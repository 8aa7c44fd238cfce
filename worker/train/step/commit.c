/* Commits a step and applies it. */
#include "worker/train/save/save.h"
#include "worker/train/step/step.h"

#include "worker/optim/optim.h"

#include <unistd.h>

enum dpt_status rank_commit_step(struct dpt_rank *r, struct dpt_err *err)
{
    struct dpt_contribution mine = {.step = r->state.step,
                                    .leaving = dpt_link_leaving(r->link),
                                    .first_slot = r->gen.slots.first,
                                    .stride = r->gen.slots.stride,
                                    .n_slots = r->gen.slots.n,
                                    .losses = r->stepping->slot_losses + r->gen.slots.first,
                                    .scale = r->state.scaler.scale};
    if (dpt_link_reform_wanted(r->link, r->gen.number))
        mine.flags |= DPT_COMMIT_REFORM;
    if (dpt_saver_busy(r->save->saver))
        mine.flags |= DPT_COMMIT_SAVER_BUSY;
    if (rank_save_is_wanted(r))
        mine.flags |= DPT_COMMIT_SAVE;
    if (r->save->not_finite[0] && r->config->train.on_divergence != DPT_DIVERGENCE_CONTINUE)
        mine.flags |= DPT_COMMIT_NOT_FINITE;
    DPT_TRY(dpt_strategy_norm_share(r->strategy, &mine.norm, err));
    dpt_contribution_pack(&mine, r->gen.slots_max, r->stepping->contribution);
    DPT_TRY(generation_all_gather(&r->gen, r->comm_thread, r->stepping->contribution,
                                  dpt_contribution_bytes(r->gen.slots_max), err));
    const struct dpt_commit_world world = {.step = r->state.step,
                                           .size = r->gen.world_size,
                                           .slots = r->slots,
                                           .slots_max = r->gen.slots_max};
    DPT_TRY(dpt_outcome_combine(&world, r->gen.gathered, &r->state.outcome, err));
    r->state.has_outcome =
        dpt_step_fate_of(r->config, dpt_outcome_loss(&r->state.outcome), r->state.outcome.norm,
                         &r->state.scaler) != DPT_STEP_STOPS;
    return r->state.has_outcome ? DPT_OK : rank_judge_diverged(r, err);
}

enum dpt_status rank_apply(struct dpt_rank *r, struct dpt_err *err)
{
    const enum dpt_step_fate fate = dpt_step_fate_of(r->config, dpt_outcome_loss(&r->state.outcome),
                                                     r->state.outcome.norm, &r->state.scaler);
    /* A rank never reports an outcome that ends the run. */
    if (fate == DPT_STEP_STOPS)
        return dpt_fail(err, DPT_EPROTO, "the outcome of step %lld ends the run",
                        (long long)r->state.step);
    /* The quotient is exact, because the scale is a power of two. */
    const float clip = dpt_optim_clip_scale(r->state.outcome.norm, r->config->train.grad_clip);
    const struct dpt_optim_step step = {.step = r->state.step,
                                        .updates = r->state.step - r->state.scaler.skipped,
                                        .grad_scale =
                                            (float)((double)clip / r->state.outcome.scale)};
    if (fate == DPT_STEP_APPLIED)
        DPT_TRY(dpt_strategy_apply(r->strategy, &step, err));
    dpt_step_fate_note(r->config, fate, r->state.outcome.norm, &r->state.scaler);
    if (fate == DPT_STEP_OVERFLOWED)
        rank_tell_overflow(r);
    if (r->config->train.epochs > 0)
        dpt_epoch_add_step(&r->state.epoch, r->config->train.epoch_steps, r->state.step,
                           dpt_outcome_loss(&r->state.outcome));
    r->state.step++;
    rank_keep_step(r);
    return DPT_OK;
}

void rank_keep_step(const struct dpt_rank *r)
{
    const int64_t step = r->state.step > 0 ? r->state.step : 0;
    if (r->options->step_fd < 0)
        return;
    const ssize_t kept = pwrite(r->options->step_fd, &step, sizeof step, 0);
    DPT_ASSERT(kept == (ssize_t)sizeof step); /* the agent's memory file cannot be full */
}
