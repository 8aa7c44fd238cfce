/* The step loop of one generation, its evaluations, and the end of the run. */
#include "base/clock.h"
#include "base/fs.h"
#include "base/log.h"
#include "worker/optim/optim.h"
#include "worker/train/rank_internal.h"
#include "worker/train/log/run_files.h"

#include <limits.h>
#include <math.h>
#include <string.h>
#include <sys/resource.h>

/* Left out by the rules of fp16. An overflow at the smallest scales is the network's own, not the
 * scale's. */
static void tell_skipped(struct dpt_rank *r)
{
    dpt_log(
        DPT_LOG_INFO,
        "step %lld is skipped: its gradient overflowed with the loss scaled by %g; %lld skipped "
        "so far, now by %g",
        (long long)r->step, r->outcome.scale, (long long)r->scaler.skipped, r->scaler.scale);
    if (r->scaler.scale >= 1 || r->told_divergence)
        return;
    r->told_divergence = true;
    dpt_log(
        DPT_LOG_ERROR,
        "gradients overflow though the loss is scaled by %g only: the run has diverged and will "
        "not recover; start from an earlier checkpoint with a lower optimizer.lr or with "
        "bf16 in place of fp16 (train.precision, strategy.compression)",
        r->outcome.scale);
}

enum dpt_status rank_apply(struct dpt_rank *r, struct dpt_err *err)
{
    const enum dpt_step_fate fate =
        dpt_step_fate_of(r->config, dpt_outcome_loss(&r->outcome), r->outcome.norm, &r->scaler);
    if (fate == DPT_STEP_STOPS) /* whoever had such an outcome has not told it */
        return dpt_fail(err, DPT_EPROTO, "the outcome of step %lld ends the run",
                        (long long)r->step);
    /* The scale is a power of two: the quotient is exact. */
    const float clip = dpt_clip_scale(r->outcome.norm, r->config->train.grad_clip);
    const struct dpt_optim_step step = {.step = r->step,
                                        .updates = r->step - r->scaler.skipped,
                                        .grad_scale = (float)((double)clip / r->outcome.scale)};
    if (fate == DPT_STEP_APPLIED)
        DPT_TRY(r->strategy->ops->apply(r->strategy, &step, err));
    dpt_step_fate_note(r->config, fate, r->outcome.norm, &r->scaler);
    if (fate == DPT_STEP_OVERFLOWED)
        tell_skipped(r);
    rank_damage_weights(r);
    if (r->config->train.epochs > 0)
        dpt_epoch_add_step(&r->epoch, r->config->train.epoch_steps, r->step,
                           dpt_outcome_loss(&r->outcome));
    r->step++;
    rank_keep_step(r);
    return DPT_OK;
}

static int64_t tokens_per_step(const struct dpt_rank *r)
{
    return r->config->train.global_batch * r->form.positions;
}

/* metrics.jsonl has the step, and so has a terminal's log. */
static bool line_is_due(const struct dpt_rank *r)
{
    return r->step % r->config->train.log_every == 0 || r->step == r->config->train.steps;
}

bool rank_ends_epoch(const struct dpt_rank *r)
{
    return dpt_config_ends_epoch(r->config, r->step) && r->epoch.to == r->step;
}

static struct dpt_step_epoch epoch_told(const struct dpt_rank *r)
{
    if (!rank_ends_epoch(r))
        return (struct dpt_step_epoch){.number = 0};
    return (struct dpt_step_epoch){
        .number = r->step / r->config->train.epoch_steps,
        .first_step = r->epoch.from + 1,
        .avg_loss = dpt_epoch_loss(&r->epoch),
        .seconds = r->epoch.seconds,
        .samples_per_s = dpt_epoch_samples_per_s(&r->epoch, r->config->train.global_batch)};
}

/* To the agent, which shows the newest step and prints a line of each that is due, and of an epoch;
 * it knows whether it is the node that does. */
