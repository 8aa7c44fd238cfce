/* Decides when a rank saves: at its steps, before all leave, at the end. */
#include "worker/train/save/save.h"

#include "base/log.h"
#include "worker/train/log/rank_log.h"

#include <stdio.h>

bool rank_save_is_wanted(struct dpt_rank *r)
{
    const struct rank_save *save = r->save;
    const int64_t from = dpt_link_save_from(r->link);
    const bool begun = save->begun_generation == r->gen.number && save->begun_step >= from;
    const bool reached = r->state.step + 1 >= from; /* the step that is being committed */
    return from > 0 && reached && !begun && r->config->checkpoint.dir[0];
}

static bool save_is_due(const struct dpt_rank *r)
{
    const int64_t every = r->config->checkpoint.every_steps;
    const bool wanted = (r->state.outcome.flags & DPT_COMMIT_SAVE) != 0;
    return r->state.step < r->config->train.steps &&
           (wanted || (every > 0 && r->state.step % every == 0));
}

static bool is_pinned(const struct dpt_rank *r)
{
    const struct dpt_config_steps *pins = &r->config->checkpoint.keep_steps;
    for (int64_t i = 0; i < pins->n; i++)
        if (pins->step[i] == r->state.step)
            return true;
    return false;
}

/* Logs that a save was put off: for a pinned step each time, for other steps once until a
 * checkpoint begins again. */
static void log_put_off(struct dpt_rank *r)
{
    const bool pinned = is_pinned(r);
    if (r->gen.checkpoint_slot == 0 && (pinned || !r->save->told_put_off))
        dpt_log(
            DPT_LOG_WARN,
            "no checkpoint at step %lld%s: the last one still waits for the server's grant; "
            "training continues; the next checkpoint is written when one is due after the grant",
            (long long)r->state.step, pinned ? " (in checkpoint.keep_steps)" : "");
    r->save->told_put_off = true;
}

bool rank_has_saved(struct dpt_rank *r)
{
    const struct dpt_saved saved = dpt_saver_saved(r->save->saver);
    return saved.n > 0 && saved.generation == r->gen.number && saved.step == r->state.step;
}

int64_t rank_saved_step(const struct dpt_rank *r)
{
    const int64_t saved_step = dpt_saver_saved(r->save->saver).step;
    return saved_step > r->save->loaded_step ? saved_step : r->save->loaded_step;
}

bool rank_save_if_due(struct dpt_rank *r)
{
    if (!r->config->checkpoint.dir[0])
        return false;
    /* Logs a failure now and not only when the next save is due. */
    if (!dpt_saver_busy(r->save->saver))
        rank_settle_saver(r);
    if (!save_is_due(r) || rank_has_saved(r))
        return false;
    if (r->state.outcome.flags & DPT_COMMIT_SAVER_BUSY) {
        if (!(r->state.outcome.flags & DPT_COMMIT_SAVE)) /* it is wanted until it has begun */
            log_put_off(r);
        return false;
    }
    r->save->told_put_off = false;
    r->save->begun_step = r->state.step;
    r->save->begun_generation = r->gen.number;
    dpt_link_publish_busy(r->link, true);
    rank_save_begin(r);
    dpt_link_publish_busy(r->link, false);
    return true;
}

/* Saves the held state, unless it is saved, and waits. `weights_hash`: a checkpoint of another
 * generation with these weights counts as saved. NULL: such a checkpoint does not count. */
static enum dpt_status save_held(struct dpt_rank *r, const char *weights_hash, struct dpt_err *err)
{
    if (!r->config->checkpoint.dir[0] || r->gen.checkpoint_slot < 0)
        return DPT_OK;
    rank_settle_saver(r); /* an attempt may be running, perhaps at this step */
    bool saved = rank_has_saved(r);
    if (!saved && weights_hash)
        DPT_TRY(rank_is_saved(r, weights_hash, &saved, err));
    if (saved)
        return DPT_OK;
    rank_save_begin(r);
    return dpt_saver_wait(r->save->saver, err);
}

enum dpt_status rank_save_last(struct dpt_rank *r, const char *weights_hash, struct dpt_err *err)
{
    return dpt_wrap(err, save_held(r, weights_hash, err), "the last checkpoint");
}

void rank_save_before_leaving(struct dpt_rank *r)
{
    struct dpt_err err = {.text = ""};
    char why[RANK_WHY_BYTES];
    dpt_link_publish_busy(r->link, true);
    const enum dpt_status status = save_held(r, NULL, &err);
    (void)rank_settles_log(r); /* no writer of a later generation completes the log */
    dpt_link_publish_busy(r->link, false);
    /* If the save was interrupted, the next generation saves. */
    if (status == DPT_OK || dpt_link_interrupted(r->link, r->gen.number))
        return;
    /* Logged once a step: a final save tries again. */
    if (r->save->unsaved_told != r->state.step) {
        (void)rank_quote_error(r, &err, why);
        dpt_log(DPT_LOG_ERROR, "leaving, but step %lld could not be saved%s",
                (long long)r->state.step, why);
    }
    r->save->unsaved_told = r->state.step;
}

enum dpt_status rank_check_folder(const struct dpt_rank *r, struct dpt_err *err)
{
    const struct dpt_err *lost = &r->save->folder_lost;
    return lost->status == DPT_OK ? DPT_OK : dpt_pass(err, lost);
}

static void warn_of_pins(const struct dpt_rank *r)
{
    const struct dpt_config_steps *pins = &r->config->checkpoint.keep_steps;
    const int64_t every = r->config->checkpoint.every_steps;
    for (int64_t i = 0; i < pins->n; i++)
        if (pins->step[i] > r->state.step && pins->step[i] != r->config->train.steps &&
            (every == 0 || pins->step[i] % every != 0))
            dpt_log(DPT_LOG_WARN,
                    "checkpoint.keep_steps has step %lld, which is not a multiple of "
                    "checkpoint.every_steps (%lld): no checkpoint is written there",
                    (long long)pins->step[i], (long long)every);
}

/* Warns of checkpoints without an evaluation. Steps with an evaluation are the multiples of
 * train.eval_every and the ends of epochs. */
static void warn_of_best(const struct dpt_config *config)
{
    const int64_t every = config->checkpoint.every_steps, eval_every = config->train.eval_every;
    const int64_t epoch_steps = config->train.epochs > 0 ? config->train.epoch_steps : 0;
    if (config->checkpoint.keep_best == 0 || every == 0 ||
        (eval_every > 0 && every % eval_every == 0) ||
        (epoch_steps > 0 && every % epoch_steps == 0))
        return;
    dpt_log(
        DPT_LOG_WARN,
        "checkpoint.every_steps (%lld) is not a multiple of %s (%lld): some checkpoints have no "
        "validation loss, and checkpoint.keep_best keeps none of those",
        (long long)every, eval_every > 0 ? "train.eval_every" : "train.epoch_steps",
        (long long)(eval_every > 0 ? eval_every : epoch_steps));
}

void rank_warn_of_kept(struct dpt_rank *r)
{
    if (r->gen.checkpoint_slot != 0 || r->save->told_kept)
        return;
    r->save->told_kept = true;
    warn_of_pins(r);
    warn_of_best(r->config);
}
