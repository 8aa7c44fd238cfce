/* Checkpoints as the rank sees them: what to write, what to read. */
#include "base/log.h"
#include "worker/optim/optim.h"
#include "worker/train/rank_internal.h"
#include "worker/train/save/state_hash.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

struct hash_job {
    struct dpt_state_hash spec;
    struct dpt_hash128 hash;
};

static enum dpt_status job_hash(struct dpt_comm_thread *thread, void *ctx, struct dpt_err *err)
{
    struct hash_job *job = ctx;
    return dpt_state_hash(dpt_comm_thread_comm(thread), &job->spec, &job->hash, err);
}

enum dpt_status rank_weights_hash(struct dpt_rank *r, char ret_hex[DPT_HASH_HEX_BYTES],
                                  struct dpt_err *err)
{
    DPT_TRY(rank_fetch_state(r, err));
    struct hash_job job = {.spec = {.tensors = &r->tensors,
                                    .own = &r->strategy->ops->held(r->strategy)->own,
                                    .shards = r->gen.shards,
                                    .world = r->gen.world_size,
                                    .rank = r->gen.rank}};
    if (dpt_state_hash_is_local(&job.spec))
        DPT_TRY(dpt_state_hash(NULL, &job.spec, &job.hash, err));
    else
        DPT_TRY(dpt_comm_thread_run(r->comm_thread, job_hash, &job, err));
    dpt_hash128_hex(job.hash, ret_hex);
    return DPT_OK;
}

void rank_settle_saver(struct dpt_rank *r)
{
    struct dpt_err err;
    enum dpt_status status = dpt_saver_wait(r->saver, &err);
    rank_note_saves(r);
    if (status == DPT_EDIVERGED)
        (void)snprintf(r->not_finite, sizeof r->not_finite, "%s", err.text);
    if (status == DPT_EREFUSED)
        r->folder_lost = err;
    if (status == DPT_EDIVERGED && r->gen.checkpoint_slot > 0)
        dpt_log(DPT_LOG_DEBUG, "%s", err.text); /* the first writer says it */
    else if (status == DPT_EDIVERGED)
        dpt_log(DPT_LOG_ERROR, "%s; what was saved before stays", err.text);
    else if (status == DPT_EREFUSED)
        dpt_log(DPT_LOG_ERROR, "%s", err.text);
    else if (status == DPT_EABORTED)
        dpt_log(DPT_LOG_INFO, "checkpoint given up, since the world changes: %s", err.text);
    else if (status != DPT_OK)
        rank_note_unsaved(r, &err);
}

void rank_clear_leftovers(struct dpt_rank *r)
{
    int slot = r->gen.checkpoint_slot;
    if (!r->config->checkpoint.dir[0] || slot > 0 || (slot < 0 && r->report.local_rank != 0))
        return;
    if (r->config->train.eval_only) /* what is unfinished there is a training run's */
        return;
    struct dpt_err err;
    char why[RANK_WHY_BYTES];
    if (dpt_checkpoint_clean(r->config->checkpoint.dir, r->gen.number, r->gen.attempt, &err) !=
        DPT_OK)
        dpt_log(rank_say_why(r, &err, why) ? DPT_LOG_WARN : DPT_LOG_INFO,
                "what is left of an unfinished checkpoint stays%s", why);
}

