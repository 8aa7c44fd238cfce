/* Commands of an operator. Each is a request that the operator's program repeats until the answer
 * says that it is done; so a lost message or a restart of the server needs no rule. A decision that
 * a later server must know (pause, stop, a denied node) is a record. */
#include "rendezvous/core/command.h"

#include "rendezvous/core/advance.h"
#include "rendezvous/core/apply.h"
#include "rendezvous/core/join.h"
#include "rendezvous/core/kept.h"
#include "rendezvous/core/queries.h"
#include "rendezvous/core/rules.h"

#include <stdio.h>
#include <string.h>

/* ---- which run ---- */

/* The run of a command that names none: the only one, or the only one that knows the node. False:
 * the outcome says why there is none. */
static bool guess_run(struct command *command)
{
    struct dpt_rdzv *core = command->core;
    const char *node = command->control->node;
    size_t n = 0;
    for (size_t i = 0; i < core->n_runs; i++) {
        if (node[0] != '\0' && !dpt_rdzv_knows_node(core->runs[i], node))
            continue;
        command->run = core->runs[i];
        n++;
    }
    if (n == 1)
        return true;
    command->run = NULL;
    if (n > 1 && node[0] != '\0')
        dpt_rdzv_set_outcome(command, UNKNOWN, "%zu runs have a node '%s': name one with --run R",
                             n, node);
    else if (n > 1)
        dpt_rdzv_set_outcome(command, UNKNOWN, "the server has %zu runs: name one", n);
    else if (node[0] != '\0')
        dpt_rdzv_set_outcome(command, UNKNOWN,
                             "no run here has a node '%s': dpt-ctl nodes lists them", node);
    else
        dpt_rdzv_set_outcome(command, UNKNOWN, "the server has no run");
    return false;
}

/* The run of ALLOW, which the server may have forgotten. False: as guess_run. */
static bool find_denied_run(struct command *command)
{
    const Dpt__Control *control = command->control;
    const struct deny_list *denied = &command->core->denied;
    size_t n = 0;
    const char *run = control->run;
    for (size_t i = 0; control->run[0] == '\0' && i < denied->n; i++)
        if (strcmp(denied->list[i].node, control->node) == 0) {
            run = denied->list[i].run;
            n++;
        }
    if (control->run[0] != '\0' || n == 1) {
        /* The list moves when the node leaves it. */
        (void)snprintf(command->run_name, sizeof command->run_name, "%s", run);
        return true;
    }
    if (n == 0)
        dpt_rdzv_set_outcome(command, UNKNOWN, "no node '%s' is denied: dpt-ctl nodes lists them",
                             control->node);
    else
        dpt_rdzv_set_outcome(command, UNKNOWN,
                             "node '%s' is denied in %zu runs: name one with --run R",
                             control->node, n);
    return false;
}

static bool was_stopped(const struct forgotten_run *run)
{
    return run != NULL && run->stopped && run->ended && !run->failed;
}

/* saved_step: of the newest checkpoint; unsaved: a later step that the run has made; 0: none. */
static void answer_stopped(struct command *command, const char *run, int64_t saved_step,
                           int64_t unsaved)
{
    command->reply->step = saved_step;
    if (unsaved > 0)
        dpt_rdzv_set_outcome(command, DONE, "run %s is stopped; step %lld is not saved", run,
                             (long long)unsaved);
    else if (saved_step > 0)
        dpt_rdzv_set_outcome(command, DONE, "run %s is stopped; step %lld is saved", run,
                             (long long)saved_step);
    else
        dpt_rdzv_set_outcome(command, DONE, "run %s is stopped", run);
}

/* A run that was stopped is known after the server has forgotten it. */
static bool find_run(struct command *command)
{
    const Dpt__Control *control = command->control;
    struct dpt_rdzv *core = command->core;
    if (control->verb == DPT__CONTROL_VERB__CONTROL_ALLOW)
        return find_denied_run(command);
    if (control->run[0] == '\0')
        return guess_run(command);
    command->run = dpt_rdzv_find_run(core, control->run);
    if (command->run != NULL)
        return true;
    const struct forgotten_run *forgotten = dpt_rdzv_find_forgotten(core, control->run);
    if (control->verb == DPT__CONTROL_VERB__CONTROL_STOP && was_stopped(forgotten)) {
        answer_stopped(command, control->run, forgotten->saved_step, 0);
        return false;
    }
    if (command->limited) /* the names of other runs are not for it */
        dpt_rdzv_set_outcome(command, UNKNOWN, "no run '%s' is here", control->run);
    else
        dpt_rdzv_list_runs(core, control->run, command->text, sizeof command->text);
    command->reply->outcome = UNKNOWN;
    return false;
}

