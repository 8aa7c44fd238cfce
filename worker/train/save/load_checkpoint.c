/* Loads a checkpoint and compares its weights hash. */
#include "worker/train/save/save.h"
#include "worker/train/save/state_hash.h"

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
    DPT_TRY(dpt_strategy_fetch_state(r->strategy, err));
    struct hash_job job = {.spec = {.tensors = &r->save->tensors,
                                    .own = &dpt_strategy_held(r->strategy)->own,
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

static enum dpt_status load_part(struct dpt_rank *r, struct dpt_checkpoint *checkpoint,
                                 const struct dpt_state_part *part, struct dpt_err *err)
{
    if (dpt_shard_is_none(part->shard))
        return DPT_OK;
    struct dpt_state_pieces pieces = {.n = 0};
    DPT_TRY(
        dpt_checkpoint_check_names(checkpoint, r->save->tensors.tensor, r->save->tensors.n, err));
    DPT_TRY(dpt_state_pieces_of_part(&r->save->tensors, part, &pieces, err));
    /* An evaluation needs no moments. */
    if (r->config->train.eval_only)
        for (int i = 0; i < pieces.n; i++)
            pieces.piece[i].m = pieces.piece[i].v = NULL;
    enum dpt_status status = dpt_checkpoint_read_pieces(checkpoint, r->save->tensors.tensor,
                                                        pieces.piece, pieces.n, err);
    dpt_state_pieces_fini(&pieces);
    return status;
}

static enum dpt_status load_scaler(struct dpt_rank *r, const struct dpt_checkpoint_state *state,
                                   struct dpt_err *err)
{
    const struct dpt_scaler saved = {.scale = state->scaler.scale,
                                     .good_steps = state->scaler.good_steps,
                                     .skipped = state->scaler.skipped_steps,
                                     .diverged_in_row = state->scaler.diverged_in_row};
    return dpt_scaler_resume(r->config, state->step, &saved, &r->state.scaler, err);
}

static void load_epoch(struct dpt_rank *r, const struct dpt_checkpoint_state *state)
{
    r->state.epoch = (struct dpt_epoch){0};
    if (state->epoch.has)
        r->state.epoch = (struct dpt_epoch){.from = state->epoch.from,
                                            .to = state->step,
                                            .finite = state->epoch.finite_steps,
                                            .loss_sum = state->epoch.loss_sum,
                                            .timed = state->epoch.timed_steps,
                                            .seconds = state->epoch.seconds};
}

enum dpt_status rank_load_checkpoint(struct dpt_rank *r, int64_t step, struct dpt_err *err)
{
    struct dpt_checkpoint *checkpoint = NULL;
    const struct dpt_strategy_state *wanted = dpt_strategy_wanted(r->strategy);
    DPT_TRY(dpt_checkpoint_open(r->config->checkpoint.dir, step, &checkpoint, err));
    const struct dpt_checkpoint_state *state = dpt_checkpoint_get_state(checkpoint);
    enum dpt_status status = load_part(r, checkpoint, &wanted->own, err);
    if (status == DPT_OK)
        status = load_part(r, checkpoint, &wanted->shadow, err);
    if (status == DPT_OK)
        status = dpt_history_load(&r->state.history, state->history_json, err);
    if (status == DPT_OK) {
        (void)snprintf(r->save->loaded_hash, sizeof r->save->loaded_hash, "%s",
                       state->weights_hash);
        r->save->loaded_step = step;
        load_epoch(r, state);
    }
    if (status == DPT_OK)
        status = load_scaler(r, state, err);
    r->state.from_rescue = status == DPT_OK && state->rescue.node != NULL;
    dpt_checkpoint_close(&checkpoint);
    return status;
}

enum dpt_status rank_check_loaded(struct dpt_rank *r, struct dpt_err *err)
{
    char hash[DPT_HASH_HEX_BYTES];
    DPT_TRY(rank_weights_hash(r, hash, err));
    if (strcmp(r->save->loaded_hash, hash) == 0 || !r->save->loaded_hash[0])
        return DPT_OK;
    return dpt_fail(err, DPT_ECORRUPT,
                    "checkpoint of step %lld: its weights hash is %s, and %s in its state.json",
                    (long long)r->state.step, hash, r->save->loaded_hash);
}