struct dpt_checkpoint_spec rank_checkpoint_spec(struct dpt_rank *r)
{
    r->saved_history = r->history;
    const int n_damaged = rank_list_damaged(r, r->step, r->saved_damaged);
    return (struct dpt_checkpoint_spec){
        .dir = r->config->checkpoint.dir,
        .tensors = r->tensors.tensor,
        .n_tensors = r->tensors.n,
        .moments = true,
        .no_v = !dpt_optim_has_second_moment(r->config),
        .pieces = r->saved_pieces.piece,
        .n_pieces = r->saved_pieces.n,
        .adapters = dpt_model_base(r->model) != NULL,
        .hf_config_json = r->hf_config,
        .state = {.step = r->step,
                  .samples = r->step * r->config->train.global_batch,
                  .seed = r->config->seed,
                  .config_yaml = r->config_yaml,
                  .data_digest = r->options->start->data[0] ? r->options->start->data : NULL,
                  .fingerprint = r->fingerprint,
                  .history_json = r->saved_history.json,
                  .scaler = {.scale = dpt_config_scales_loss(r->config) ? r->scaler.scale : 0,
                             .good_steps = r->scaler.good_steps,
                             .skipped_steps = r->scaler.skipped,
                             .diverged_in_row = r->scaler.diverged_in_row},
                  .epoch = {.has = r->config->train.epochs > 0 && r->epoch.to == r->step,
                            .from = r->epoch.from,
                            .finite_steps = r->epoch.finite,
                            .loss_sum = r->epoch.loss_sum,
                            .timed_steps = r->epoch.timed,
                            .seconds = r->epoch.seconds},
                  .has_val_loss = r->validation.step == r->step && isfinite(r->validation.loss),
                  .val_loss = r->validation.loss},
        .keep = r->diverged ? INT_MAX : r->config->checkpoint.keep,
        .keep_steps = r->config->checkpoint.keep_steps.step,
        .n_keep_steps = r->config->checkpoint.keep_steps.n,
        .keep_best = r->config->checkpoint.keep_best,
        .damaged = r->saved_damaged,
        .n_damaged = n_damaged,
        .account = &r->memory,
    };
}

void rank_save_begin(struct dpt_rank *r)
{
    if (r->gen.checkpoint_slot < 0)
        return;
    rank_settle_saver(r);
    struct dpt_err err;
    if (rank_fetch_state(r, &err) != DPT_OK ||
        dpt_pieces_to_write(&r->tensors, &r->strategy->ops->held(r->strategy)->own,
                            r->gen.writer_shards, r->gen.checkpoint_writers, r->gen.checkpoint_slot,
                            &r->saved_pieces, &err) != DPT_OK) {
        dpt_log(DPT_LOG_ERROR, "a checkpoint was not written: %s; training goes on", err.text);
        return;
    }
    struct dpt_checkpoint_spec spec = rank_checkpoint_spec(r);
    spec.writer = r->gen.checkpoint_slot;
    spec.n_writers = r->gen.checkpoint_writers;
    spec.generation = r->gen.number;
    spec.attempt = r->gen.attempt;
    rank_mark_save(r);
    dpt_saver_begin(r->saver, &spec);
    dpt_saver_wait_written(r->saver);
}

static enum dpt_status load_part(struct dpt_rank *r, struct dpt_checkpoint *checkpoint,
                                 const struct dpt_state_part *part, struct dpt_err *err)
{
    if (dpt_shard_is_none(part->shard))
        return DPT_OK;
    struct dpt_pieces pieces = {.n = 0};
    DPT_TRY(dpt_checkpoint_check_names(checkpoint, r->tensors.tensor, r->tensors.n, err));
    DPT_TRY(dpt_pieces_of_part(&r->tensors, part, &pieces, err));
    if (r->config->train.eval_only) /* nobody asks for moments */
        for (int i = 0; i < pieces.n; i++)
            pieces.piece[i].m = pieces.piece[i].v = NULL;
    enum dpt_status status =
        dpt_checkpoint_read_pieces(checkpoint, r->tensors.tensor, pieces.piece, pieces.n, err);
    dpt_pieces_fini(&pieces);
    return status;
}

static enum dpt_status load_scaler(struct dpt_rank *r, const struct dpt_checkpoint_state *state,
                                   struct dpt_err *err)
{
    const struct dpt_scaler saved = {.scale = state->scaler.scale,
                                     .good_steps = state->scaler.good_steps,
                                     .skipped = state->scaler.skipped_steps,
                                     .diverged_in_row = state->scaler.diverged_in_row};
    return dpt_scaler_resume(r->config, state->step, &saved, &r->scaler, err);
}

