/* A model of the rank process: follows AgentToRank, computes steps in simulated time, quiesces,
 * heals, finishes. Its "weights" are a hash chain over the steps, so that a step lost, repeated or
 * applied twice shows. What ranks do together is in model_group.c,
 * what they report in model_report.c. */
#include "tests/sim/faults.h"

#include <stdlib.h>
#include <string.h>

enum { STEPS_MAX = 100000 };

static uint64_t mix(uint64_t x)
{
    struct rng rng = {x};
    return rng_next(&rng);
}

uint64_t model_outcome(int64_t step)
{
    return mix(0xabcdef ^ (uint64_t)step);
}

uint64_t model_weights(int64_t step)
{
    static uint64_t chain[STEPS_MAX + 1];
    static int64_t known = 0;
    DPT_ASSERT(step >= 0 && step <= STEPS_MAX);
    chain[0] = 42;
    for (; known < step; known++)
        chain[known + 1] = mix(chain[known] ^ model_outcome(known + 1));
    return chain[step];
}

void model_set_timer(struct sim *sim, struct proc *proc, int64_t low_ms, int64_t high_ms)
{
    sim_push(sim, (struct event){.at_ms = sim_delay(sim, low_ms, high_ms),
                                 .kind = EV_RANK_TIMER,
                                 .machine = proc->machine,
                                 .life = proc->life,
                                 .local = proc->local,
                                 .spawn = proc->spawn,
                                 .token = ++proc->timer});
}

static void trace_process(struct sim *sim, const struct proc *proc, const char *what,
                          int64_t number)
{
    sim_say(sim, "  rank %s.%u.%u: %s %lld", sim->machines[proc->machine].id, proc->local,
            proc->spawn, what, (long long)number);
}

static void beat_later(struct sim *sim, const struct proc *proc)
{
    struct dpt_timing timing = dpt_timing_from(sim->profile.timeout_ms, 0);
    sim_push(sim, (struct event){.at_ms = sim->now_ms + timing.heartbeat_ms,
                                 .kind = EV_RANK_BEAT,
                                 .machine = proc->machine,
                                 .life = proc->life,
                                 .local = proc->local,
                                 .spawn = proc->spawn});
}

void model_start(struct sim *sim, struct proc *proc)
{
    proc->stage = RS_STARTING;
    proc->step = proc->outcome_step = proc->gradient_step = proc->checkpoint_seen = -1;
    proc->suspect = -1;
    proc->grant_step = proc->want_grant = -1;
    proc->rank = -1;
    model_set_timer(sim, proc, sim->profile.start_min_ms, sim->profile.start_max_ms);
    beat_later(sim, proc);
}

static void look_for_rescue(struct sim *sim, struct proc *proc)
{
    if (proc->stage == RS_RESCUING && proc->rescue_written && sim_saved_step(sim) >= proc->step)
        proc->rescued_step = proc->step;
}

void model_beat(struct sim *sim, struct proc *proc)
{
    look_for_rescue(sim, proc);
    model_report(sim, proc);
    beat_later(sim, proc);
}

/* ---- quiescing ---- */

static void quiesce(struct sim *sim, struct proc *proc)
{
    group_leave(sim, proc);
    proc->stage = RS_QUIESCED;
    proc->generation = proc->prepare_generation;
    proc->want_grant = proc->grant_step = -1;
    proc->save_then_quiesce = false;
    proc->checkpoint_seen = sim_saved_step(sim);
    proc->timer++;
    trace_process(sim, proc, "quiesced, has applied step", proc->step);
    model_report(sim, proc);
}

static void take_prepare(struct sim *sim, struct proc *proc, uint64_t generation, bool soft)
{
    if (generation <= proc->prepare_generation)
        return;
    proc->prepare_generation = generation;
    proc->prepare_soft = soft;
    if (proc->stage == RS_STANDBY || proc->stage == RS_QUIESCED || proc->stage == RS_BOUNDARY ||
        proc->stage == RS_BROKEN) {
        quiesce(sim, proc);
        return;
    }
    /* An apply that has begun is never interrupted; a soft PREPARE waits for the step's end. */
    if (soft || proc->stage == RS_APPLYING || proc->stage == RS_STARTING)
        return;
    proc->stage = RS_QUIESCING;
    model_set_timer(sim, proc, 1, 30);
}

/* ---- a rescue ---- */

