/* The rank processes of this node: their start, reports, crashes and deadlines. */
#include "worker/agent/core_state.h"

#include <stdio.h>
#include <string.h>

void dpt_agent_rank_reset(struct agent_rank *rank, uint32_t local_rank)
{
    dpt_report_init(&rank->report);
    rank->report.state.local_rank = local_rank;
    rank->report.state.spawn = rank->spawn;
    rank->reported = rank->started = rank->doomed = false;
    rank->kept_step = 0;
    rank->asked_generation = 0;
    rank->plan_rank = -1;
}

/* The local rank of `event`. NULL: the event is about an earlier process, or the process was
 * reaped. */
static struct agent_rank *process_of_event(struct dpt_agent *agent,
                                           const struct dpt_agent_event *event)
{
    if (event->local_rank >= agent->n_ranks)
        return NULL;
    struct agent_rank *rank = &agent->ranks[event->local_rank];
    return rank->spawn == event->spawn && dpt_agent_has_process(rank) ? rank : NULL;
}

/* ---- starting and killing ---- */

static void spawn_process(struct dpt_agent *agent, uint32_t local_rank)
{
    struct agent_rank *rank = &agent->ranks[local_rank];
    rank->spawn++;
    dpt_agent_rank_reset(rank, local_rank);
    rank->life = LIFE_UP;
    rank->judged_ms = rank->report_ms = agent->now_ms;
    rank->has_news = true;
    dpt_agent_act(agent, &(struct dpt_agent_action){.kind = DPT_AGENT_ACTION_SPAWN,
                                                    .local_rank = local_rank,
                                                    .spawn = rank->spawn,
                                                    .incarnation = agent->node.incarnation});
}

void dpt_agent_spawn_ranks(struct dpt_agent *agent)
{
    for (uint32_t i = 0; i < agent->n_ranks; i++)
        if (!dpt_agent_has_process(&agent->ranks[i]))
            spawn_process(agent, i);
}

static void kill_process(struct dpt_agent *agent, uint32_t local_rank)
{
    agent->ranks[local_rank].life = LIFE_KILLED;
    dpt_agent_act(agent, &(struct dpt_agent_action){.kind = DPT_AGENT_ACTION_KILL,
                                                    .local_rank = local_rank,
                                                    .spawn = agent->ranks[local_rank].spawn});
}

void dpt_agent_kill_ranks(struct dpt_agent *agent)
{
    for (uint32_t i = 0; i < agent->n_ranks; i++)
        if (agent->ranks[i].life == LIFE_UP)
            kill_process(agent, i);
}

bool dpt_agent_will_respawn(const struct dpt_agent *agent, uint32_t local_rank)
{
    const struct agent_rank *rank = &agent->ranks[local_rank];
    return rank->life == LIFE_DOWN && rank->failed_starts < STARTS_MAX && !agent->end.leaving &&
           !agent->errors.fatal && agent->stage == STAGE_JOINED;
}

/* Notes the time at which the last rank of this node stopped computing. */
static void note_standstill(struct dpt_agent *agent)
{
    if (dpt_agent_is_computing(agent))
        agent->gen.still_since_ms = -1;
    else if (agent->gen.still_since_ms < 0)
        agent->gen.still_since_ms = agent->now_ms;
}

static void note_step(struct dpt_agent *agent, int64_t step)
{
    if (step > agent->step_high)
        agent->step_high = step;
}

/* ---- errors ---- */

static void note_error(struct dpt_agent *agent, uint32_t local_rank, const char *text)
{
    struct agent_errors *errors = &agent->errors;
    if (errors->first[0] != '\0')
        return;
    errors->first_ms = agent->now_ms;
    errors->first_step = dpt_agent_step_of(agent);
    (void)snprintf(errors->first, sizeof errors->first, "rank process %u: %.470s", local_rank,
                   text);
}

/* Notes an error that ends this node. It also ends the run if no other node trains. */
static void note_fatal(struct dpt_agent *agent, int exit_code, uint32_t local_rank,
                       const char *text)
{
    struct agent_errors *errors = &agent->errors;
    errors->fatal = true;
    errors->fatal_code = exit_code;
    errors->fatal_counter = agent->server.counter;
    errors->fatal_by_ms = agent->now_ms + agent->timing.timeout_ms;
    /* The fatal error replaces an earlier first error. */
    errors->first[0] = '\0';
    note_error(agent, local_rank, text);
    agent->out.server_due = true;
}