/* ---- runs ---- */

static bool can_save(const struct run *run)
{
    return run->checkpoint_dir_id[0] != '\0';
}

/* The step that a checkpoint must have to be as new as the command; 0: no step was made. */
static int64_t step_to_save(struct run *run)
{
    const int64_t step = run->progress.step > 0 ? run->progress.step : 0;
    if (dpt_rdzv_is_held_now(run)) {
        const int64_t held = dpt_rdzv_step_held(run, GROUP_ALL);
        return held > step ? held : step;
    }
    return run->progress.final_step > 0 ? run->progress.final_step : step + 1;
}

/* Of a run that has ended: a later checkpoint is not made. */
static void answer_saved_end(struct command *command)
{
    const struct run *run = command->run;
    const int64_t saved_step = run->progress.saved_step, step = command->control->step;
    const bool is_saved = (step >= 0 && saved_step >= step) ||
                          (run->phase == DPT_RDZV_DONE && saved_step >= run->progress.step);
    command->reply->step = step;
    if (saved_step <= 0)
        dpt_rdzv_set_outcome(command, REFUSED, "run %s has ended and has no checkpoint", run->name);
    else
        dpt_rdzv_set_outcome(command, is_saved ? DONE : REFUSED,
                             "run %s has ended; its newest checkpoint has step %lld", run->name,
                             (long long)saved_step);
}

/* A failure to save in this generation, or in an earlier one, came before a command of now. In a
 * pause the final save has a later generation. */
static uint64_t generation_before(struct run *run)
{
    return run->generation == 0 || dpt_rdzv_is_held_now(run) ? run->generation
                                                             : run->generation - 1;
}

/* A rank has tried to save since the command, and could not. The request is over, or else the ranks
 * of the next generation would try again. */
static void answer_unsaved(struct command *command, int64_t step)
{
    struct run *run = command->run;
    const struct unsaved *unsaved = &run->progress.unsaved;
    if (run->requests.save_from == step) {
        run->requests.save_from = 0;
        run->changed = true;
    }
    dpt_rdzv_set_outcome(command, REFUSED,
                         "run %s could not save step %lld, and goes on as before: %s. Make room in "
                         "checkpoint.dir there, or mend it, and save again",
                         run->name, (long long)unsaved->step, unsaved->text);
}

static void save_run(struct command *command)
{
    struct run *run = command->run;
    struct operator_requests *requests = &run->requests;
    const struct unsaved *unsaved = &run->progress.unsaved;
    const bool is_new = command->control->step < 0;
    const int64_t step = is_new ? step_to_save(run) : command->control->step;
    const uint64_t before = is_new ? generation_before(run) : command->control->number;
    command->reply->step = step;
    command->reply->number = before;
    if (!can_save(run)) {
        dpt_rdzv_set_outcome(command, REFUSED, "run %s has no checkpoint.dir, so it saves nothing",
                             run->name);
    } else if (dpt_rdzv_has_ended(run)) {
        answer_saved_end(command);
    } else if (is_new && run->generation > 0 && run->progress.step < 0 &&
               !dpt_rdzv_is_held_now(run)) {
        command->reply->step = -1; /* asked again, it is a new command */
        dpt_rdzv_set_outcome(command, GOES_ON, "no rank of run %s has reported its step yet",
                             run->name);
    } else if (dpt_rdzv_is_held_now(run) && step == 0) {
        dpt_rdzv_set_outcome(command, REFUSED, "run %s has made no step yet", run->name);
    } else if (run->progress.saved_step >= step) {
        dpt_rdzv_set_outcome(command, DONE, "run %s: the checkpoint of step %lld is committed",
                             run->name, (long long)run->progress.saved_step);
    } else if (unsaved->step >= step && unsaved->generation > before) {
        answer_unsaved(command, step);
    } else {
        if (is_new && dpt_rdzv_is_held_now(run)) /* a final save that failed is tried again */
            run->progress.final_save_step = -1;
        run->changed = run->changed || requests->save_from != step;
        requests->save_from = step;
        requests->save_until_ms = command->core->now_ms + SAVE_REQUEST_MS;
        dpt_rdzv_set_outcome(command, GOES_ON, "run %s saves step %lld or the next one", run->name,
                             (long long)step);
    }
}