/* What is held of the step is written; whoever finds all parts makes it whole. */
static void write_rescue(struct sim *sim, struct proc *proc)
{
    struct dpt_shard shards[RESCUE_PARTS_MAX];
    const struct dpt_shard held[] = {proc->held.own, proc->held.shadow};
    int n = 0;
    for (int i = 0; i < 2; i++) {
        if (dpt_shard_is_none(held[i]) || sim->n_rescue_parts == RESCUE_PARTS_MAX)
            continue;
        sim->rescue_parts[sim->n_rescue_parts].step = proc->step;
        sim->rescue_parts[sim->n_rescue_parts++].shard = held[i];
    }
    for (int i = 0; i < sim->n_rescue_parts; i++)
        if (sim->rescue_parts[i].step == proc->step)
            shards[n++] = sim->rescue_parts[i].shard;
    proc->rescue_written = true;
    if (!dpt_shards_cover(shards, n) || proc->step <= sim->rescue)
        return;
    sim->rescue = proc->step;
    sim->rescued++;
    trace_process(sim, proc, "completes a rescue, step", proc->step);
}

/* An apply that has begun is never interrupted: the agent says it again. */
static void take_rescue(struct sim *sim, struct proc *proc)
{
    if (proc->stage == RS_RESCUING || proc->stage == RS_APPLYING)
        return;
    if (proc->step <= 0)
        sim_fail(sim, "%s.%u has nothing and is asked for a rescue",
                 sim->machines[proc->machine].id, proc->local);
    group_leave(sim, proc);
    proc->want_grant = proc->grant_step = -1;
    proc->stage = RS_RESCUING;
    sim->machines[proc->machine].rescues = true;
    model_set_timer(sim, proc, 20, 300);
}

/* ---- the plan ---- */

static void take_plan(struct sim *sim, struct proc *proc, const Dpt__AgentToRank *message)
{
    if (proc->stage != RS_QUIESCED || proc->generation != message->generation) {
        if (proc->generation != message->generation)
            sim_fail(sim, "%s.%u is given the plan of generation %llu but has quiesced for %llu",
                     sim->machines[proc->machine].id, proc->local,
                     (unsigned long long)message->generation, (unsigned long long)proc->generation);
        return;
    }
    group_join(sim, proc, message->plan);
}

static void begin_finish(struct sim *sim, struct proc *proc)
{
    proc->stage = RS_FINISHING;
    model_set_timer(sim, proc, 20, 200);
    if (proc->checkpoint_slot == 0)
        fault_at_end(sim, proc->machine, proc->local);
}

static struct log_file *log_of(struct sim *sim, const struct proc *proc)
{
    return &sim->machines[sim->profile.shared_folder ? 0 : proc->machine].log;
}

static void take_go(struct sim *sim, struct proc *proc, uint64_t generation)
{
    if (proc->stage != RS_READY || proc->generation != generation)
        return;
    if (proc->group_number > sim->newest_went)
        sim->newest_went = proc->group_number;
    group_went(sim, proc->group);
    proc->went_back = false;
    proc->n_lines = 0; /* the file is completed with the steps that it lacks, no others */
    proc->log_end = log_of(sim, proc)->lines;
    proc->log_stalled = false;
    proc->ran_generation = generation;
    if (proc->pending_generation != 0) { /* all have theirs: the old may go */
        proc->held = proc->pending;
        proc->pending_generation = 0;
    }
    proc->applied_ms = sim->now_ms;
    trace_process(sim, proc, "runs from step", proc->step);
    if (proc->group->final_save) {
        proc->group->agreed_reform = true;
        proc->stage = RS_SAVING;
        model_set_timer(sim, proc, 20, 100);
    } else if (proc->step >= sim->profile.steps) {
        begin_finish(sim, proc);
    } else {
        proc->stage = RS_COMPUTING;
        proc->gradient_step = -1;
        model_set_timer(sim, proc, sim->profile.compute_min_ms,
                        sim->profile.compute_max_ms * sim->machines[proc->machine].slow);
    }
    model_report(sim, proc);
}

/* ---- checkpoints ---- */

static bool may_write(const struct sim *sim, const struct proc *proc)
{
    return sim->now_ms + sim->machines[proc->machine].clock_ms < proc->lease_until_ms;
}

static void try_commit(struct sim *sim, struct proc *proc)
{
    bool whole = proc->stage != RS_FINISHING && proc->stage != RS_SAVING;
    if (proc->want_grant < 0 || proc->grant_step != proc->want_grant || !may_write(sim, proc) ||
        proc->group == NULL || (!whole && proc->group->parts < proc->group->writers))
        return;
    if (proc->group_number < sim->newest_went && proc->group_life == sim->run_life)
        sim_fail(sim, "%s.%u commits checkpoint %lld of generation %llu although a newer one runs",
                 sim->machines[proc->machine].id, proc->local, (long long)proc->want_grant,
                 (unsigned long long)proc->generation);
    if (proc->want_grant > sim->checkpoint)
        sim->checkpoint = proc->want_grant;
    proc->checkpoint_seen = proc->want_grant;
    sim->saved++;
    trace_process(sim, proc, "commits checkpoint", proc->want_grant);
    proc->want_grant = -1;
    if (whole)
        return;
    proc->group->saved = true;
    group_part_written(sim, proc);
}

