/* The step loop of one generation, its evaluations, and the end of the run. */
#include "base/clock.h"
#include "base/fs.h"
#include "base/log.h"
#include "worker/optim/optim.h"
#include "worker/train/rank_internal.h"
#include "worker/train/runlog.h"

#include <limits.h>
#include <math.h>
#include <string.h>
#include <sys/resource.h>

/* A write to the log is fenced and never ends the training: the record is lost, and said so. */
static void check_log(enum dpt_status status, const struct dpt_err *err)
{
    if (status != DPT_OK)
        dpt_log(DPT_LOG_ERROR, "a record of the run's log is lost: %s", err->text);
}

static bool interrupted(void *ctx)
{
    const struct dpt_rank *r = ctx;
    return dpt_link_interrupted(r->link, r->gen.number);
}

/* Whether this rank writes the log; it waits until it may. */
static bool writes_log(struct dpt_rank *r)
{
    return r->gen.writes_log && r->config->log.dir[0] &&
           dpt_link_await_write(r->link, interrupted, r);
}

/* An overflow at the smallest scales is the network's own, not the scale's. */
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
    const bool skipped = dpt_scaler_skips(r->config, r->outcome.norm);
    /* The scale is a power of two: the quotient is exact. */
    const float clip = dpt_clip_scale(r->outcome.norm, r->config->train.grad_clip);
    const struct dpt_optim_step step = {.step = r->step,
                                        .updates = r->step - r->scaler.skipped,
                                        .grad_scale = (float)((double)clip / r->outcome.scale)};
    if (!skipped)
        DPT_TRY(r->strategy->ops->apply(r->strategy, &step, err));
    dpt_scaler_advance(r->config, skipped, &r->scaler);
    if (skipped)
        tell_skipped(r);
    rank_damage_weights(r);
    r->step++;
    return DPT_OK;
}

static int64_t tokens_per_step(const struct dpt_rank *r)
{
    return (int64_t)r->config->train.global_batch * r->config->train.seq_len;
}

/* Said once: nothing that follows can be of use. */
static void warn_of_divergence(struct dpt_rank *r, double loss)
{
    if (isfinite(loss) || r->told_divergence)
        return;
    r->told_divergence = true;
    dpt_log(DPT_LOG_ERROR,
            "the loss of step %lld is %f: the run has diverged and will not recover; start from an "
            "earlier checkpoint with a lower optimizer.lr, longer warmup_steps or train.grad_clip",
            (long long)r->step, loss);
}

static void log_metrics(struct dpt_rank *r, double step_ms, const struct dpt_comm_account *account)
{
    const struct dpt_metrics m = {.step = r->step,
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
                                  .scale = r->outcome.scale,
                                  .skipped_steps = r->scaler.skipped};
    struct dpt_err err;
    warn_of_divergence(r, m.loss);
    check_log(dpt_runlog_metrics(r->config->log.dir, &m, &err), &err);
}

/* The last step may have been committed by a generation whose log writer died before writing it. */
static void log_missed_step(struct dpt_rank *r)
{
    if (!writes_log(r) || !r->has_outcome || r->step % r->config->train.log_every != 0)
        return;
    const struct dpt_comm_account unknown = {0};
    struct dpt_err err;
    int64_t last = -1;
    enum dpt_status status = dpt_runlog_last_step(r->config->log.dir, &last, NULL, &err);
    check_log(status, &err);
    if (status == DPT_OK && last < r->step)
        log_metrics(r, 0, &unknown);
}

static struct dpt_eval_record evaluation_of(const struct dpt_rank *r)
{
    return (struct dpt_eval_record){.step = r->validation.step,
                                    .val_loss = r->validation.loss,
                                    .tokens = r->val_sequences * r->config->train.seq_len,
                                    .ms = r->validation.ms > 0 ? r->validation.ms : (double)NAN,
                                    .generation = r->gen.number,
                                    .world_size = r->gen.world_size};
}

static void log_evaluation(struct dpt_rank *r)
{
    const struct dpt_eval_record e = evaluation_of(r);
    if (r->gen.rank == 0)
        dpt_log(DPT_LOG_INFO, "step %lld: val_loss %.6f, perplexity %.4g, over %lld tokens",
                (long long)e.step, e.val_loss, exp(e.val_loss), (long long)e.tokens);
    struct dpt_err err;
    if (!r->config->train.eval_only && writes_log(r))
        check_log(dpt_runlog_eval(r->config->log.dir, &e, &err), &err);
}

/* The evaluation that a generation begins with was perhaps written already: by the last one's log
 * writer, who died then, or before a run that goes on from a checkpoint was stopped. */
static bool evaluation_is_logged(const struct dpt_rank *r)
{
    struct dpt_err err;
    int64_t last = -1;
    bool is_evaluation = false;
    check_log(dpt_runlog_last_step(r->config->log.dir, &last, &is_evaluation, &err), &err);
    return is_evaluation && last == r->step;
}

static bool evaluation_is_due(const struct dpt_rank *r)
{
    int64_t every = r->config->train.eval_every;
    return every > 0 && r->step > 0 && (r->step % every == 0 || r->step == r->config->train.steps);
}

static void log_event(struct dpt_rank *r)
{
    if (!writes_log(r))
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
    check_log(dpt_runlog_event(r->config->log.dir, &e, &err), &err);
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
    r->step_ms[r->n_step_ms++ % STEP_TIMES_COUNT] = (int64_t)step_ms;
    r->tokens_trained += tokens_per_step(r);
    r->train_seconds += step_ms * 1e-3;
    return step_ms;
}

static bool save_is_due(const struct dpt_rank *r)
{
    int64_t every = r->config->checkpoint.every_steps;
    return r->step < r->config->train.steps && every > 0 && r->step % every == 0;
}