static void tell_step(struct dpt_rank *r, double tokens_per_s)
{
    const struct dpt_step_record record = {.step = r->step,
                                           .loss = dpt_outcome_loss(&r->outcome),
                                           .lr = dpt_lr(r->config, r->step - 1),
                                           .grad_norm = r->outcome.norm,
                                           .tokens_per_s = tokens_per_s,
                                           .world_size = r->gen.world_size,
                                           .epoch = epoch_told(r),
                                           .passes = !line_is_due(r) && !rank_ends_epoch(r)};
    int64_t saved_step;
    (void)dpt_saver_saved(r->saver, &saved_step);
    (void)pthread_mutex_lock(&r->report_mutex);
    r->report.saved_step = saved_step > r->loaded_step ? saved_step : r->loaded_step;
    (void)pthread_mutex_unlock(&r->report_mutex);
    dpt_link_tell_step(r->link, &record);
}

static double rate_since_line(const struct dpt_rank *r)
{
    const double seconds = r->train_seconds - r->line_seconds;
    return seconds > 0 ? (double)(r->tokens_trained - r->line_tokens) / seconds : 0;
}

static void begin_line(struct dpt_rank *r)
{
    r->line_tokens = r->tokens_trained;
    r->line_seconds = r->train_seconds;
}

static void log_metrics(struct dpt_rank *r, double step_ms, const struct dpt_comm_account *account)
{
    const struct dpt_metrics m = {.run = r->config->run,
                                  .step = r->step,
                                  .loss = dpt_outcome_loss(&r->outcome),
                                  .lr = dpt_lr(r->config, r->step - 1),
                                  .grad_norm = r->outcome.norm,
                                  .tokens = r->step * tokens_per_step(r),
                                  .tokens_per_s =
                                      step_ms > 0 ? (double)tokens_per_step(r) * 1e3 / step_ms : 0,
                                  .step_ms = step_ms,
                                  .wait_ms = (double)account->waited_ns * 1e-6,
                                  .sent_bytes = (int64_t)account->bytes_sent,
                                  .generation = r->gen.number,
                                  .world_size = r->gen.world_size,
                                  .is_scaled = dpt_config_scales_loss(r->config),
                                  .may_skip = r->config->train.on_divergence == DPT_DIVERGENCE_SKIP,
                                  .scale = r->outcome.scale,
                                  .skipped_steps = r->scaler.skipped};
    struct dpt_err err;
    rank_add_line(r, dpt_runlog_metrics(&r->log, &m, &err), &err);
}

static bool is_finite(const struct dpt_outcome *outcome)
{
    return isfinite(dpt_outcome_loss(outcome)) && isfinite(outcome->norm);
}

/* A step that was committed by the last generation and applied in the formation of this one, or
 * whose line went down with who should have printed it. */
static void tell_missed_step(struct dpt_rank *r)
{
    if (r->has_outcome && r->step > 0 && (line_is_due(r) || rank_ends_epoch(r)))
        tell_step(r, 0);
    begin_line(r);
}

/* The last step may have been committed by a generation whose log writer died before writing it,
 * and this rank may have been given the state after it. */
static void log_missed_step(struct dpt_rank *r)
{
    rank_begin_log(r);
    if (!rank_keeps_log(r) || !r->gen.writes_log || !r->has_outcome ||
        r->step % r->config->train.log_every != 0 || dpt_logbook_has_step(r->book, r->step))
        return;
    const struct dpt_comm_account unknown = {0};
    struct dpt_err err;
    struct dpt_runlog_place last;
    enum dpt_status status = dpt_runlog_last(r->config->log.dir, &last, &err);
    rank_check_log(r, status, &err);
    if (status == DPT_OK && last.step < r->step) {
        log_metrics(r, 0, &unknown);
        if (!is_finite(&r->outcome))
            rank_tell_divergence(r, true);
    }
}

/* The evaluation that a generation begins with was perhaps written already: by the last one's log
 * writer, who died then, or before a run that goes on from a checkpoint was stopped. */
static bool evaluation_is_logged(struct dpt_rank *r)
{
    struct dpt_err err;
    struct dpt_runlog_place last = {.step = -1};
    if (!rank_keeps_log(r))
        return false;
    if (dpt_logbook_has_evaluation(r->book, r->step))
        return true;
    if (!r->gen.writes_log)
        return false;
    rank_check_log(r, dpt_runlog_last(r->config->log.dir, &last, &err), &err);
    return last.is_evaluation && last.step == r->step;
}