/* ---- steps ---- */

/* A line of the log belongs to the newest world: to no generation beside which a newer one makes
 * steps. A restarted server that does not know the newer one may permit lines of the older one, but
 * not behind the newer's lines. */
static void append_line(struct sim *sim, struct proc *proc, const struct log_line *line)
{
    const struct group *group = line->group;
    struct log_file *file = log_of(sim, proc);
    const bool newer_has_lines = file->newest > group->number;
    sim->lines++;
    proc->log_end = ++file->lines;
    if (group->number > file->newest)
        file->newest = group->number;
    if (group->superseded_ms != 0 && line->made_ms >= group->superseded_ms &&
        (newer_has_lines || group->superseded_life == sim->server_life))
        sim_fail(sim,
                 "%s.%u writes step %lld of generation %llu, made at %lld, though a newer one runs "
                 "since %lld",
                 sim->machines[proc->machine].id, proc->local, (long long)line->step,
                 (unsigned long long)group->generation, (long long)line->made_ms,
                 (long long)group->superseded_ms);
}

static bool may_append(const struct sim *sim, const struct proc *proc, int64_t made_clock_ms)
{
    const int64_t grace_ms = dpt_timing_from(sim->profile.timeout_ms, 0).grace_ms;
    const int64_t now_ms = sim->now_ms + sim->machines[proc->machine].clock_ms;
    return may_write(sim, proc) &&
           (made_clock_ms <= proc->confirmed_ms || now_ms < proc->confirmed_ms + grace_ms);
}

/* Lines of a generation that has ended are for the writer of the next one. */
static void flush_log(struct sim *sim, struct proc *proc)
{
    int n = 0;
    while (n < proc->n_lines && proc->lines[n].group == proc->group &&
           may_append(sim, proc, proc->lines[n].made_clock_ms)) {
        if (proc->log_stalled && log_of(sim, proc)->lines != proc->log_end) {
            n = proc->n_lines; /* another world has written: they go to the node's own file */
            sim->foreign_logs++;
            break;
        }
        proc->log_stalled = false;
        append_line(sim, proc, &proc->lines[n++]);
    }
    proc->log_stalled = proc->log_stalled || n < proc->n_lines;
    memmove(proc->lines, proc->lines + n, (size_t)(proc->n_lines - n) * sizeof proc->lines[0]);
    proc->n_lines -= n;
}

/* The oldest of too many go to the node's own file. */
static void write_log(struct sim *sim, struct proc *proc)
{
    if (!proc->writes_log || proc->group == NULL)
        return;
    if (proc->n_lines == LINES_MAX)
        memmove(proc->lines, proc->lines + 1, (size_t)--proc->n_lines * sizeof proc->lines[0]);
    proc->lines[proc->n_lines++] =
        (struct log_line){.group = proc->group,
                          .step = proc->step,
                          .made_ms = sim->now_ms,
                          .made_clock_ms = sim->now_ms + sim->machines[proc->machine].clock_ms};
    flush_log(sim, proc);
    sim->held_lines += proc->n_lines > 0;
    sim->fenced_writes += !may_write(sim, proc);
}

static void rebuild(struct sim *sim, struct proc *proc)
{
    const struct group *group = proc->group;
    if (group == NULL || !group->rebuilds || proc->step != group->resume_step + REBUILD_STEPS ||
        dpt_shard_is_none(group->late[proc->rank]))
        return;
    proc->held.shadow = group->late[proc->rank];
    sim->rebuilt++;
}

static void applied(struct sim *sim, struct proc *proc)
{
    proc->step++;
    rebuild(sim, proc);
    proc->weights = mix(proc->weights ^ proc->outcome);
    sim->applied++;
    proc->step_ms = proc->applied_ms > 0 ? sim->now_ms - proc->applied_ms : 0;
    proc->applied_ms = sim->now_ms;
    if (proc->weights != model_weights(proc->step) || proc->outcome_step != proc->step)
        sim_fail(sim, "%s.%u has wrong weights at step %lld", sim->machines[proc->machine].id,
                 proc->local, (long long)proc->step);
    if (proc->step > sim->furthest)
        sim->furthest = proc->step;
    write_log(sim, proc);
    if (proc->rank == 0 && proc->checkpoint_slot == 0 &&
        proc->step % sim->profile.checkpoint_every == 0)
        proc->want_grant = proc->step;
    if (proc->prepare_generation > proc->generation && !proc->prepare_soft) {
        quiesce(sim, proc);
    } else if (proc->group->broken) {
        proc->stage = RS_COMPUTING; /* the next step fails at once */
        model_broken(sim, proc, proc->generation, -1);
    } else if (proc->step >= sim->profile.steps) {
        begin_finish(sim, proc);
    } else if (proc->group->agreed_reform) {
        if (proc->group->agreed_leaving && proc->group->writers > 0) {
            proc->stage = RS_SAVING;
            model_set_timer(sim, proc, 20, 100);
        } else if (proc->prepare_generation > proc->generation) {
            quiesce(sim, proc);
        } else {
            proc->stage = RS_BOUNDARY;
        }
    } else {
        proc->stage = RS_COMPUTING;
        proc->gradient_step = -1;
        model_set_timer(sim, proc, sim->profile.compute_min_ms,
                        sim->profile.compute_max_ms * sim->machines[proc->machine].slow);
    }
}