/* Starts no further process in this local rank: the host lacks something, and other nodes need not
 * wait for it. If no local rank is left, the node ends. */
static void close_local_rank(struct dpt_agent *agent, uint32_t local_rank, int exit_code,
                             const char *text)
{
    agent->ranks[local_rank].failed_starts = STARTS_MAX;
    for (uint32_t i = 0; i < agent->n_ranks; i++) {
        if (agent->ranks[i].failed_starts >= STARTS_MAX)
            continue;
        dpt_agent_log(agent, DPT_LOG_ERROR,
                      "rank process %u: %s; this local rank stays empty until the node rejoins",
                      local_rank, text);
        return;
    }
    if (!agent->errors.fatal)
        note_fatal(agent, exit_code, local_rank, text);
}

/* Whether another process of this node is ready and a run exists that this node can take part
 * in. */
static bool others_take_part(const struct dpt_agent *agent, uint32_t local_rank)
{
    for (uint32_t i = 0; i < agent->n_ranks; i++)
        if (i != local_rank && agent->ranks[i].life == LIFE_UP && agent->ranks[i].started)
            return agent->gen.number > 0;
    return false;
}

/* ---- crashes ---- */

/* Whether a generation with this node starts soon. The line of its start gives the cause. */
static bool next_generation_tells(const struct dpt_agent *agent, uint32_t local_rank)
{
    if (agent->end.leaving || !agent->server.up || dpt_agent_lacks_server(agent) ||
        dpt_agent_is_waiting(agent))
        return false;
    return agent->ranks[local_rank].started &&
           (others_take_part(agent, local_rank) ||
            agent->server.n_nodes <= agent->node.spec->min_nodes);
}

static void log_crash(struct dpt_agent *agent, uint32_t local_rank, const char *how, bool is_told)
{
    const struct agent_rank *rank = &agent->ranks[local_rank];
    const char *text = rank->report.text;
    const bool differs = text[0] != '\0' && strcmp(text, how) != 0;
    char lost[2 * DPT_PROTO_NAME_BYTES] = "", next[DPT_PROTO_NAME_BYTES] = "";
    const int64_t gone = dpt_agent_gone_step(agent);
    if (gone > 0 && !dpt_agent_gone_is_elsewhere(agent))
        (void)snprintf(lost, sizeof lost, "; the steps after %lld, up to %lld, are lost with it",
                       (long long)dpt_agent_whole_step(agent), (long long)gone);
    if (!agent->end.leaving)
        (void)snprintf(next, sizeof next, "; starting it again in %lld ms",
                       (long long)rank->pause_ms);
    agent->gone.is_logged = agent->gone.is_logged || !is_told;
    dpt_agent_log(agent, is_told ? DPT_LOG_DEBUG : DPT_LOG_WARN,
                  "rank process %u (spawn %u) %s%s%s%s%s", local_rank, rank->spawn, how,
                  differs ? ": " : "", differs ? text : "", lost, next);
}

/* Takes over the steps that the process has completed since its last report, from its memfd. */
static void take_kept_step(struct dpt_agent *agent, struct agent_rank *rank)
{
    Dpt__RankState *state = &rank->report.state;
    if (rank->kept_step <= 0 || rank->kept_step <= state->step_applied)
        return;
    state->step_applied = rank->kept_step;
    /* The outcome of that step died with the process. */
    state->outcome_step = -1;
    note_step(agent, rank->kept_step);
}

static void lengthen_pause(const struct dpt_agent *agent, struct agent_rank *rank)
{
    const struct dpt_timing *timing = &agent->timing;
    rank->pause_ms = rank->pause_ms == 0 ? timing->respawn_ms : 2 * rank->pause_ms;
    if (rank->pause_ms > timing->respawn_max_ms)
        rank->pause_ms = timing->respawn_max_ms;
    rank->respawn_at_ms = agent->now_ms + rank->pause_ms;
}

/* Notes that a process has ended or must be ended. The cause is `how`, unless the report's text is
 * the cause: that of a fatal error, or with `text_is_cause`. Any other text of a report is about a
 * peer. */
