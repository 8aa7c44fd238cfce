/* Makes the contents of a checkpoint, and begins and ends an attempt to save it. */
#include "worker/train/save/save.h"

#include "base/fs.h"
#include "base/log.h"
#include "worker/model/hf_config.h"
#include "worker/model/peft_config.h"
#include "worker/optim/optim.h"
#include "worker/trace/span.h"
#include "worker/train/device/rank_device.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Prints the JSON file that a checkpoint has for transformers or PEFT. */
static enum dpt_status print_hf_config(struct dpt_rank *r, const struct dpt_data *data,
                                       struct dpt_err *err)
{
    char **names = NULL;
    char **ret = &r->save->hf_config;
    if (dpt_model_base(r->model))
        return dpt_peft_config_print(r->config, r->model, ret, err);
    if (data)
        DPT_TRY(dpt_data_class_names(data, &names, err));
    const struct dpt_hf_beside beside = {.label_names = (const char *const *)names};
    const enum dpt_status status = dpt_hf_config_print(r->config, &beside, "float32", ret, err);
    if (names)
        dpt_fs_list_free(&names, (size_t)r->config->model.labels);
    return status;
}

enum dpt_status rank_open_save(struct dpt_rank *r, const struct dpt_data *data, struct dpt_err *err)
{
    struct rank_save *s = r->save;
    s->config_yaml = malloc(DPT_CONFIG_TEXT_BYTES_MAX);
    if (!s->config_yaml)
        return dpt_fail_nomem(err, "text of the config");
    DPT_TRY(dpt_config_print(r->config, s->config_yaml, err));
    DPT_TRY(dpt_state_tensors_init(r->model, &r->grid, &s->tensors, err));
    return print_hf_config(r, data, err);
}

void rank_close_save(struct dpt_rank *r)
{
    free(r->save->config_yaml);
    free(r->save->hf_config);
    dpt_state_tensors_fini(&r->save->tensors);
    dpt_state_pieces_fini(&r->save->saved_pieces);
}

void rank_settle_saver(struct dpt_rank *r)
{
    struct dpt_err err;
    enum dpt_status status = dpt_saver_wait(r->save->saver, &err);
    rank_note_saves(r);
    if (status == DPT_EDIVERGED)
        (void)snprintf(r->save->not_finite, sizeof r->save->not_finite, "%s", err.text);
    if (status == DPT_EREFUSED)
        r->save->folder_lost = err;
    if (status == DPT_EDIVERGED && r->gen.checkpoint_slot > 0)
        dpt_log(DPT_LOG_DEBUG, "%s", err.text); /* the first writer logs the error */
    else if (status == DPT_EDIVERGED)
        dpt_log(DPT_LOG_ERROR, "%s; earlier checkpoints stay", err.text);
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
    if (!r->config->checkpoint.dir[0] || slot > 0 ||
        (slot < 0 && r->options->start->local_rank != 0))
        return;
    /* An unfinished checkpoint in the folder belongs to a training run. */
    if (r->config->train.eval_only)
        return;
    struct dpt_err err;
    char why[RANK_WHY_BYTES];
    if (dpt_checkpoint_clean(r->config->checkpoint.dir, r->gen.number, r->gen.attempt, &err) !=
        DPT_OK)
        dpt_log(rank_quote_error(r, &err, why) ? DPT_LOG_WARN : DPT_LOG_INFO,
                "the remains of an unfinished checkpoint are not removed%s", why);
}

struct dpt_checkpoint_spec rank_checkpoint_spec(struct dpt_rank *r)
{
    r->save->saved_history = r->state.history;
    const int n_damaged = rank_list_damaged(r, r->state.step, r->save->saved_damaged);
    return (struct dpt_checkpoint_spec){
        .dir = r->config->checkpoint.dir,
        .tensors = r->save->tensors.tensor,
        .n_tensors = r->save->tensors.n,
        .moments = true,
        .no_v = !dpt_optim_has_second_moment(r->config),
        .pieces = r->save->saved_pieces.piece,
        .n_pieces = r->save->saved_pieces.n,
        .adapters = dpt_model_base(r->model) != NULL,
        .hf_config_json = r->save->hf_config,
        .state = {.step = r->state.step,
                  .samples = r->state.step * r->config->train.global_batch,
                  .seed = r->config->seed,
                  .config_yaml = r->save->config_yaml,
                  .data_digest = r->options->start->data[0] ? r->options->start->data : NULL,
                  .fingerprint = r->device->fingerprint,
                  .history_json = r->save->saved_history.json,
                  .scaler = {.scale = dpt_config_scales_loss(r->config) ? r->state.scaler.scale : 0,
                             .good_steps = r->state.scaler.good_steps,
                             .skipped_steps = r->state.scaler.skipped,
                             .diverged_in_row = r->state.scaler.diverged_in_row},
                  .epoch = {.has =
                                r->config->train.epochs > 0 && r->state.epoch.to == r->state.step,
                            .from = r->state.epoch.from,
                            .finite_steps = r->state.epoch.finite,
                            .loss_sum = r->state.epoch.loss_sum,
                            .timed_steps = r->state.epoch.timed,
                            .seconds = r->state.epoch.seconds},
                  .has_val_loss = r->state.validation.step == r->state.step &&
                                  isfinite(r->state.validation.loss),
                  .val_loss = r->state.validation.loss},
        .keep = r->state.diverged ? INT_MAX : r->config->checkpoint.keep,
        .keep_steps = r->config->checkpoint.keep_steps.step,
        .n_keep_steps = r->config->checkpoint.keep_steps.n,
        .keep_best = r->config->checkpoint.keep_best,
        .damaged = r->save->saved_damaged,
        .n_damaged = n_damaged,
        .account = &r->device->memory,
    };
}

void rank_save_begin(struct dpt_rank *r)
{
    if (r->gen.checkpoint_slot < 0)
        return;
    const int64_t began_ns = dpt_trace_begin();
    rank_settle_saver(r);
    struct dpt_err err;
    const struct dpt_piece_writers writers = {r->gen.writer_shards, r->gen.checkpoint_writers,
                                              r->gen.checkpoint_slot};
    if (dpt_strategy_fetch_state(r->strategy, &err) != DPT_OK ||
        dpt_state_pieces_to_write(&r->save->tensors, &dpt_strategy_held(r->strategy)->own, &writers,
                                  &r->save->saved_pieces, &err) != DPT_OK) {
        dpt_log(DPT_LOG_ERROR, "a checkpoint was not written: %s; training continues", err.text);
        dpt_link_publish_unsaved(r->link, r->gen.number, r->state.step, err.text);
        return;
    }
    struct dpt_checkpoint_spec spec = rank_checkpoint_spec(r);
    spec.writer = r->gen.checkpoint_slot;
    spec.n_writers = r->gen.checkpoint_writers;
    spec.generation = r->gen.number;
    spec.attempt = r->gen.attempt;
    rank_mark_save(r);
    dpt_saver_begin(r->save->saver, &spec);
    dpt_saver_wait_written(r->save->saver);
    dpt_trace_end_named(began_ns, "save");
}