static void record_order(const struct run *run, enum dpt_rdzv_record_kind kind, bool on)
{
    dpt_rdzv_record(run, (struct dpt_rdzv_record){.kind = kind,
                                                  .generation = run->generation,
                                                  .step = run->progress.step,
                                                  .count = on});
}

/* A repeated command whose order is no longer in force: it must not be given again. */
static bool is_taken_back(struct command *command, bool in_force)
{
    const bool repeated = command->control->step >= 0;
    command->reply->step = 0;
    if (!repeated || in_force)
        return false;
    dpt_rdzv_set_outcome(command, REFUSED,
                         "run %s goes on: an operator has resumed it, or it was started again",
                         command->run->name);
    return true;
}

static void pause_run(struct command *command)
{
    struct run *run = command->run;
    if (is_taken_back(command, run->kept.paused))
        return;
    if (run->phase == DPT_RDZV_DRAINING || run->plan.n_finished > 0) {
        dpt_rdzv_set_outcome(command, REFUSED, "all steps of run %s are done, and it ends",
                             run->name);
        return;
    }
    if (run->kept.stopped) {
        dpt_rdzv_set_outcome(command, REFUSED,
                             "run %s is being stopped: dpt-ctl resume takes that back", run->name);
        return;
    }
    if (!run->kept.paused) {
        record_order(run, DPT_RDZV_RECORD_PAUSED, true);
        dpt_rdzv_log(run, DPT_LOG_INFO, "an operator pauses the run");
    }
    dpt_rdzv_advance(run);
    if (dpt_rdzv_is_held_now(run))
        dpt_rdzv_set_outcome(command, DONE, "run %s is paused after step %lld", run->name,
                             (long long)(run->progress.step > 0 ? run->progress.step : 0));
    else
        dpt_rdzv_set_outcome(command, GOES_ON, "run %s finishes its step", run->name);
}

static void resume_run(struct command *command)
{
    struct run *run = command->run;
    if (!dpt_rdzv_is_held(run)) {
        dpt_rdzv_set_outcome(command, DONE, "run %s is not paused", run->name);
        return;
    }
    if (run->kept.paused)
        record_order(run, DPT_RDZV_RECORD_PAUSED, false);
    if (run->kept.stopped)
        record_order(run, DPT_RDZV_RECORD_STOPPED, false);
    run->requests.told_unsaved = run->requests.told_away = run->requests.leave_unsaved = false;
    run->requests.refused_away = 0;
    run->changed = true;
    dpt_rdzv_log(run, DPT_LOG_INFO, "an operator lets the run go on");
    run->requests.resumed = run->phase == DPT_RDZV_WAITING;
    dpt_rdzv_set_outcome(command, DONE, "run %s goes on", run->name);
}

/* The number of a run among the runs of its name, by which the answer to a STOP names it: no
 * earlier run that was stopped has used it, and every later one has a higher number. */
static uint64_t number_of_run(const struct run *run)
{
    return run->formation.generation_floor + 1;
}

/* A repeated STOP of an earlier run of the name, which is not about the present one. */
static bool answer_stop_of_earlier(struct command *command)
{
    const Dpt__Control *control = command->control;
    const struct run *run = command->run;
    if (control->step < 0 || control->number == 0 || control->number >= number_of_run(run))
        return false;
    const struct forgotten_run *earlier = dpt_rdzv_find_forgotten(command->core, run->name);
    if (was_stopped(earlier)) {
        command->reply->step = earlier->saved_step;
        dpt_rdzv_set_outcome(command, DONE, "run %s was stopped, and was started again since",
                             run->name);
        return true;
    }
    dpt_rdzv_set_outcome(command, REFUSED,
                         "run %s ended before it was stopped, and was started again", run->name);
    return true;
}

/* Of a run that has ended a STOP may be done; nothing else can be done. */
static void answer_ended(struct command *command)
{
    const struct run *run = command->run;
    const size_t n = run->kept.n_nodes; /* with those that are not back since a restart */
    const int64_t unsaved = dpt_rdzv_step_without_checkpoint(run);
    const bool stopped = run->kept.stopped && run->phase == DPT_RDZV_DONE;
    const bool stops = command->control->verb == DPT__CONTROL_VERB__CONTROL_STOP;
    if (stopped && stops) /* repeated, it must not stop the next run of the name */
        command->reply->step = 0;
    if (stopped && stops && n > 0)
        dpt_rdzv_set_outcome(command, GOES_ON, "%zu node%s of run %s %s not ended yet", n,
                             n == 1 ? "" : "s", run->name, n == 1 ? "has" : "have");
    else if (stopped && stops)
        answer_stopped(command, run->name, run->progress.saved_step, unsaved);
    else
        dpt_rdzv_set_outcome(command, REFUSED, "run %s has ended", run->name);
}