static void note_crash(struct dpt_agent *agent, uint32_t local_rank, const char *how,
                       bool text_is_cause)
{
    struct agent_rank *rank = &agent->ranks[local_rank];
    struct dpt_report *report = &rank->report;
    const bool finished = report->state.phase == DPT__RANK_PHASE__RANK_FINISHED;
    const bool is_last = agent->errors.fatal || rank->failed_starts >= STARTS_MAX;
    if (report->text[0] == '\0' || (!agent->errors.fatal && !text_is_cause))
        dpt_agent_copy_text(report->text, sizeof report->text, how);
    if (!finished) {
        /* Crashes before the start are bounded by STARTS_MAX. */
        agent->errors.crashes += rank->started;
        note_error(agent, local_rank, report->text);
    }
    take_kept_step(agent, rank);
    dpt_agent_note_gone(agent, rank);
    /* Killed now, soon, or reaped already: in each case its steps are lost. */
    rank->life = LIFE_KILLED;
    report->state.phase = DPT__RANK_PHASE__RANK_DEAD;
    rank->plan_rank = -1;
    note_standstill(agent);
    lengthen_pause(agent, rank);
    rank->failed_starts = rank->started ? 0 : rank->failed_starts + 1;
    agent->out.server_due = true;
    /* The error was logged before, and no other process starts. */
    if (is_last)
        return;
    if (rank->failed_starts >= STARTS_MAX) {
        char text[DPT_PROTO_TEXT_BYTES];
        (void)snprintf(text, sizeof text,
                       "%d processes in a row ended before they were ready; the last: %.400s",
                       STARTS_MAX, report->text);
        close_local_rank(agent, local_rank, DPT_EXIT_FAILED, text);
        return;
    }
    log_crash(agent, local_rank, how, finished || next_generation_tells(agent, local_rank));
}

static void crash_process(struct dpt_agent *agent, uint32_t local_rank, const char *why)
{
    note_crash(agent, local_rank, why, false);
    kill_process(agent, local_rank);
}

/* ---- events of a process ---- */

void dpt_agent_on_rank_step(struct dpt_agent *agent, uint32_t local_rank, int64_t step)
{
    if (agent->ranks[local_rank].life == LIFE_UP)
        agent->ranks[local_rank].kept_step = step;
}

void dpt_agent_on_rank_eof(struct dpt_agent *agent, const struct dpt_agent_event *event)
{
    const struct agent_rank *rank = process_of_event(agent, event);
    /* From STAGE_RESETTING on: a process that was told to exit closes its link first. */
    if (rank == NULL || rank->life == LIFE_KILLED || agent->stage >= STAGE_RESETTING)
        return;
    dpt_agent_on_rank_step(agent, event->local_rank, event->step);
    crash_process(agent, event->local_rank, "closed its link");
}

void dpt_agent_on_rank_waits(struct dpt_agent *agent, const struct dpt_agent_event *event)
{
    struct agent_rank *rank = process_of_event(agent, event);
    if (rank != NULL && rank->life == LIFE_UP)
        rank->judged_ms = rank->report_ms = agent->now_ms;
}

void dpt_agent_on_rank_exited(struct dpt_agent *agent, const struct dpt_agent_event *event)
{
    struct agent_rank *rank = process_of_event(agent, event);
    const char *text = event->text != NULL ? event->text : "";
    if (rank == NULL)
        return;
    const bool is_crash = rank->life == LIFE_UP && agent->stage < STAGE_RESETTING;
    dpt_agent_on_rank_step(agent, event->local_rank, event->step);
    rank->report.state.exit_code = event->exit_code;
    /* With is_final the process never ran. */
    if (is_crash && event->is_final) {
        dpt_agent_copy_text(rank->report.text, sizeof rank->report.text, text);
        close_local_rank(agent, event->local_rank, DPT_EXIT_FAILED, text);
    } else if (is_crash) {
        const int code = event->exit_code;
        char how[DPT_PROTO_NAME_BYTES];
        (void)snprintf(how, sizeof how,
                       code >= 0 ? "exited with status %d" : "was killed by signal %d",
                       code >= 0 ? code : -code);
        note_crash(agent, event->local_rank, text[0] != '\0' ? text : how, false);
    }
    rank->life = LIFE_DOWN;
    rank->report.state.phase = DPT__RANK_PHASE__RANK_DEAD;
    agent->out.server_due = true;
}

