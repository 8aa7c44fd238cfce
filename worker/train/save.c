/* Checkpoints as the rank sees them: what to write, what to read, what may be resumed. */
#include "base/log.h"
#include "worker/optim/optim.h"
#include "worker/train/rank_internal.h"
#include "worker/train/state_hash.h"

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
    if (status == DPT_EABORTED)
        dpt_log(DPT_LOG_INFO, "checkpoint given up, since the world changes: %s", err.text);
    else if (status != DPT_OK)
        dpt_log(DPT_LOG_ERROR, "a checkpoint was not written: %s; training goes on%s", err.text,
                status == DPT_ENOSPC ? ", make room before the next one or lower checkpoint.keep"
                                     : ", the next one is tried at its step");
}

void rank_clear_leftovers(struct dpt_rank *r)
{
    int slot = r->gen.checkpoint_slot;
    if (!r->config->checkpoint.dir[0] || slot > 0 || (slot < 0 && r->report.local_rank != 0))
        return;
    struct dpt_err err;
    if (dpt_checkpoint_clean(r->config->checkpoint.dir, r->gen.number, r->gen.attempt, &err) !=
        DPT_OK)
        dpt_log(DPT_LOG_WARN, "what is left of an unfinished checkpoint stays: %s", err.text);
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
    r->saved_history = r->history;
    const struct dpt_checkpoint_spec spec = {
        .dir = r->config->checkpoint.dir,
        .writer = r->gen.checkpoint_slot,
        .n_writers = r->gen.checkpoint_writers,
        .generation = r->gen.number,
        .attempt = r->gen.attempt,
        .tensors = r->tensors.tensor,
        .n_tensors = r->tensors.n,
        .moments = true,
        .no_v = !dpt_optim_has_second_moment(r->config),
        .pieces = r->saved_pieces.piece,
        .n_pieces = r->saved_pieces.n,
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
                             .skipped_steps = r->scaler.skipped}},
        .keep = r->config->checkpoint.keep,
        .account = &r->memory,
    };
    dpt_saver_begin(r->saver, &spec);
    dpt_saver_wait_written(r->saver);
}

static enum dpt_status load_part(struct dpt_rank *r, struct dpt_checkpoint *checkpoint,
                                 const struct dpt_state_part *part, struct dpt_err *err)
{
    if (dpt_shard_is_none(part->shard))
        return DPT_OK;
    struct dpt_pieces pieces = {.n = 0};
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
                                     .skipped = state->scaler.skipped_steps};
    return dpt_scaler_resume(r->config, state->step, &saved, &r->scaler, err);
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
    if (status == DPT_OK)
        (void)snprintf(r->loaded_hash, sizeof r->loaded_hash, "%s", state->weights_hash);
    if (status == DPT_OK)
        status = load_scaler(r, state, err);
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

static enum dpt_status verify(struct dpt_rank *r, int64_t step, struct dpt_err *err)
{
    struct dpt_checkpoint *checkpoint = NULL;
    DPT_TRY(dpt_checkpoint_open(r->config->checkpoint.dir, step, &checkpoint, err));
    enum dpt_status status = dpt_checkpoint_verify(checkpoint, err);
    dpt_checkpoint_close(&checkpoint);
    return status;
}

/* Step of the newest checkpoint, -1: none; a rank without state passes over damaged ones. */
static enum dpt_status newest_whole(struct dpt_rank *r, int64_t *ret_step, struct dpt_err *err)
{
    const char *dir = r->config->checkpoint.dir;
    int64_t step = -1;
    DPT_TRY(dpt_checkpoint_newest(dir, &step, err));
    while (step >= 0 && r->step < 0 && step != r->verified_step) {
        struct dpt_err damage;
        if (step != r->damaged_step && verify(r, step, &damage) == DPT_OK) {
            r->verified_step = step;
            break;
        }
        if (step != r->damaged_step) { /* told once */
            dpt_log(DPT_LOG_WARN, "checkpoint of step %lld is passed over: %s", (long long)step,
                    damage.text);
            r->damaged_step = step;
        }
        DPT_TRY(dpt_checkpoint_newest_below(dir, step, &step, err));
    }
    *ret_step = step;
    return DPT_OK;
}

/* What a run that only evaluates looks at: the newest, or the one that was asked for, if it is
 * here. Once it is in memory there is no other: one that a training run writes meanwhile is not
 * meant. */
static enum dpt_status checkpoint_to_evaluate(struct dpt_rank *r, int64_t *ret_step,
                                              struct dpt_err *err)
{
    const int64_t wanted = r->config->train.eval_step;
    if (r->step >= 0) {
        *ret_step = r->step;
        return DPT_OK;
    }
    if (wanted == DPT_AUTO)
        return newest_whole(r, ret_step, err);
    struct dpt_err why;
    *ret_step = verify(r, wanted, &why) == DPT_OK ? wanted : -1;
    if (*ret_step < 0)
        dpt_log(DPT_LOG_WARN, "checkpoint of step %lld: %s", (long long)wanted, why.text);
    return DPT_OK;
}

enum dpt_status rank_newest_checkpoint(struct dpt_rank *r, int64_t *ret_step, struct dpt_err *err)
{
    *ret_step = -1;
    if (!r->config->checkpoint.dir[0])
        return DPT_OK;
    return r->config->train.eval_only ? checkpoint_to_evaluate(r, ret_step, err)
                                      : newest_whole(r, ret_step, err);
}

enum dpt_status rank_is_saved(struct dpt_rank *r, const char *weights_hash, bool *ret,
                              struct dpt_err *err)
{
    int64_t newest = -1;
    *ret = false;
    DPT_TRY(dpt_checkpoint_newest(r->config->checkpoint.dir, &newest, err));
    if (newest != r->step)
        return DPT_OK;
    struct dpt_checkpoint *checkpoint = NULL;
    struct dpt_err damage;
    if (dpt_checkpoint_open(r->config->checkpoint.dir, newest, &checkpoint, &damage) != DPT_OK) {
        dpt_log(DPT_LOG_WARN, "checkpoint of step %lld is written again: %s", (long long)newest,
                damage.text);
        return DPT_OK;
    }
    const char *theirs = dpt_checkpoint_get_state(checkpoint)->weights_hash;
    *ret = theirs && strcmp(theirs, weights_hash) == 0;
    dpt_checkpoint_close(&checkpoint);
    return DPT_OK;
}

static enum dpt_status nothing_to_evaluate(const struct dpt_rank *r, struct dpt_err *err)
{
    const char *dir = r->config->checkpoint.dir;
    if (r->config->train.eval_step == DPT_AUTO)
        return dpt_fail(err, DPT_ECONFIG,
                        "there is no whole checkpoint in '%s' to evaluate; name the checkpoint.dir "
                        "of a run that has written one",
                        dir);
    return dpt_fail(err, DPT_ECONFIG,
                    "there is no whole checkpoint of step %lld in '%s'; `dpt-ckpt list %s` says "
                    "which there are",
                    (long long)r->config->train.eval_step, dir, dir);
}

enum dpt_status rank_refuse_seed(const struct dpt_rank *r, struct dpt_err *err)
{
    return r->config->train.eval_only ? nothing_to_evaluate(r, err) : DPT_OK;
}
