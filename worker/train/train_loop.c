/* The step loop of one generation and its evaluations. */
#include "worker/train/process.h"

#include "base/clock.h"
#include "base/log.h"
#include "worker/optim/optim.h"
#include "worker/train/device/rank_device.h"
#include "worker/train/formation/formation.h"
#include "worker/train/log/rank_log.h"
#include "worker/train/save/save.h"
#include "worker/train/step/step.h"
#include "worker/train/trace/rank_trace.h"

#include <math.h>

/* ---- times ---- */

/* Begins the account of a step here, so that the time between two steps (a save, an evaluation)
 * does not count for the next step. */
static void begin_step_account(struct dpt_rank *r)
{
    r->loop->last_step_ns = dpt_now_ns();
    dpt_comm_thread_account(r->comm_thread, &r->loop->last_account);
}

/* Accounts the time, waits and sent bytes of the step that was just applied. Returns the time in
 * ms. */
static double account_step(struct dpt_rank *r, struct dpt_comm_account *ret)
{
    const int64_t began = r->loop->last_step_ns;
    const struct dpt_comm_account before = r->loop->last_account;
    begin_step_account(r);
    double step_ms = (double)(r->loop->last_step_ns - began) * 1e-6;
    ret->waited_ns = r->loop->last_account.waited_ns - before.waited_ns;
    ret->bytes_sent = r->loop->last_account.bytes_sent - before.bytes_sent;
    /* Rounded up, because a median of 0 means that there was no step yet; then no silence counts as
     * a stall. */
    r->loop->step_ms[r->loop->n_step_ms++ % STEP_TIMES_COUNT] = 1 + (int64_t)step_ms;
    r->loop->tokens_trained += rank_tokens_per_step(r);
    r->loop->train_seconds += step_ms * 1e-3;
    dpt_epoch_add_time(&r->state.epoch, step_ms * 1e-3);
    rank_note_times(r, step_ms, (double)ret->waited_ns * 1e-6);
    return step_ms;
}