static void finished(struct sim *sim, struct proc *proc)
{
    proc->stage = RS_FINISHED;
    trace_process(sim, proc, "finished, step", proc->step);
    model_report(sim, proc);
}

void model_timer(struct sim *sim, struct proc *proc)
{
    switch (proc->stage) {
    case RS_STARTING:
        proc->stage = RS_STANDBY;
        model_report(sim, proc);
        break;
    case RS_QUIESCING:
        quiesce(sim, proc);
        break;
    case RS_BUILDING:
        group_arrived(sim, proc);
        break;
    case RS_COMPUTING:
        group_contribute(sim, proc);
        break;
    case RS_REDUCING: /* sees that the small all-gather has completed */
        proc->outcome_step = proc->step + 1;
        proc->outcome = model_outcome(proc->outcome_step);
        proc->stage = RS_APPLYING;
        model_set_timer(sim, proc, 1, 10);
        break;
    case RS_APPLYING:
        applied(sim, proc);
        break;
    case RS_RESCUING:
        write_rescue(sim, proc);
        break;
    case RS_SAVING:
    case RS_FINISHING:
        if (proc->stage == RS_FINISHING && proc->checkpoint_slot != 0) {
            /* Only the first writer waits for the commit; for the others their own part is all. */
            group_part_written(sim, proc);
            finished(sim, proc);
        } else if (proc->group->saved) { /* the checkpoint is complete */
            if (proc->stage == RS_FINISHING) {
                finished(sim, proc);
            } else if (proc->prepare_generation > proc->generation) {
                quiesce(sim, proc);
            } else {
                proc->stage = RS_BOUNDARY;
            }
        } else {
            group_part_written(sim, proc);
        }
        break;
    default:
        break;
    }
}

void model_broken(struct sim *sim, struct proc *proc, uint64_t generation, int suspect)
{
    if (proc->generation != generation || proc->group == NULL || proc->stage == RS_QUIESCING ||
        proc->stage == RS_APPLYING || proc->stage == RS_BOUNDARY || proc->stage == RS_FINISHED ||
        proc->stage == RS_QUIESCED || proc->stage == RS_BROKEN || proc->stage == RS_RESCUING)
        return;
    if (proc->stage == RS_BUILDING && proc->takes_state && !proc->has_state)
        proc->step = proc->outcome_step = -1; /* half a state is none */
    proc->stage = RS_BROKEN;
    proc->failed_generation = generation;
    proc->suspect = suspect;
    proc->timer++;
    proc->want_grant = -1;
    trace_process(sim, proc, "data plane broke, suspects", suspect);
    group_leave(sim, proc);
    model_report(sim, proc);
    if (proc->prepare_generation > proc->generation)
        quiesce(sim, proc);
}

void model_gone(struct sim *sim, struct proc *proc)
{
    trace_process(sim, proc, "gone at step", proc->step);
    group_leave(sim, proc);
}

void model_message(struct sim *sim, struct proc *proc, const Dpt__AgentToRank *message)
{
    proc->lease_until_ms =
        message->lease_until_ms; /* the newest word counts: leave is taken back */
    proc->confirmed_ms = message->confirmed_ms;
    proc->leaving = message->leaving;
    proc->grant_step = message->grant_step;
    switch (message->command) {
    case DPT__RANK_COMMAND__COMMAND_PREPARE_SOFT:
        take_prepare(sim, proc, message->generation, true);
        break;
    case DPT__RANK_COMMAND__COMMAND_PREPARE:
        take_prepare(sim, proc, message->generation, false);
        break;
    case DPT__RANK_COMMAND__COMMAND_PLAN:
        take_plan(sim, proc, message);
        break;
    case DPT__RANK_COMMAND__COMMAND_GO:
        take_go(sim, proc, message->generation);
        break;
    case DPT__RANK_COMMAND__COMMAND_RESCUE:
        take_rescue(sim, proc);
        break;
    case DPT__RANK_COMMAND__COMMAND_EXIT:
        proc_kill(sim, proc, 0);
        return;
    default:
        break;
    }
    flush_log(sim, proc);
    try_commit(sim, proc);
}