/* ---- reports ---- */

static bool has_moved(const Dpt__RankState *old, const Dpt__RankState *new)
{
    return old->phase != new->phase || old->generation != new->generation;
}

/* Whether the rank that this one names as broken is none to which it has a link: others have told
 * it, and they tell the server, too. */
static bool is_hearsay(const struct dpt_agent *agent, const Dpt__RankState *state)
{
    const Dpt__Plan *plan = agent->gen.plan;
    if (state->phase != DPT__RANK_PHASE__RANK_RUNNING || state->suspect < 0 || plan == NULL)
        return false;
    for (size_t i = 0; i < plan->n_ranks; i++)
        if (plan->ranks[i]->rank == (uint32_t)state->suspect)
            return false;
    return true;
}

/* One rank's word ends the generation; the next message has the reports of the others. A server of
 * many nodes hears from those that have a link to the broken rank, so that its answer is not behind
 * the messages of all. From the others it hears with the next heartbeat, or when they have
 * quiesced. */
static bool tells_failure(const struct dpt_agent *agent, const Dpt__RankState *old,
                          const Dpt__RankState *new)
{
    const bool may_wait = dpt_agent_has_long_pauses(agent);
    if (old->failed_generation == new->failed_generation || (may_wait && is_hearsay(agent, new)))
        return false;
    for (uint32_t i = 0; i < agent->n_ranks; i++) {
        const Dpt__RankState *other = &agent->ranks[i].report.state;
        if (other->failed_generation == new->failed_generation &&
            !(may_wait && is_hearsay(agent, other)))
            return false;
    }
    return true;
}

static bool says_more(const Dpt__RankState *old, const Dpt__RankState *new)
{
    return old->grant_step != new->grant_step || old->busy != new->busy ||
           old->rescued_step != new->rescued_step || old->rescue_failed != new->rescue_failed ||
           old->stacks_of != new->stacks_of || old->unsaved_step != new->unsaved_step ||
           old->unsaved_generation != new->unsaved_generation;
}

/* Whether another rank of this node is where `rank` has been until now, and has the same orders: it
 * will move, too. */
static bool is_followed(const struct dpt_agent *agent, const struct agent_rank *rank)
{
    for (uint32_t i = 0; i < agent->n_ranks; i++) {
        const struct agent_rank *other = &agent->ranks[i];
        if (other != rank && other->life == LIFE_UP &&
            (other->plan_rank >= 0) == (rank->plan_rank >= 0) &&
            !has_moved(&rank->report.state, &other->report.state))
            return true;
    }
    return false;
}

/* A server of many nodes, which wants long pauses, hears with the next heartbeat that a rank runs:
 * only the next step boundary waits for that. */
static bool may_wait(const struct dpt_agent *agent, const Dpt__RankState *new)
{
    return dpt_agent_has_long_pauses(agent) && new->phase == DPT__RANK_PHASE__RANK_RUNNING;
}

/* The server waits for all ranks of a node, so the last one that moves reports for all. With eight
 * ranks a formation then takes an eighth of the messages. If a rank does not follow, the next
 * heartbeat has the moves of the others. */
static void note_news(struct dpt_agent *agent, struct agent_rank *rank, const Dpt__RankState *new)
{
    const Dpt__RankState *old = &rank->report.state;
    const bool more = tells_failure(agent, old, new) || says_more(old, new);
    const bool moved = has_moved(old, new);
    rank->has_news = rank->has_news || more || moved;
    if (more || (moved && !may_wait(agent, new) && !is_followed(agent, rank)))
        agent->out.server_due = true;
}

static void forgive_error(struct dpt_agent *agent, struct agent_rank *rank)
{
    struct agent_errors *errors = &agent->errors;
    if (errors->first[0] == '\0' || errors->fatal ||
        rank->report.state.step_applied < errors->first_step + FORGIVEN_STEPS)
        return;
    errors->first[0] = '\0';
    rank->pause_ms = 0;
}