static bool evaluation_is_due(const struct dpt_rank *r)
{
    int64_t every = r->config->train.eval_every;
    if (r->step <= 0 || !dpt_config_evaluates(r->config))
        return false;
    return dpt_config_ends_epoch(r->config, r->step) ||
           (every > 0 && (r->step % every == 0 || r->step == r->config->train.steps));
}

static void log_event(struct dpt_rank *r)
{
    if (!rank_keeps_log(r))
        return;
    int64_t now = dpt_now_ms();
    struct dpt_strategy_cost cost;
    r->strategy->ops->cost(r->strategy, &cost);
    const struct dpt_event_record e = {.kind = r->gen.cause_kind,
                                       .cause = r->gen.cause,
                                       .generation = r->gen.number,
                                       .detect_ms = (double)r->gen.detect_ms,
                                       .abort_ms = (double)(r->quiesced_ms - r->prepared_ms),
                                       .rendezvous_ms = (double)(r->plan_ms - r->quiesced_ms),
                                       .rebuild_ms = (double)(r->rebuilt_ms - r->plan_ms),
                                       .restore_ms = (double)(r->restored_ms - r->rebuilt_ms),
                                       .total_ms = (double)r->gen.detect_ms +
                                                   (double)(now - r->prepared_ms),
                                       .steps_lost = r->gen.steps_lost,
                                       .resume_step = r->step,
                                       .world_size = r->gen.world_size,
                                       .sends_bytes = cost.sent_bytes,
                                       .redundancy = rank_redundancy(r)};
    struct dpt_err err;
    rank_add_line(r, dpt_runlog_event(&r->log, &e, &err), &err);
}

/* What lies between two steps (a save, an evaluation) is not the next one's. */
static void begin_step_account(struct dpt_rank *r)
{
    r->last_step_ns = dpt_now_ns();
    dpt_comm_thread_account(r->comm_thread, &r->last_account);
}

/* Time, waits and bytes of the step that was applied. */
static double account_step(struct dpt_rank *r, struct dpt_comm_account *ret)
{
    const int64_t began = r->last_step_ns;
    const struct dpt_comm_account before = r->last_account;
    begin_step_account(r);
    double step_ms = (double)(r->last_step_ns - began) * 1e-6;
    ret->waited_ns = r->last_account.waited_ns - before.waited_ns;
    ret->bytes_sent = r->last_account.bytes_sent - before.bytes_sent;
    /* Rounded up: a median of 0 says that there was none yet, and then nothing counts as a stall.
     */
    r->step_ms[r->n_step_ms++ % STEP_TIMES_COUNT] = 1 + (int64_t)step_ms;
    r->tokens_trained += tokens_per_step(r);
    r->train_seconds += step_ms * 1e-3;
    dpt_epoch_add_time(&r->epoch, step_ms * 1e-3);
    r->steps_made++;
    return step_ms;
}

static bool save_is_due(const struct dpt_rank *r)
{
    int64_t every = r->config->checkpoint.every_steps;
    return r->step < r->config->train.steps && every > 0 && r->step % every == 0;
}

static bool is_pinned(const struct dpt_rank *r)
{
    const struct dpt_config_steps *pins = &r->config->checkpoint.keep_steps;
    for (int64_t i = 0; i < pins->n; i++)
        if (pins->step[i] == r->step)
            return true;
    return false;
}

/* Once until a checkpoint is begun again; each pinned step. */
static void tell_put_off(struct dpt_rank *r)
{
    const bool pinned = is_pinned(r);
    if (r->gen.checkpoint_slot == 0 && (pinned || !r->told_put_off))
        dpt_log(DPT_LOG_WARN,
                "no checkpoint at step %lld%s: the last one still waits for the server's grant; "
                "training goes on, and the next checkpoint comes when it is due after that",
                (long long)r->step, pinned ? " (in checkpoint.keep_steps)" : "");
    r->told_put_off = true;
}

static void save_if_due(struct dpt_rank *r)
{
    if (!r->config->checkpoint.dir[0])
        return;
    if (!dpt_saver_busy(r->saver))
        rank_settle_saver(r); /* says now what failed, not when the next one is due */
    bool due = save_is_due(r) && !dpt_saver_has_saved(r->saver, r->gen.number, r->step);
    if (due && (r->outcome.flags & DPT_COMMIT_SAVER_BUSY)) {
        tell_put_off(r);
        return;
    }
    if (!due)
        return;
    r->told_put_off = false;
    rank_publish_busy(r, true);
    rank_save_begin(r);
    rank_publish_busy(r, false);
    begin_step_account(r);
}

