/* The values that a new generation adopts beside the weights: the run's history and totals, an
 * evaluation, the loss scale, the account of the epoch. */
#include "worker/train/formation/formation.h"

#include "base/clock.h"
#include "worker/train/log/rank_log.h"
#include "worker/train/save/save.h"
#include "worker/train/step/step.h"

#include <string.h>

/* ---- after the first exchange ---- */

/* Whether `h` has a better account of the run than `best`. The lowest rank at the step from which
 * the world continues counts. If no rank is at that step (all go back to a checkpoint), the lowest
 * rank with the most generations counts. */
static bool has_better_account(const struct dpt_hello *h, const struct dpt_hello *best,
                               int64_t resume_step)
{
    if ((h->step == resume_step) != (best->step == resume_step))
        return h->step == resume_step;
    return h->step != resume_step && h->generations > best->generations;
}

/* Adopts the totals for the summary. The highest counts are the most complete. */
static void adopt_totals(struct dpt_rank *r, const struct dpt_hello *hellos)
{
    int64_t trained_ms = 0, checkpoints = 0;
    for (int i = 0; i < r->gen.world_size; i++) {
        const struct dpt_hello h = hellos[i];
        trained_ms = h.trained_ms > trained_ms ? h.trained_ms : trained_ms;
        checkpoints = h.checkpoints > checkpoints ? h.checkpoints : checkpoints;
    }
    if (trained_ms > 0)
        r->state.began_ms = dpt_now_ms() - trained_ms;
    r->state.checkpoints_told = checkpoints - dpt_saver_saved(r->save->saver).n;
}

static void adopt_history(struct dpt_rank *r, const struct dpt_hello *hellos, int64_t resume_step)
{
    struct dpt_hello best = hellos[0];
    for (int i = 1; i < r->gen.world_size; i++) {
        const struct dpt_hello h = hellos[i];
        if (has_better_account(&h, &best, resume_step))
            best = h;
    }
    const bool begins = best.generations == 0;
    r->state.start_step = begins || best.start_step > resume_step ? resume_step : best.start_step;
    r->state.steps_lost = best.steps_lost + r->gen.cause.steps_lost;
    r->state.generations = best.generations + 1;
}

/* Adopts an evaluation. If a rank has evaluated the state from which the world continues, its
 * evaluation counts for all ranks, because its sums are those of all ranks. Otherwise the
 * unfinished evaluation with the most batches counts: a rank may have seen the end of a round that
 * the others have not. */
static void adopt_validation(struct dpt_rank *r, const struct dpt_hello *hellos,
                             int64_t resume_step)
{
    const double own_ms = r->state.validation.step == resume_step ? r->state.validation.ms : 0;
    const int64_t all =
        dpt_eval_batches_count(r->stepping->val_samples, r->config->train.micro_batch);
    r->state.validation = (struct validation){.step = -1};
    r->state.eval_part = (struct dpt_eval_part){.step = -1};
    for (int i = 0; i < r->gen.world_size; i++) {
        const struct dpt_hello h = hellos[i];
        if (h.step == resume_step && h.val_step == resume_step)
            r->state.validation = (struct validation){h.val_step, h.val_loss, h.val_right, own_ms};
        if (h.step == resume_step && h.eval.step == resume_step &&
            h.eval.batches > r->state.eval_part.batches && h.eval.batches <= all)
            r->state.eval_part = h.eval;
    }
}

void rank_adopt_account(struct dpt_rank *r, const struct dpt_hello *hellos, int64_t resume_step)
{
    adopt_history(r, hellos, resume_step);
    adopt_totals(r, hellos);
    adopt_validation(r, hellos, resume_step);
}

/* ---- after the state was filled ---- */

/* Shares the history of the lowest rank that has a part of the state: all ranks continue it. */
static enum dpt_status share_history(struct dpt_rank *r, struct dpt_err *err)
{
    struct dpt_history *history = &r->state.history;
    DPT_TRY(generation_all_gather(&r->gen, r->comm_thread, history, sizeof *history, err));
    const struct dpt_history *all = r->gen.gathered;
    *history = all[generation_state_source(&r->gen)];
    history->json[sizeof history->json - 1] = '\0';
    return DPT_OK;
}

enum dpt_status rank_extend_history(struct dpt_rank *r, struct dpt_err *err)
{
    const bool begins = r->state.generations == 1; /* no process knows an earlier generation */
    if (begins)
        rank_complete_history(r);
    if (r->gen.world_size > 1)
        DPT_TRY(share_history(r, err));
    const struct dpt_history_entry entry = {.generation = r->gen.number,
                                            .step = r->state.step,
                                            .world_size = r->gen.n_trainers,
                                            .kind = r->gen.cause.kind,
                                            .cause = r->gen.cause.text,
                                            .steps_lost = r->gen.cause.steps_lost};
    DPT_TRY(dpt_history_append(&r->state.history, &entry, err));
    if (begins)
        r->state.steps_lost = dpt_history_totals(&r->state.history).steps_lost;
    return DPT_OK;
}

static enum dpt_status adopt_scaler(struct dpt_rank *r, int source, const struct dpt_scaler *theirs,
                                    struct dpt_err *err)
{
    struct dpt_scaler *mine = &r->state.scaler;
    if (r->gen.takes_state[r->gen.rank])
        return dpt_scaler_resume(r->config, r->state.step, theirs, mine, err);
    if (dpt_scaler_equal(theirs, mine))
        return DPT_OK;
    return dpt_fail(err, DPT_ECORRUPT,
                    "rank %d continues from step %lld with the loss scaled by %g and %lld steps "
                    "skipped, rank %d by %g and %lld",
                    source, (long long)r->state.step, theirs->scale, (long long)theirs->skipped,
                    r->gen.rank, mine->scale, (long long)mine->skipped);
}

enum dpt_status rank_adopt_scale(struct dpt_rank *r, const struct dpt_hello *hellos,
                                 struct dpt_err *err)
{
    const int source = generation_state_source(&r->gen);
    if (r->gen.takes_state[r->gen.rank])
        r->state.epoch = hellos[source].epoch;
    return adopt_scaler(r, source, &hellos[source].scaler, err);
}