/* Handles a report of an error that ends the process or this node. */
static void take_error(struct dpt_agent *agent, uint32_t local_rank,
                       const Dpt__RankToAgent *message)
{
    struct agent_rank *rank = &agent->ranks[local_rank];
    /* The process may hang while it ends. */
    if (message->broken && !agent->errors.fatal) {
        note_crash(agent, local_rank, "cannot go on", true);
        kill_process(agent, local_rank);
        return;
    }
    rank->doomed = rank->doomed || (message->fatal && !message->sound);
    if (!message->fatal || agent->errors.fatal)
        return;
    const int exit_code = message->exit_code > 0 ? (int)message->exit_code : DPT_EXIT_FAILED;
    const char *text = rank->report.text[0] != '\0' ? rank->report.text : "fatal error";
    if (!rank->started && others_take_part(agent, local_rank))
        close_local_rank(agent, local_rank, exit_code, text);
    else
        note_fatal(agent, exit_code, local_rank, text);
}

void dpt_agent_on_rank(struct dpt_agent *agent, const struct dpt_agent_event *event)
{
    struct agent_rank *rank = process_of_event(agent, event);
    const Dpt__RankToAgent *message = event->rank_message;
    if (rank == NULL || rank->life != LIFE_UP ||
        message->state->phase == DPT__RANK_PHASE__RANK_DEAD)
        return;
    const Dpt__RankState *state = &rank->report.state;
    rank->judged_ms = rank->report_ms = agent->now_ms;
    rank->reported = true;
    note_news(agent, rank, message->state);
    dpt_report_copy(&rank->report, message);
    note_standstill(agent);
    rank->started = rank->started || state->phase != DPT__RANK_PHASE__RANK_STARTING;
    /* The step stays saved if the process dies. */
    if (state->checkpoint_step > agent->server.saved_step)
        agent->server.saved_step = state->checkpoint_step;
    note_step(agent, state->step_applied);
    forgive_error(agent, rank);
    take_error(agent, event->local_rank, message);
}

/* ---- deadlines ---- */

/* How long a process may be silent. A new process loads its program first: on a busy machine that
 * takes longer than a short lease, however often the process is started again. */
static int64_t silence_limit_ms(const struct dpt_agent *agent, const struct agent_rank *rank)
{
    const int64_t lease_ms = agent->timing.lease_ms;
    return rank->reported || lease_ms > FIRST_REPORT_MS ? lease_ms : FIRST_REPORT_MS;
}

static bool has_not_quiesced(const struct dpt_agent *agent, const struct agent_rank *rank)
{
    const Dpt__RankState *state = &rank->report.state;
    const int64_t steps_ms = 2 * rank->report.message.step_ms_median;
    const int64_t quiesce_ms =
        agent->timing.quiesce_ms > steps_ms ? agent->timing.quiesce_ms : steps_ms;
    const bool quiesced =
        state->phase == DPT__RANK_PHASE__RANK_QUIESCED && state->generation == agent->gen.number;
    return agent->gen.order == ORDER_PREPARE && !agent->end.rescuing && !quiesced &&
           rank->asked_generation == agent->gen.number &&
           agent->now_ms - rank->asked_ms > quiesce_ms;
}

static void judge_process(struct dpt_agent *agent, uint32_t local_rank)
{
    struct agent_rank *rank = &agent->ranks[local_rank];
    if (agent->now_ms >= rank->respawn_at_ms && dpt_agent_will_respawn(agent, local_rank)) {
        spawn_process(agent, local_rank);
        return;
    }
    /* The agent kills a late process so that a successor takes its place. Without a server no
     * successor can. The late process may only be suspended, and it may be the only holder of its
     * steps: so the agent keeps it. */
    if (rank->life != LIFE_UP || (dpt_agent_lacks_server(agent) &&
                                  rank->report.state.step_applied > dpt_agent_saved_step(agent)))
        return;
    if (agent->now_ms - rank->judged_ms > silence_limit_ms(agent, rank))
        crash_process(agent, local_rank, "was silent too long and is killed");
    else if (has_not_quiesced(agent, rank))
        crash_process(agent, local_rank, "did not quiesce in time and is killed");
}

void dpt_agent_check_ranks(struct dpt_agent *agent)
{
    if (agent->stage >= STAGE_RESETTING)
        return;
    for (uint32_t i = 0; i < agent->n_ranks; i++)
        judge_process(agent, i);
}