static enum dpt_status save_what_is_held(struct dpt_rank *r, struct dpt_err *err)
{
    if (!r->config->checkpoint.dir[0] || r->gen.checkpoint_slot < 0)
        return DPT_OK;
    rank_settle_saver(r); /* one may be under way, perhaps of this very step */
    if (dpt_saver_has_saved(r->saver, r->gen.number, r->step))
        return DPT_OK;
    rank_save_begin(r);
    return dpt_saver_wait(r->saver, err);
}

/* All nodes leave, or too many: what they hold is kept by a checkpoint, whole before one goes, and
 * no later generation's writer completes the log. */
static void save_before_leaving(struct dpt_rank *r)
{
    struct dpt_err err = {.text = ""};
    char why[RANK_WHY_BYTES];
    rank_publish_busy(r, true);
    const enum dpt_status status = save_what_is_held(r, &err);
    (void)rank_settles_log(r);
    rank_publish_busy(r, false);
    if (status == DPT_OK || dpt_link_interrupted(r->link, r->gen.number)) /* it is not over */
        return;
    if (r->unsaved_told != r->step) { /* a farewell tries once more */
        (void)rank_say_why(r, &err, why);
        dpt_log(DPT_LOG_ERROR, "leaving, but step %lld could not be saved%s", (long long)r->step,
                why);
    }
    r->unsaved_told = r->step;
}

static struct dpt_summary summary_of(const struct dpt_rank *r, const char *weights_hash)
{
    struct rusage usage;
    DPT_ASSERT(getrusage(RUSAGE_SELF, &usage) == 0);
    const double step_s = r->steps_made > 0 ? r->train_seconds / (double)r->steps_made : 0;
    int64_t saved_step;
    const int64_t saved = dpt_saver_saved(r->saver, &saved_step) + r->checkpoints_told;
    struct dpt_summary summary = {
        .run = r->config->run,
        .start_step = r->start_step,
        .steps = r->step,
        .tokens = r->step * tokens_per_step(r),
        .loss = r->has_outcome ? dpt_outcome_loss(&r->outcome) : (double)NAN,
        .val_loss = r->validation.step == r->step ? r->validation.loss : (double)NAN,
        .val_right = r->validation.step == r->step ? r->validation.right : 0,
        .val_samples = r->validation.step == r->step ? rank_labelled_samples(r) : 0,
        .total_s = (double)(dpt_now_ms() - r->began_ms) * 1e-3,
        .step_ms = step_s * 1e3,
        .samples_per_s = step_s > 0 ? (double)r->config->train.global_batch / step_s : 0,
        .tokens_per_s = r->train_seconds > 0 ? (double)r->tokens_trained / r->train_seconds : 0,
        .checkpoints_saved = (int)saved,
        .saved_step = saved_step > r->loaded_step ? saved_step : r->loaded_step,
        .recoveries = dpt_history_recoveries(&r->history),
        .generations = r->generations,
        .steps_lost = r->steps_lost,
        .skipped_steps = r->scaler.skipped,
        .world_size = r->gen.world_size,
        .peak_bytes_per_rank = (int64_t)usage.ru_maxrss * 1024};
    (void)snprintf(summary.weights_hash, sizeof summary.weights_hash, "%s", weights_hash);
    return summary;
}

static enum dpt_status write_summary(const struct dpt_rank *r, const struct dpt_summary *summary,
                                     struct dpt_err *err)
{
    /* A finished run that is started again makes no step: its results stay. */
    char path[PATH_MAX];
    DPT_TRY(dpt_fs_join(r->config->log.dir, "summary.json", path, sizeof path, err));
    if (r->start_step == r->step && dpt_fs_exists(path))
        return DPT_OK;
    return dpt_runlog_summary(r->config->log.dir, summary, err);
}