static void load_epoch(struct dpt_rank *r, const struct dpt_checkpoint_state *state)
{
    r->epoch = (struct dpt_epoch){0};
    if (state->epoch.has)
        r->epoch = (struct dpt_epoch){.from = state->epoch.from,
                                      .to = state->step,
                                      .finite = state->epoch.finite_steps,
                                      .loss_sum = state->epoch.loss_sum,
                                      .timed = state->epoch.timed_steps,
                                      .seconds = state->epoch.seconds};
}

enum dpt_status rank_load_checkpoint(struct dpt_rank *r, int64_t step, struct dpt_err *err)
{
    struct dpt_checkpoint *checkpoint = NULL;
    const struct dpt_strategy_state *wanted = r->strategy->ops->wanted(r->strategy);
    DPT_TRY(dpt_checkpoint_open(r->config->checkpoint.dir, step, &checkpoint, err));
    const struct dpt_checkpoint_state *state = dpt_checkpoint_get_state(checkpoint);
    enum dpt_status status = load_part(r, checkpoint, &wanted->own, err);
    if (status == DPT_OK)
        status = load_part(r, checkpoint, &wanted->shadow, err);
    if (status == DPT_OK)
        status = dpt_history_load(&r->history, state->history_json, err);
    if (status == DPT_OK) {
        (void)snprintf(r->loaded_hash, sizeof r->loaded_hash, "%s", state->weights_hash);
        r->loaded_step = step;
        load_epoch(r, state);
    }
    if (status == DPT_OK)
        status = load_scaler(r, state, err);
    r->loaded_rescue = status == DPT_OK && state->rescue.node != NULL;
    dpt_checkpoint_close(&checkpoint);
    return status;
}

enum dpt_status rank_check_loaded(const struct dpt_rank *r, const char *weights_hash,
                                  struct dpt_err *err)
{
    if (!r->loaded_hash[0] || strcmp(r->loaded_hash, weights_hash) == 0)
        return DPT_OK;
    return dpt_fail(err, DPT_ECORRUPT,
                    "checkpoint of step %lld: its weights hash is %s, its state says %s",
                    (long long)r->step, weights_hash, r->loaded_hash);
}

static void warn_of_pins(const struct dpt_rank *r)
{
    const struct dpt_config_steps *pins = &r->config->checkpoint.keep_steps;
    const int64_t every = r->config->checkpoint.every_steps;
    for (int64_t i = 0; i < pins->n; i++)
        if (pins->step[i] > r->step && pins->step[i] != r->config->train.steps &&
            (every == 0 || pins->step[i] % every != 0))
            dpt_log(DPT_LOG_WARN,
                    "checkpoint.keep_steps has step %lld, which is no multiple of "
                    "checkpoint.every_steps (%lld): no checkpoint is written there",
                    (long long)pins->step[i], (long long)every);
}

/* Evaluated are the multiples of train.eval_every, and the ends of epochs. */
static void warn_of_best(const struct dpt_config *config)
{
    const int64_t every = config->checkpoint.every_steps, eval_every = config->train.eval_every;
    const int64_t epoch_steps = config->train.epochs > 0 ? config->train.epoch_steps : 0;
    if (config->checkpoint.keep_best == 0 || every == 0 ||
        (eval_every > 0 && every % eval_every == 0) ||
        (epoch_steps > 0 && every % epoch_steps == 0))
        return;
    dpt_log(DPT_LOG_WARN,
            "checkpoint.every_steps (%lld) is no multiple of %s (%lld): some checkpoints have no "
            "validation loss, and checkpoint.keep_best keeps none of those",
            (long long)every, eval_every > 0 ? "train.eval_every" : "train.epoch_steps",
            (long long)(eval_every > 0 ? eval_every : epoch_steps));
}

void rank_warn_of_kept(struct dpt_rank *r)
{
    if (r->gen.checkpoint_slot != 0 || r->told_kept)
        return;
    r->told_kept = true;
    warn_of_pins(r);
    warn_of_best(r->config);
}