static void stop_run(struct command *command)
{
    struct run *run = command->run;
    if (is_taken_back(command, run->kept.stopped))
        return;
    if (!can_save(run) && !run->kept.stopped && run->generation > 0) {
        dpt_rdzv_set_outcome(
            command, REFUSED,
            "run %s has no checkpoint.dir, so all its steps would be lost: end its workers "
            "with SIGTERM if you want that",
            run->name);
        return;
    }
    if (run->phase == DPT_RDZV_DRAINING || run->plan.n_finished > 0) {
        dpt_rdzv_set_outcome(command, REFUSED, "all steps of run %s are done, and it ends",
                             run->name);
        return;
    }
    if (!run->kept.stopped) {
        record_order(run, DPT_RDZV_RECORD_STOPPED, true);
        dpt_rdzv_log(run, DPT_LOG_INFO, "an operator stops the run");
    }
    if (command->control->step < 0) { /* new: a final save that failed is tried again */
        run->progress.final_save_step = -1;
        run->requests.leave_unsaved |= dpt_rdzv_is_second_stop(command);
        run->requests.told_unsaved = run->requests.told_away = false;
    }
    dpt_rdzv_advance(run);
    if (dpt_rdzv_has_ended(run)) {
        answer_ended(command);
        return;
    }
    dpt_rdzv_set_outcome(command, GOES_ON, "run %s saves its state", run->name);
    if (run->requests.told_away)
        dpt_rdzv_set_outcome(
            command, REFUSED,
            "run %s has stopped, but step %lld is not saved, and no node here holds it: the "
            "run is held until a node that was cut off comes back with it. Stop it again "
            "to end it without that step, or resume it",
            run->name, (long long)dpt_rdzv_step_without_checkpoint(run));
    dpt_rdzv_note_stop(command);
    if (run->requests.told_unsaved)
        dpt_rdzv_set_outcome(
            command, REFUSED,
            "run %s has stopped, but its state could not be saved (%s): stop it again, or resume "
            "it",
            run->name,
            run->progress.unsaved.generation == run->plan.generation ? run->progress.unsaved.text
                                                                     : "the ranks' logs say why");
}

/* ---- the command ---- */

static void show_run(struct command *command, Dpt__RunStatus **ret_status)
{
    dpt_rdzv_reply_add_nodes(command->core, command->reply, command->run, command->control->first);
    *ret_status = dpt_rdzv_new_status(command->run, 0);
}

/* Asks all ranks for their stacks. Those that have not answered after DUMP_MS are left out. An
 * operator who asks while a dump goes on takes part in it: two would drop each other's stacks. */
static void dump_run(struct command *command, Dpt__RunStatus **ret_status)
{
    struct run *run = command->run;
    struct operator_requests *requests = &run->requests;
    const int64_t now_ms = command->core->now_ms;
    const uint64_t number = command->control->number;
    if (number == 0) {
        dpt_rdzv_set_outcome(command, REFUSED, "a dump needs a number");
        return;
    }
    if (requests->dump != number && (dpt_rdzv_dump_wanted(run) == 0 || dpt_rdzv_is_dumped(run))) {
        requests->dump = number;
        requests->dump_ms = now_ms;
        run->changed = true;
    }
    requests->dump_until_ms = now_ms + DUMP_REQUEST_MS;
    command->reply->number = requests->dump;
    if (!dpt_rdzv_is_dumped(run)) {
        dpt_rdzv_set_outcome(command, GOES_ON, "ranks of run %s print their stacks", run->name);
        return;
    }
    dpt_rdzv_set_outcome(command, DONE, "run %s", run->name);
    *ret_status = dpt_rdzv_new_status(run, requests->dump);
}

