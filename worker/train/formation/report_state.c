/* Reports a rank's phase and its state. */
#include "worker/train/formation/formation.h"
#include "worker/train/link/link.h"
#include "worker/train/step/step.h"

_Static_assert((int)DPT_OUTCOME_BYTES_MAX <= (int)DPT_PROTO_OUTCOME_BYTES_MAX, "an outcome fits");

static void report_parts(struct dpt_report *report, const struct dpt_strategy_state *state,
                         bool pending)
{
    const struct dpt_shard shards[] = {state->own.shard, state->shadow.shard};
    for (size_t i = 0; i < sizeof shards / sizeof *shards; i++) {
        if (dpt_shard_is_none(shards[i]))
            continue;
        Dpt__Shard *shard = &report->shards[report->state.n_shards++];
        dpt__shard__init(shard);
        shard->index = (uint32_t)shards[i].index;
        shard->of = (uint32_t)shards[i].of;
        shard->pending = pending;
    }
}

/* Reports the parts of the held state, which has step r->state.step. */
static void report_held(const struct dpt_rank *r, struct dpt_report *report)
{
    Dpt__RankState *state = &report->state;
    const bool held = r->state.step >= 0;
    state->n_shards = 0;
    state->ran_generation = r->formation->ran_generation;
    state->rebuilding = r->gen.redundancy.rebuilding;
    state->pending_generation = held ? r->formation->pending_generation : 0;
    state->gradient = held && rank_holds_gradient(r);
    if (held)
        report_parts(report, dpt_strategy_held(r->strategy), false);
    if (state->pending_generation != 0)
        report_parts(report, dpt_strategy_wanted(r->strategy), true);
}

void rank_report(struct dpt_rank *r, Dpt__RankPhase phase, uint64_t generation)
{
    rank_keep_step(r);
    struct dpt_report *report = dpt_link_edit(r->link);
    Dpt__RankState *state = &report->state;
    state->phase = phase;
    state->busy = false;
    state->generation = generation;
    state->step_applied = r->state.step;
    state->outcome_step = r->state.has_outcome ? r->state.outcome.step + 1 : -1;
    state->outcome.len = 0;
    if (r->state.has_outcome && phase == DPT__RANK_PHASE__RANK_QUIESCED) {
        enum dpt_status status = dpt_outcome_pack(
            &r->state.outcome, report->outcome, sizeof report->outcome, &state->outcome.len, NULL);
        DPT_ASSERT(status == DPT_OK); /* the config limits the number of slots */
    }
    rank_report_validation(r, report);
    report_held(r, report);
    dpt_link_publish(r->link, true);
}