/* The last checkpoint is part of the run: without it the run has not succeeded. */
static enum dpt_status save_last(struct dpt_rank *r, const char *weights_hash, struct dpt_err *err)
{
    if (!r->config->checkpoint.dir[0] || r->gen.checkpoint_slot < 0)
        return DPT_OK;
    rank_settle_saver(r);
    bool whole = dpt_saver_has_saved(r->saver, r->gen.number, r->step);
    if (!whole)
        DPT_TRY(rank_is_saved(r, weights_hash, &whole, err));
    if (whole)
        return DPT_OK;
    rank_save_begin(r);
    return dpt_saver_wait(r->saver, err);
}

static enum dpt_status finish(struct dpt_rank *r, struct dpt_err *err)
{
    char hash[DPT_HASH_HEX_BYTES];
    rank_write_memory(r);
    rank_write_op_times(r);
    DPT_TRY(rank_weights_hash(r, hash, err));
    DPT_TRY(rank_check_last_state(r, err));
    enum dpt_status status = save_last(r, hash, err);
    if (status != DPT_OK)
        return dpt_wrap(err, status, "the last checkpoint");
    const struct dpt_summary summary = summary_of(r, hash);
    if (rank_settles_log(r)) /* like every record: the run is done without it, too */
        rank_check_log(r, write_summary(r, &summary, err), err);
    (void)pthread_mutex_lock(&r->report_mutex);
    memcpy(r->report.weights_hash, hash, sizeof hash);
    r->report.has_summary = true;
    r->report.summary = summary;
    (void)pthread_mutex_unlock(&r->report_mutex);
    return DPT_OK;
}

/* Sorts an error of a step: of this generation only, or of the run. */
static enum dpt_status broken_or_fatal(struct dpt_rank *r, enum dpt_status status,
                                       enum train_end *ret, struct dpt_err *err)
{
    if (dpt_link_interrupted(r->link, r->gen.number) || status == DPT_EABORTED ||
        status == DPT_EPEER || status == DPT_ETIMEOUT) {
        *ret = TRAIN_BROKEN;
        return DPT_OK;
    }
    if (status == DPT_EDIVERGED && r->diverged) /* its text is whole */
        return status;
    return dpt_wrap(err, status, "step %lld", (long long)r->step);
}

static bool verification_is_due(const struct dpt_rank *r)
{
    return r->config->train.verify_every > 0 && r->step % r->config->train.verify_every == 0;
}

static enum dpt_status one_step(struct dpt_rank *r, struct dpt_err *err)
{
    dpt_log_set_where(r->gen.rank, r->gen.number, r->step);
    DPT_TRY(rank_compute_step(r, err));
    DPT_TRY(rank_apply(r, err));
    rank_note_first_step(r);
    rank_note_op_times(r);
    if (verification_is_due(r)) /* before anything of the step is logged or saved */
        DPT_TRY(rank_verify(r, err));
    DPT_TRY(rank_look_after_rebuild(r, err));
    struct dpt_comm_account account;
    double step_ms = account_step(r, &account);
    rank_flush_log(r);
    tell_step(r, rate_since_line(r));
    if (line_is_due(r)) {
        if (rank_keeps_log(r))
            log_metrics(r, step_ms, &account);
        begin_line(r);
    }
    if (rank_ends_epoch(r))
        rank_log_epoch(r);
    if (!is_finite(&r->outcome))
        rank_tell_divergence(r, rank_keeps_log(r));
    rank_publish_progress(r);
    return DPT_OK;
}

/* Evaluates what this world has not evaluated yet. True: it was given up, since the world shall
 * change; the next one does it. */
static enum dpt_status evaluate(struct dpt_rank *r, bool *ret_stopped, struct dpt_err *err)
{
    bool all_leave = false;
    *ret_stopped = false;
    if (r->validation.step != r->step)
        DPT_TRY(rank_evaluate(r, ret_stopped, &all_leave, err));
    if (*ret_stopped && all_leave && !r->config->train.eval_only)
        save_before_leaving(r);
    return DPT_OK;
}

/* At the beginning of a generation: what the last one has not evaluated, or not written. */
static enum dpt_status catch_up(struct dpt_rank *r, bool *ret_stopped, struct dpt_err *err)
{
    *ret_stopped = false;
    if (!evaluation_is_due(r))
        return DPT_OK;
    DPT_TRY(evaluate(r, ret_stopped, err));
    if (!*ret_stopped && !evaluation_is_logged(r))
        rank_log_evaluation(r);
    return DPT_OK;
}

