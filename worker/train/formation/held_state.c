/* The state that a rank holds, and the filled state that waits beside it for GO (formation.h). */
#include "worker/train/formation/formation.h"

#include "base/log.h"
#include "worker/train/save/save.h"
#include "worker/train/step/step.h"

#include <string.h>

void rank_forget_state(struct dpt_rank *r)
{
    r->state.step = -1;
    r->state.has_outcome = false;
    r->save->not_finite[0] = '\0';
    r->formation->pending_generation = 0;
}

bool rank_holds_gradient(const struct dpt_rank *r)
{
    return r->state.step >= 0 && !r->formation->gradient_void &&
           dpt_strategy_holds_gradient(r->strategy, r->state.step);
}

static bool state_has_memory(const struct dpt_comm_mem *mem, const struct dpt_strategy_state *state)
{
    for (int v = 0; v < DPT_VECTOR_COUNT; v++)
        if (state->own.vector[v].mem == mem || state->shadow.vector[v].mem == mem)
            return true;
    return false;
}

static void withdraw_part(struct dpt_comm *comm, const struct dpt_state_part *old,
                          const struct dpt_strategy_state *kept)
{
    for (int v = 0; v < DPT_VECTOR_COUNT; v++)
        if (old->vector[v].mem && !state_has_memory(old->vector[v].mem, kept))
            dpt_comm_withdraw(comm, old->vector[v].mem);
}

static enum dpt_status job_withdraw(struct dpt_comm_thread *thread, void *ctx, struct dpt_err *err)
{
    const struct dpt_rank *r = ctx;
    const struct dpt_strategy_state *held = dpt_strategy_held(r->strategy),
                                    *wanted = dpt_strategy_wanted(r->strategy);
    struct dpt_comm *comm = dpt_comm_thread_comm(thread);
    (void)err;
    if (!comm || held == wanted)
        return DPT_OK;
    withdraw_part(comm, &held->own, wanted);
    withdraw_part(comm, &held->shadow, wanted);
    return DPT_OK;
}

void rank_note_held(struct dpt_rank *r)
{
    r->state.held_generation = r->gen.number;
    memcpy(r->state.held_attempt, r->gen.attempt, sizeof r->state.held_attempt);
}

enum dpt_status rank_adopt_state(struct dpt_rank *r, struct dpt_err *err)
{
    DPT_TRY(dpt_comm_thread_run(r->comm_thread, job_withdraw, r, err));
    dpt_strategy_state_changed(r->strategy);
    r->formation->pending_generation = 0;
    rank_note_held(r);
    return DPT_OK;
}

void rank_settle_pending(struct dpt_rank *r, const Dpt__Plan *plan)
{
    if (r->formation->pending_generation != 0 &&
        r->formation->pending_generation <= plan->state_generation) {
        dpt_strategy_state_changed(r->strategy);
        r->formation->gradient_void = true; /* it belongs to the old state */
    }
    /* dpt_strategy_begin_generation drops a state that got no GO. */
    r->formation->pending_generation = 0;
}

enum dpt_status rank_take_outcome(struct dpt_rank *r, const Dpt__Plan *plan, bool takes_state,
                                  struct dpt_err *err)
{
    if (plan->outcome.len == 0 || r->state.step != plan->resume_step - 1 || takes_state)
        return DPT_OK;
    if (!rank_holds_gradient(r)) {
        /* The rank reports that it has no state, and the next plan gives it the state. */
        rank_forget_state(r);
        return dpt_fail(err, DPT_EPEER,
                        "this rank has no gradient to apply the plan's outcome to; it asks for the "
                        "state");
    }
    DPT_TRY(dpt_outcome_unpack(plan->outcome.data, plan->outcome.len, r->slots, &r->state.outcome,
                               err));
    if (r->state.outcome.step != r->state.step)
        return dpt_fail(err, DPT_EPROTO,
                        "the plan hands over the outcome of step %lld instead of %lld",
                        (long long)r->state.outcome.step, (long long)r->state.step);
    if (r->state.outcome.scale != r->state.scaler.scale)
        return dpt_fail(err, DPT_EPROTO,
                        "the plan hands over the outcome of step %lld with the loss scaled by %g, "
                        "where this rank scaled it by %g",
                        (long long)r->state.step, r->state.outcome.scale, r->state.scaler.scale);
    r->state.has_outcome = true;
    dpt_log(DPT_LOG_INFO, "applying step %lld with the outcome that a survivor had",
            (long long)r->state.step);
    return rank_apply(r, err);
}