static int64_t median_step_ms(const struct dpt_rank *r)
{
    int64_t sorted[STEP_TIMES_COUNT];
    int n = r->loop->n_step_ms < STEP_TIMES_COUNT ? r->loop->n_step_ms : STEP_TIMES_COUNT;
    for (int i = 0; i < n; i++) {
        int at = i;
        for (; at > 0 && sorted[at - 1] > r->loop->step_ms[i]; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = r->loop->step_ms[i];
    }
    return n > 0 ? sorted[n / 2] : 0;
}

/* ---- the reports of a step ---- */

/* Whether metrics.jsonl and the terminal have a line for the step. */
static bool line_is_due(const struct dpt_rank *r)
{
    return r->state.step % r->config->train.log_every == 0 ||
           r->state.step == r->config->train.steps;
}

/* Sends the step to the agent, which shows the newest step and prints those with a line. */
static void send_step(struct dpt_rank *r, double tokens_per_s)
{
    const struct train_state *s = &r->state;
    const bool ends_epoch = rank_ends_epoch(r);
    Dpt__StepRecord record = DPT__STEP_RECORD__INIT;
    record.step = s->step;
    record.loss = dpt_outcome_loss(&s->outcome);
    record.lr = dpt_optim_lr(r->config, s->step - 1);
    record.grad_norm = s->outcome.norm;
    record.tokens_per_s = tokens_per_s;
    record.world_size = (uint32_t)r->gen.world_size;
    if (ends_epoch) {
        record.epoch = s->step / r->config->train.epoch_steps;
        record.epoch_first_step = s->epoch.from + 1;
        record.epoch_avg_loss = dpt_epoch_loss(&s->epoch);
        record.epoch_seconds = s->epoch.seconds;
        record.epoch_samples_per_s =
            dpt_epoch_samples_per_s(&s->epoch, r->config->train.global_batch);
    }
    const int64_t saved_step = rank_saved_step(r);
    dpt_link_edit(r->link)->message.saved_step = saved_step;
    dpt_link_publish(r->link, false);
    dpt_link_tell_step(r->link, &record, !line_is_due(r) && !ends_epoch);
}

static double rate_since_line(const struct dpt_rank *r)
{
    const double seconds = r->loop->train_seconds - r->loop->line_seconds;
    return seconds > 0 ? (double)(r->loop->tokens_trained - r->loop->line_tokens) / seconds : 0;
}

static void restart_rate(struct dpt_rank *r)
{
    r->loop->line_tokens = r->loop->tokens_trained;
    r->loop->line_seconds = r->loop->train_seconds;
}

/* Bytes that this rank has allocated where it computes. */
static int64_t allocated_bytes(const struct rank_device *d)
{
    struct dpt_memory_use use;
    dpt_account_read(d->device_model ? &d->device_memory : &d->memory, &use);
    return use.all;
}

static void log_metrics(struct dpt_rank *r, double step_ms, const struct dpt_comm_account *account)
{
    const struct dpt_metrics m = {
        .step = r->state.step,
        .loss = dpt_outcome_loss(&r->state.outcome),
        .lr = dpt_optim_lr(r->config, r->state.step - 1),
        .grad_norm = r->state.outcome.norm,
        .tokens = r->state.step * rank_tokens_per_step(r),
        .tokens_per_s = step_ms > 0 ? (double)rank_tokens_per_step(r) * 1e3 / step_ms : 0,
        .step_ms = step_ms,
        .wait_ms = (double)account->waited_ns * 1e-6,
        .sent_bytes = (int64_t)account->bytes_sent,
        .memory_bytes = allocated_bytes(r->device),
        .is_scaled = dpt_config_scales_loss(r->config),
        .may_skip = r->config->train.on_divergence == DPT_DIVERGENCE_SKIP,
        .scale = r->state.outcome.scale,
        .skipped_steps = r->state.scaler.skipped};
    struct dpt_err err;
    rank_add_line(r, dpt_run_file_metrics(&r->log->files, &m, &err), &err);
}

static bool is_finite(const struct dpt_outcome *outcome)
{
    return isfinite(dpt_outcome_loss(outcome)) && isfinite(outcome->norm);
}

static void publish_progress(struct dpt_rank *r)
{
    struct dpt_report *report = dpt_link_edit(r->link);
    report->state.step_applied = report->state.outcome_step = r->state.step;
    report->state.loss = (float)dpt_outcome_loss(&r->state.outcome);
    report->message.step_ms_median = median_step_ms(r);
    report->message.tokens_per_s =
        r->loop->train_seconds > 0
            ? (float)((double)r->loop->tokens_trained / r->loop->train_seconds)
            : 0;
    dpt_link_publish(r->link, false);
}

/* ---- lines that the last generation lacks ---- */

/* Sends the newest step again: the formation of this generation may have applied a step that the
 * last generation committed, or the line may have been lost with the node that had to print it. */
static void send_missed_step(struct dpt_rank *r)
{
    if (r->state.has_outcome && r->state.step > 0 && (line_is_due(r) || rank_ends_epoch(r)))
        send_step(r, 0);
    restart_rate(r);
}

/* Writes the line of the newest step if the log lacks it. The log writer of the last generation may
 * have died before it wrote the line, and this rank may have received the state after that step. */
static void log_missed_step(struct dpt_rank *r)
{
    if (!r->gen.writes_log || !r->state.has_outcome ||
        r->state.step % r->config->train.log_every != 0 || !rank_lacks_line(r, DPT_LINE_STEP))
        return;
    const struct dpt_comm_account unknown = {0};
    log_metrics(r, 0, &unknown);
    if (!is_finite(&r->state.outcome))
        rank_tell_divergence(r);
}

static void log_event(struct dpt_rank *r)
{
    int64_t now = dpt_now_ms();
    struct dpt_strategy_cost cost;
    dpt_strategy_cost(r->strategy, &cost);
    const struct dpt_event_record e = {
        .kind = r->gen.cause.kind,
        .cause = r->gen.cause.text,
        .detect_ms = (double)r->gen.cause.detect_ms,
        .abort_ms = (double)(r->formation->quiesced_ms - r->formation->prepared_ms),
        .rendezvous_ms = (double)(r->formation->plan_ms - r->formation->quiesced_ms),
        .rebuild_ms = (double)(r->formation->rebuilt_ms - r->formation->plan_ms),
        .restore_ms = (double)(r->formation->restored_ms - r->formation->rebuilt_ms),
        .total_ms = (double)r->gen.cause.detect_ms + (double)(now - r->formation->prepared_ms),
        .steps_lost = r->gen.cause.steps_lost,
        .resume_step = r->state.step,
        .sends_bytes = cost.sent_bytes,
        .redundancy = generation_redundancy(&r->gen)};
    struct dpt_err err;
    rank_add_line(r, dpt_run_file_event(&r->log->files, &e, &err), &err);
}

/* ---- evaluations ---- */

static bool evaluation_is_due(const struct dpt_rank *r)
{
    int64_t every = r->config->train.eval_every;
    if (r->state.step <= 0 || !dpt_config_evaluates(r->config))
        return false;
    return dpt_config_ends_epoch(r->config, r->state.step) ||
           (every > 0 && (r->state.step % every == 0 || r->state.step == r->config->train.steps));
}

/* Evaluates the state unless it has been evaluated. *ret_stopped: the evaluation was stopped
 * because the world changes; the next world continues it. */
static enum dpt_status evaluate_once(struct dpt_rank *r, bool *ret_stopped, struct dpt_err *err)
{
    bool all_leave = false;
    *ret_stopped = false;
    if (r->state.validation.step != r->state.step) {
        const int64_t began_ns = dpt_trace_begin();
        dpt_present_work_note(DPT_WORK_EVALUATE, -1, -1);
        DPT_TRY(rank_evaluate(r, ret_stopped, &all_leave, err));
        dpt_trace_end_named(began_ns, "evaluation");
    }
    if (*ret_stopped && all_leave && !r->config->train.eval_only)
        rank_save_before_leaving(r);
    return DPT_OK;
}

/* `again`: the generation has just begun, so the line of the evaluation may have been written
 * before. */
static enum dpt_status evaluate_if_due(struct dpt_rank *r, bool again, bool *ret_stopped,
                                       struct dpt_err *err)
{
    *ret_stopped = false;
    if (!evaluation_is_due(r))
        return DPT_OK;
    DPT_TRY(evaluate_once(r, ret_stopped, err));
    if (!*ret_stopped && !(again && rank_logged_evaluation(r)))
        rank_log_evaluation(r);
    begin_step_account(r);
    return DPT_OK;
}

/* ---- the loop ---- */

static bool verification_is_due(const struct dpt_rank *r)
{
    return r->config->train.verify_every > 0 && r->state.step % r->config->train.verify_every == 0;
}

static enum dpt_status make_one_step(struct dpt_rank *r, struct dpt_err *err)
{
    dpt_log_set_where(r->gen.rank, r->gen.number, r->state.step);
    DPT_TRY(rank_compute_step(r, err));
    const int64_t began_ns = dpt_trace_begin();
    dpt_present_work_note(DPT_WORK_APPLY, -1, -1);
    DPT_TRY(rank_apply(r, err));
    dpt_trace_end_named(began_ns, "optimizer_step");
    rank_note_step(r);
    /* Verified before the step is logged or saved. */
    if (verification_is_due(r)) {
        dpt_present_work_note(DPT_WORK_VERIFY, -1, -1);
        DPT_TRY(rank_verify(r, err));
    }
    DPT_TRY(rank_finish_rebuild(r, err));
    dpt_present_work_note(DPT_WORK_LOG, -1, -1);
    struct dpt_comm_account account;
    double step_ms = account_step(r, &account);
    rank_flush_log(r);
    send_step(r, rate_since_line(r));
    if (line_is_due(r)) {
        log_metrics(r, step_ms, &account);
        restart_rate(r);
    }
    if (rank_ends_epoch(r))
        rank_log_epoch(r);
    if (!is_finite(&r->state.outcome))
        rank_tell_divergence(r);
    publish_progress(r);
    return DPT_OK;
}

/* Makes one step and then its evaluation and its save. *ret_stopped: all ranks have agreed to stop
 * after the step. */
static enum dpt_status step_and_follow_up(struct dpt_rank *r, bool *ret_stopped,
                                          struct dpt_err *err)
{
    bool stopped = false;
    enum dpt_status status = make_one_step(r, err);
    if (status == DPT_EDIVERGED)
        return rank_end_diverged(r, err);
    DPT_TRY(status);
    const uint32_t flags = r->state.outcome.flags;
    if (flags & DPT_COMMIT_NOT_FINITE)
        return rank_end_not_finite(r, err);
    const bool more = r->state.step < r->config->train.steps;
    /* When all nodes leave, a further step would be lost, so there is no wait for the server's
     * PREPARE. */
    const bool leaves = more && (flags & (DPT_COMMIT_REFORM | DPT_COMMIT_ALL_LEAVE));
    /* Evaluates before the save, which contains the validation loss. */
    if (!leaves)
        DPT_TRY(evaluate_if_due(r, false, &stopped, err));
    dpt_present_work_note(DPT_WORK_SAVE, -1, -1);
    if (rank_save_if_due(r))
        begin_step_account(r);
    DPT_TRY(rank_check_folder(r, err));
    if (more && (flags & DPT_COMMIT_ALL_LEAVE))
        rank_save_before_leaving(r);
    *ret_stopped = stopped || leaves;
    return DPT_OK;
}

static enum dpt_status train_steps(struct dpt_rank *r, bool *ret_stopped, struct dpt_err *err)
{
    DPT_TRY(evaluate_if_due(r, true, ret_stopped, err));
    send_missed_step(r);
    begin_step_account(r);
    while (!*ret_stopped && r->state.step < r->config->train.steps) {
        rank_trace_begin_step(r);
        rank_sample_memory(r);
        DPT_TRY(step_and_follow_up(r, ret_stopped, err));
        if (rank_trace_end_step(r))
            begin_step_account(r);
    }
    if (*ret_stopped) {
        if (dpt_link_leaving(r->link)) /* after its last report there is little time */
            rank_trace_end_run(r);
        return DPT_OK;
    }
    rank_trace_end_run(r);
    dpt_link_publish_busy(r->link, true);
    return rank_finish(r, err);
}

static enum dpt_status evaluate_only(struct dpt_rank *r, bool *ret_stopped, struct dpt_err *err)
{
    DPT_TRY(evaluate_once(r, ret_stopped, err));
    return *ret_stopped ? DPT_OK : rank_finish_evaluation(r, err);
}

/* Whether an error of a step ends only this generation. Otherwise it ends the run. */
static bool ends_generation_only(const struct dpt_rank *r, enum dpt_status status)
{
    return dpt_link_interrupted(r->link, r->gen.number) || status == DPT_EABORTED ||
           status == DPT_EPEER || status == DPT_ETIMEOUT;
}

/* The nodes of a world. Positions of one node are adjacent. */
static int count_nodes(const struct dpt_world *world)
{
    int nodes = 0;
    for (int i = 0; i < world->size; i++)
        nodes += i == 0 || world->node_of_position[i] != world->node_of_position[i - 1];
    return nodes;
}

/* Adds the time of the last world's nodes. A process that joins a run which has trained before
 * takes the nodes of its first world for the time before. */
static void account_nodes(struct dpt_rank *r)
{
    struct train_state *s = &r->state;
    const int64_t now = dpt_now_ms();
    const bool first = s->nodes_since_ms == 0;
    const int nodes = count_nodes(&r->gen.world);
    s->node_ms += (now - (first ? s->began_ms : s->nodes_since_ms)) * (first ? nodes : s->nodes);
    s->nodes_since_ms = now;
    s->nodes = nodes;
}

static void begin_training(struct dpt_rank *r)
{
    rank_begin_log(r);
    log_missed_step(r);
    if (rank_ends_epoch(r) && rank_lacks_line(r, DPT_LINE_EPOCH))
        rank_log_epoch(r);
    log_event(r);
    if (r->state.began_ms == 0)
        r->state.began_ms = dpt_now_ms();
    account_nodes(r);
}

enum dpt_status rank_train(struct dpt_rank *r, enum train_end *ret, struct dpt_err *err)
{
    bool stopped = false;
    enum dpt_status status;
    *ret = TRAIN_REFORM;
    if (r->config->train.eval_only) {
        status = evaluate_only(r, &stopped, err);
    } else {
        DPT_TRY(rank_check_folder(r, err));
        begin_training(r);
        /* Also after the last step: a final save leaves no time for the end of the run. */
        if (r->gen.final_save) {
            rank_save_before_leaving(r);
            return DPT_OK;
        }
        status = train_steps(r, &stopped, err);
    }
    if (status == DPT_OK && !stopped)
        *ret = TRAIN_FINISHED;
    /* DPT_EREFUSED: another run has the folder, and this run ends. */
    if (status == DPT_EREFUSED)
        return status;
    if (status != DPT_OK && ends_generation_only(r, status)) {
        *ret = TRAIN_BROKEN;
        return DPT_OK;
    }
    /* The text of a divergence needs no context. */
    if (status == DPT_EDIVERGED && r->state.diverged)
        return status;
    return dpt_wrap(err, status, "step %lld", (long long)r->state.step);
}
