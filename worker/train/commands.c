/* Carries out the agent's commands (the table of rank.h). */
#include "worker/train/process.h"

#include "base/clock.h"
#include "base/log.h"
#include "worker/trace/span.h"
#include "worker/train/formation/formation.h"
#include "worker/train/log/rank_log.h"
#include "worker/train/save/save.h"

#include <stdio.h>

enum { LOOK_FOR_CHECKPOINT_MS = 1000 };

static void quiesce(struct dpt_rank *r, const Dpt__AgentToRank *command)
{
    const int64_t began_ns = dpt_trace_begin();
    r->formation->prepared_ms = command->prepare_ms > 0 ? command->prepare_ms : dpt_now_ms();
    rank_leave_generation(r);
    struct dpt_err err;
    char why[RANK_WHY_BYTES];
    int64_t newest = -1;
    const bool found = rank_newest_checkpoint(r, &newest, &err) == DPT_OK;
    Dpt__RankState *state = &dpt_link_edit(r->link)->state;
    /* If the folder cannot be read, the checkpoint found before stays in the report. */
    if (found)
        state->checkpoint_step = newest;
    newest = state->checkpoint_step;
    dpt_link_publish(r->link, false);
    if (!found)
        dpt_log(rank_quote_error(r, &err, why) ? DPT_LOG_ERROR : DPT_LOG_INFO,
                "checkpoints cannot be looked up%s; the newest known checkpoint is of step %lld",
                why, (long long)newest);
    r->formation->quiesced_ms = dpt_now_ms();
    dpt_trace_end_named(began_ns, "leave generation");
    rank_report(r, DPT__RANK_PHASE__RANK_QUIESCED, command->generation);
}

/* Carries out a PLAN. If the generation cannot be formed, this is reported to the agent and the
 * status is still DPT_OK. */
static enum dpt_status carry_out_plan(struct dpt_rank *r, const Dpt__AgentToRank *command,
                                      struct dpt_err *err)
{
    r->formation->plan_ms = command->plan_ms > 0 ? command->plan_ms : dpt_now_ms();
    const int64_t began_ns = dpt_trace_begin();
    enum dpt_status status = rank_form(r, command->plan, err);
    dpt_trace_end_named(began_ns, "form generation");
    if (status == DPT_OK) {
        rank_report(r, DPT__RANK_PHASE__RANK_READY, command->generation);
        return DPT_OK;
    }
    if (status != DPT_EPEER && status != DPT_ETIMEOUT && status != DPT_EABORTED)
        return dpt_wrap(err, status, "form generation %llu",
                        (unsigned long long)command->generation);
    if (status != DPT_EABORTED) {
        dpt_log(DPT_LOG_WARN, "generation %llu could not be formed (%s); waiting for the next one",
                (unsigned long long)command->generation, err->text);
        dpt_link_publish_failure(r->link, command->generation,
                                 dpt_comm_thread_suspect(r->comm_thread), err->text);
    }
    return DPT_OK;
}

static enum dpt_status go_and_train(struct dpt_rank *r, struct dpt_err *err)
{
    DPT_TRY(rank_enter_generation(r, err));
    enum train_end end = TRAIN_BROKEN;
    DPT_TRY(rank_train(r, &end, err));
    if (end == TRAIN_FINISHED)
        rank_report(r, DPT__RANK_PHASE__RANK_FINISHED, r->gen.number);
    if (end == TRAIN_BROKEN && !dpt_link_interrupted(r->link, r->gen.number)) {
        /* The agent's terminal shows the cause when the next generation starts. */
        dpt_log(DPT_LOG_INFO, "generation %llu failed at step %lld (%s); waiting for the next one",
                (unsigned long long)r->gen.number, (long long)r->state.step, err->text);
        dpt_link_publish_failure(r->link, r->gen.number, dpt_comm_thread_suspect(r->comm_thread),
                                 err->text);
    }
    return DPT_OK;
}

/* Whether a soft PREPARE shows that this rank's generation is running, although the rank has not
 * heard GO yet. The rank must take part in the steps until all ranks agree to stop. */
static bool running_is_implied(const struct dpt_rank *r, const Dpt__AgentToRank *command)
{
    return command->command == DPT__RANK_COMMAND__COMMAND_PREPARE_SOFT && r->gen.ready &&
           command->generation > r->gen.number;
}

/* Carries out a RESCUE, once: this node leaves while no server answers. After it the rank only
 * waits for EXIT. */