static void carry_out(struct command *command)
{
    static void (*const carry_out_verb[])(struct command *) = {
        [DPT__CONTROL_VERB__CONTROL_DRAIN] = dpt_rdzv_drain_node,
        [DPT__CONTROL_VERB__CONTROL_EVICT] = dpt_rdzv_evict_node,
        [DPT__CONTROL_VERB__CONTROL_ALLOW] = dpt_rdzv_allow_node,
        [DPT__CONTROL_VERB__CONTROL_SAVE] = save_run,
        [DPT__CONTROL_VERB__CONTROL_PAUSE] = pause_run,
        [DPT__CONTROL_VERB__CONTROL_RESUME] = resume_run,
        [DPT__CONTROL_VERB__CONTROL_STOP] = stop_run};
    const Dpt__ControlVerb verb = command->control->verb;
    const bool is_about_node = verb == DPT__CONTROL_VERB__CONTROL_DRAIN ||
                               verb == DPT__CONTROL_VERB__CONTROL_EVICT ||
                               verb == DPT__CONTROL_VERB__CONTROL_ALLOW;
    const bool stops = verb == DPT__CONTROL_VERB__CONTROL_STOP;
    if (stops && answer_stop_of_earlier(command))
        return;
    if (stops)
        command->reply->number = number_of_run(command->run);
    if (is_about_node && command->control->node[0] == '\0')
        dpt_rdzv_set_outcome(command, REFUSED, "the command names no node");
    else if (command->run != NULL && dpt_rdzv_has_ended(command->run) &&
             verb != DPT__CONTROL_VERB__CONTROL_ALLOW && verb != DPT__CONTROL_VERB__CONTROL_SAVE)
        answer_ended(command);
    else
        carry_out_verb[verb](command);
    if (command->run != NULL)
        dpt_rdzv_advance(command->run);
}

/* Without a name the command of a machine that may take part in one run only is about that run. */
static Dpt__Control with_only_run(const struct inquiry *from)
{
    Dpt__Control control = *from->message->control;
    if (control.run[0] == '\0' && from->only_run != NULL)
        control.run = (char *)from->only_run;
    return control;
}

void dpt_rdzv_take_control(const struct inquiry *from)
{
    struct dpt_rdzv *core = from->core;
    const Dpt__Control control = with_only_run(from);
    struct command command = {.core = core,
                              .control = &control,
                              .incarnation = from->message->stamp->incarnation,
                              .limited = from->only_run != NULL && from->only_run[0] != '\0'};
    Dpt__RunStatus *status = NULL;
    const Dpt__ControlVerb verb = command.control->verb;
    if (!dpt_rdzv_may_answer(from))
        return;
    command.reply = dpt_rdzv_new_reply(core, verb);
    if (command.reply == NULL)
        return;
    const bool lists =
        verb == DPT__CONTROL_VERB__CONTROL_RUNS ||
        (verb == DPT__CONTROL_VERB__CONTROL_NODES && command.control->run[0] == '\0');
    const bool allowed = dpt_rdzv_may_command(from, &control, command.text);
    if (!allowed)
        command.reply->outcome = REFUSED;
    const bool repeated = allowed && dpt_rdzv_was_refused(from, &command);
    const bool found = allowed && !repeated && (lists || find_run(&command));
    if (found && verb == DPT__CONTROL_VERB__CONTROL_NODES)
        dpt_rdzv_reply_add_nodes(core, command.reply, command.run, command.control->first);
    else if (found && verb == DPT__CONTROL_VERB__CONTROL_SHOW)
        show_run(&command, &status);
    else if (found && verb == DPT__CONTROL_VERB__CONTROL_DUMP)
        dump_run(&command, &status);
    else if (found && !lists)
        carry_out(&command);
    dpt_rdzv_add_silence(&command);
    if (!repeated)
        dpt_rdzv_keep_refusal(from, &command);
    for (size_t i = 0; i < core->n_runs; i++)
        if ((allowed && verb == DPT__CONTROL_VERB__CONTROL_RUNS &&
             dpt_rdzv_may_see(from, core->runs[i])) ||
            core->runs[i] == command.run)
            dpt_rdzv_reply_add_run(command.reply, core->runs[i]);
    command.reply->text = dpt_outbox_text(&core->out, command.text);
    command.reply->run =
        command.run != NULL ? command.run->name : dpt_outbox_text(&core->out, command.run_name);
    const struct answer answer = {.phase = DPT__SERVER_PHASE__SERVER_WAITING,
                                  .run = command.run,
                                  .with_spec = command.run != NULL,
                                  .status = status,
                                  .reply = command.reply};
    dpt_rdzv_answer_outsider(from, &answer);
}