static enum dpt_status evaluate_after_step(struct dpt_rank *r, bool *ret_stopped,
                                           struct dpt_err *err)
{
    *ret_stopped = false;
    if (!evaluation_is_due(r))
        return DPT_OK;
    DPT_TRY(evaluate(r, ret_stopped, err));
    if (!*ret_stopped)
        rank_log_evaluation(r);
    begin_step_account(r);
    return DPT_OK;
}

/* A run that only evaluates, from GO to its end. */
static enum dpt_status evaluate_only(struct dpt_rank *r, bool *ret_stopped, struct dpt_err *err)
{
    char hash[DPT_HASH_HEX_BYTES];
    DPT_TRY(evaluate(r, ret_stopped, err));
    if (*ret_stopped)
        return DPT_OK;
    rank_log_evaluation(r);
    DPT_TRY(rank_weights_hash(r, hash, err));
    const struct dpt_eval_record e = rank_evaluation_record(r);
    if (rank_settles_log(r))
        DPT_TRY(dpt_runlog_evaluation(r->config->log.dir, r->config->run, &e, hash, err));
    (void)pthread_mutex_lock(&r->report_mutex);
    memcpy(r->report.weights_hash, hash, sizeof hash);
    (void)pthread_mutex_unlock(&r->report_mutex);
    return DPT_OK;
}

/* A run whose folder is another's ends: what it would save is not its own. */
static enum dpt_status check_folder(const struct dpt_rank *r, struct dpt_err *err)
{
    return r->folder_lost.status == DPT_OK
               ? DPT_OK
               : dpt_fail(err, r->folder_lost.status, "%s", r->folder_lost.text);
}

enum dpt_status rank_train(struct dpt_rank *r, enum train_end *ret, struct dpt_err *err)
{
    bool stopped = false;
    enum dpt_status status;
    if (r->config->train.eval_only) {
        status = evaluate_only(r, &stopped, err);
        if (status != DPT_OK)
            return broken_or_fatal(r, status, ret, err);
        *ret = stopped ? TRAIN_REFORM : TRAIN_FINISHED;
        return DPT_OK;
    }
    DPT_TRY(check_folder(r, err));
    log_missed_step(r);
    rank_log_missed_epoch(r);
    log_event(r);
    if (r->began_ms == 0)
        r->began_ms = dpt_now_ms();
    if (r->gen.farewell) { /* after the last step, too: what is left to do then has no time now */
        save_before_leaving(r);
        *ret = TRAIN_REFORM;
        return DPT_OK;
    }
    status = catch_up(r, &stopped, err);
    if (status != DPT_OK)
        return broken_or_fatal(r, status, ret, err);
    tell_missed_step(r);
    begin_step_account(r);
    while (!stopped && r->step < r->config->train.steps) {
        status = one_step(r, err);
        if (status == DPT_EDIVERGED)
            status = rank_end_diverged(r, rank_keeps_log(r), err);
        else if (status == DPT_OK && (r->outcome.flags & DPT_COMMIT_NOT_FINITE))
            status = rank_end_not_finite(r, rank_keeps_log(r), err);
        if (status != DPT_OK)
            return broken_or_fatal(r, status, ret, err);
        const bool more = r->step < r->config->train.steps;
        /* When all leave no step is of use any more, though the server's word is not here yet. */
        const bool leaves = more && (r->outcome.flags & (DPT_COMMIT_REFORM | DPT_COMMIT_ALL_LEAVE));
        if (!leaves) /* before the step is saved, with its loss */
            status = evaluate_after_step(r, &stopped, err);
        if (status != DPT_OK)
            return broken_or_fatal(r, status, ret, err);
        save_if_due(r);
        DPT_TRY(check_folder(r, err));
        if (more && (r->outcome.flags & DPT_COMMIT_ALL_LEAVE))
            save_before_leaving(r);
        stopped = stopped || leaves;
    }
    if (stopped) {
        *ret = TRAIN_REFORM;
        return DPT_OK;
    }
    rank_publish_busy(r, true);
    status = finish(r, err);
    if (status != DPT_OK)
        return broken_or_fatal(r, status, ret, err);
    *ret = TRAIN_FINISHED;
    return DPT_OK;
}