static void save_if_due(struct dpt_rank *r)
{
    if (!r->config->checkpoint.dir[0])
        return;
    if (!dpt_saver_busy(r->saver))
        rank_settle_saver(r); /* says now what failed, not when the next one is due */
    bool due = save_is_due(r);
    if (due && (r->outcome.flags & DPT_COMMIT_SAVER_BUSY)) {
        if (r->gen.checkpoint_slot == 0)
            dpt_log(DPT_LOG_WARN,
                    "no checkpoint at step %lld: the last one still waits for the server's grant; "
                    "training goes on",
                    (long long)r->step);
        return;
    }
    if (!due)
        return;
    rank_publish_busy(r, true);
    rank_save_begin(r);
    rank_publish_busy(r, false);
    begin_step_account(r);
}

/* All nodes leave, or too many: what they hold is kept by a checkpoint, whole before one goes. */
static void save_before_leaving(struct dpt_rank *r)
{
    if (!r->config->checkpoint.dir[0] || r->gen.checkpoint_slot < 0)
        return;
    struct dpt_err err = {.text = ""};
    rank_publish_busy(r, true);
    rank_settle_saver(r); /* one may be under way, perhaps of this very step */
    enum dpt_status status = DPT_OK;
    if (!dpt_saver_has_saved(r->saver, r->gen.number, r->step)) {
        rank_save_begin(r);
        status = dpt_saver_wait(r->saver, &err);
    }
    rank_publish_busy(r, false);
    if (status != DPT_OK)
        dpt_log(DPT_LOG_ERROR, "leaving, but step %lld could not be saved: %s", (long long)r->step,
                err.text);
}

static enum dpt_status write_summary(struct dpt_rank *r, const char *weights_hash,
                                     struct dpt_err *err)
{
    /* A finished run that is started again makes no step: its results stay. */
    char path[PATH_MAX];
    DPT_TRY(dpt_fs_join(r->config->log.dir, "summary.json", path, sizeof path, err));
    if (r->start_step == r->step && dpt_fs_exists(path))
        return DPT_OK;
    struct rusage usage;
    DPT_ASSERT(getrusage(RUSAGE_SELF, &usage) == 0);
    const struct dpt_summary s = {
        .run = r->config->run,
        .start_step = r->start_step,
        .steps = r->step,
        .tokens = r->step * tokens_per_step(r),
        .loss = r->has_outcome ? dpt_outcome_loss(&r->outcome) : (double)NAN,
        .val_loss = r->validation.step == r->step ? r->validation.loss : (double)NAN,
        .tokens_per_s = r->train_seconds > 0 ? (double)r->tokens_trained / r->train_seconds : 0,
        .weights_hash = weights_hash,
        .generations = r->generations,
        .steps_lost = r->steps_lost,
        .world_size = r->gen.world_size,
        .peak_bytes_per_rank = (int64_t)usage.ru_maxrss * 1024};
    return dpt_runlog_summary(r->config->log.dir, &s, err);
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
    enum dpt_status status = save_last(r, hash, err);
    if (status != DPT_OK)
        return dpt_wrap(err, status, "the last checkpoint");
    if (writes_log(r))
        DPT_TRY(write_summary(r, hash, err));
    (void)pthread_mutex_lock(&r->report_mutex);
    memcpy(r->report.weights_hash, hash, sizeof hash);
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
    bool last = r->step == r->config->train.steps;
    if ((r->step % r->config->train.log_every == 0 || last) && writes_log(r))
        log_metrics(r, step_ms, &account);
    rank_publish_progress(r);
    save_if_due(r);
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
    log_missed_step(r);
    *ret_stopped = false;
    if (!evaluation_is_due(r))
        return DPT_OK;
    DPT_TRY(evaluate(r, ret_stopped, err));
    if (!*ret_stopped && !(writes_log(r) && evaluation_is_logged(r)))
        log_evaluation(r);
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
        log_evaluation(r);
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
    log_evaluation(r);
    DPT_TRY(rank_weights_hash(r, hash, err));
    const struct dpt_eval_record e = evaluation_of(r);
    if (writes_log(r))
        DPT_TRY(dpt_runlog_evaluation(r->config->log.dir, r->config->run, &e, hash, err));
    (void)pthread_mutex_lock(&r->report_mutex);
    memcpy(r->report.weights_hash, hash, sizeof hash);
    (void)pthread_mutex_unlock(&r->report_mutex);
    return DPT_OK;
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
    log_event(r);
    if (r->gen.farewell) { /* after the last step, too: what is left to do then has no time now */
        log_missed_step(r);
        save_before_leaving(r);
        *ret = TRAIN_REFORM;
        return DPT_OK;
    }
    status = catch_up(r, &stopped, err);
    if (status != DPT_OK)
        return broken_or_fatal(r, status, ret, err);
    begin_step_account(r);
    while (!stopped && r->step < r->config->train.steps) {
        status = one_step(r, err);
        if (status != DPT_OK)
            return broken_or_fatal(r, status, ret, err);
        if ((r->outcome.flags & DPT_COMMIT_ALL_LEAVE) && r->step < r->config->train.steps)
            save_before_leaving(r);
        /* When all leave no step is of use any more, though the server's word is not here yet. */
        if ((r->outcome.flags & (DPT_COMMIT_REFORM | DPT_COMMIT_ALL_LEAVE)) &&
            r->step < r->config->train.steps) {
            *ret = TRAIN_REFORM;
            return DPT_OK;
        }
        status = evaluate_after_step(r, &stopped, err);
        if (status != DPT_OK)
            return broken_or_fatal(r, status, ret, err);
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