static void carry_out_rescue(struct dpt_rank *r, int64_t deadline_ms)
{
    struct dpt_err err;
    char why[RANK_WHY_BYTES];
    const int64_t step = r->state.step;
    if (r->loop->rescued)
        return;
    r->loop->rescued = true;
    rank_leave_generation(r);
    /* The step's checkpoint may have been committed since the last look. Another node may complete
     * the rescue before this rank. */
    const bool saved = rank_step_is_there(r, step) ||
                       rank_write_rescue(r, deadline_ms, &err) == DPT_OK ||
                       rank_step_is_there(r, step);
    if (saved) {
        dpt_log(DPT_LOG_INFO, "step %lld is complete in '%s', as a checkpoint or as a rescue",
                (long long)step, r->config->checkpoint.dir);
    } else {
        (void)rank_quote_error(r, &err, why);
        dpt_log(DPT_LOG_ERROR, "step %lld is not rescued%s", (long long)step, why);
    }
    if (saved && r->log->lines)
        dpt_pending_keep_unwritten(r->log->lines);
    struct dpt_report *report = dpt_link_edit(r->link);
    report->state.rescue_failed = !saved;
    /* If the rescue failed, the log has the reason. */
    if (saved)
        report->state.rescued_step = step;
    else
        (void)snprintf(report->text, sizeof report->text, "step %lld is not rescued",
                       (long long)step);
    dpt_link_publish(r->link, true);
}

/* Waits for the next command. Meanwhile a rank that has finished looks for the last checkpoint,
 * which another rank may commit, and reports when it is complete. After that no step is lost with
 * this process. */
static enum dpt_status await_command(struct dpt_rank *r, struct dpt_err *err)
{
    for (;;) {
        const Dpt__RankState *state = &dpt_link_edit(r->link)->state;
        const bool looks = state->phase == DPT__RANK_PHASE__RANK_FINISHED &&
                           state->checkpoint_step < r->state.step;
        dpt_link_publish(r->link, false);
        dpt_present_work_note(DPT_WORK_STANDBY, -1, -1);
        enum dpt_status status = dpt_link_wait(r->link, looks ? LOOK_FOR_CHECKPOINT_MS : -1, err);
        if (status != DPT_INPROGRESS)
            return status;
        if (rank_step_is_there(r, r->state.step))
            dpt_link_publish_saved(r->link, r->state.step);
    }
}

enum dpt_status rank_follow(struct dpt_rank *r, struct dpt_err *err)
{
    uint64_t quiesced = 0; /* newest generation for which the rank has reported QUIESCED */
    enum dpt_status status = DPT_OK;
    while (status == DPT_OK && (status = await_command(r, err)) == DPT_OK) {
        const Dpt__AgentToRank *command = dpt_link_command(r->link);
        dpt_present_work_note(DPT_WORK_FORM, -1, -1);
        if (command->command == DPT__RANK_COMMAND__COMMAND_EXIT)
            break;
        if (running_is_implied(r, command))
            status = go_and_train(r, err);
        command = dpt_link_command(r->link);
        switch (command->command) {
        case DPT__RANK_COMMAND__COMMAND_PREPARE:
        case DPT__RANK_COMMAND__COMMAND_PREPARE_SOFT:
            if (status == DPT_OK && command->generation > quiesced) {
                quiesced = command->generation;
                quiesce(r, command);
            }
            break;
        case DPT__RANK_COMMAND__COMMAND_PLAN:
        case DPT__RANK_COMMAND__COMMAND_GO:
            if (command->generation == quiesced && r->gen.number == 0 && command->plan)
                status = carry_out_plan(r, command, err);
            if (status == DPT_OK && command->command == DPT__RANK_COMMAND__COMMAND_GO &&
                command->generation == r->gen.number && r->gen.ready)
                status = go_and_train(r, err);
            break;
        case DPT__RANK_COMMAND__COMMAND_RESCUE:
            if (status == DPT_OK)
                carry_out_rescue(r, command->rescue_by_ms);
            break;
        default:
            break;
        }
    }
    return status;
}

void rank_await_rescue(struct dpt_rank *r)
{
    struct dpt_err err;
    const Dpt__AgentToRank *command;
    do {
        command = dpt_link_command(r->link);
        if (command && command->command == DPT__RANK_COMMAND__COMMAND_EXIT)
            return;
        if (command && command->command == DPT__RANK_COMMAND__COMMAND_RESCUE)
            carry_out_rescue(r, command->rescue_by_ms);
    } while (dpt_link_wait(r->link, -1, &err) == DPT_OK); /* ends when the agent has ended */
}
