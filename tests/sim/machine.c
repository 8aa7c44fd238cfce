/* Machines: the agent process, its rank processes as the operating system sees them. */
#include "tests/sim/sim.h"

#include <stdlib.h>
#include <string.h>

/* ---- processes ---- */

struct proc *proc_find(struct sim *sim, const struct event *event)
{
    if (event->local >= LOCALS_MAX)
        return NULL;
    struct proc *proc = sim->machines[event->machine].procs[event->local];
    return proc != NULL && proc->alive && proc->life == event->life && proc->spawn == event->spawn
               ? proc
               : NULL;
}

static void spawn(struct sim *sim, int machine, const struct dpt_agent_action *action)
{
    struct proc *proc = calloc(1, sizeof *proc);
    DPT_ASSERT(proc != NULL && action->local_rank < LOCALS_MAX);
    if (sim->n_procs == sim->procs_max) {
        sim->procs_max = sim->procs_max == 0 ? 64 : 2 * sim->procs_max;
        sim->procs = realloc(sim->procs, sim->procs_max * sizeof(struct proc *));
        DPT_ASSERT(sim->procs != NULL);
    }
    struct machine *m = &sim->machines[machine];
    struct proc *old = m->procs[action->local_rank];
    if (old != NULL && old->alive)
        sim_fail(sim, "%s: rank process %u started while another lives", m->id, action->local_rank);
    sim->procs[sim->n_procs++] = proc;
    proc->alive = true;
    proc->machine = machine;
    proc->life = m->life;
    proc->local = action->local_rank;
    proc->spawn = action->spawn;
    proc->incarnation = action->incarnation;
    m->procs[action->local_rank] = proc;
    model_start(sim, proc);
}

void proc_kill(struct sim *sim, struct proc *proc, int exit_code)
{
    if (!proc->alive)
        return;
    proc->alive = false;
    for (size_t i = 0; i < proc->n_deferred; i++)
        free(proc->deferred[i].data);
    proc->n_deferred = 0;
    model_gone(sim, proc);
    struct event exited = {.at_ms = sim_delay(sim, 1, 5),
                           .kind = EV_AGENT_RANK_EXITED,
                           .machine = proc->machine,
                           .life = proc->life,
                           .local = proc->local,
                           .spawn = proc->spawn,
                           .number = exit_code};
    if (rng_chance(&sim->rng, 300)) {
        struct event eof = exited;
        eof.kind = EV_AGENT_RANK_EOF;
        sim_push(sim, eof);
    }
    sim_push(sim, exited);
}

void proc_undefer(struct sim *sim, struct proc *proc)
{
    proc->stopped = false;
    for (size_t i = 0; i < proc->n_deferred; i++) {
        proc->deferred[i].at_ms = sim->now_ms;
        sim_push(sim, proc->deferred[i]);
    }
    proc->n_deferred = 0;
}

/* ---- the agent ---- */

Dpt__RunSpec machine_spec(const struct sim *sim)
{
    Dpt__RunSpec spec = DPT__RUN_SPEC__INIT;
    spec.min_nodes = (uint32_t)sim->profile.min_nodes;
    spec.max_nodes = (uint32_t)sim->profile.max_nodes;
    spec.timeout_ms = (uint32_t)sim->profile.timeout_ms;
    spec.wait_ms = (uint32_t)sim->profile.wait_ms;
    spec.first_step_ms = (uint32_t)sim->profile.first_step_ms;
    spec.drain_ms = (uint32_t)sim->profile.drain_ms;
    spec.max_restarts = sim->profile.max_restarts;
    spec.max_world = sim->profile.max_world;
    spec.sharded = sim->profile.sharding != SHARDING_NONE;
    spec.config_digest = "digest";
    spec.config_yaml = "run: sim\n";
    spec.user = "user";
    return spec;
}

int machine_rack(const struct sim *sim, int machine)
{
    return machine * sim->profile.racks / sim->profile.machines;
}

static void agent_step(struct sim *sim, int machine, struct dpt_agent_event event);

static void configure(struct sim *sim, int machine, const Dpt__RunSpec *spec)
{
    Dpt__RunSpec own = machine_spec(sim);
    struct dpt_agent_facts facts = {.spec = spec != NULL ? spec : &own,
                                    .n_ranks = sim->machines[machine].ranks,
                                    .fingerprint = "cpu",
                                    .checkpoint_dir_id = "checkpoints",
                                    .data_digest = "data",
                                    .secret = {1, (uint8_t)machine, (uint8_t)(machine >> 8)}};
    (void)snprintf(facts.host, sizeof facts.host, "host-%d", machine / 2);
    const int rack = machine_rack(sim, machine);
    if (sim->profile.racks % 2 == 0 || rack > 0) /* of an odd number the first has no name */
        (void)snprintf(facts.rack, sizeof facts.rack, "rack-%d", rack);
    (void)snprintf(facts.log_dir_id, sizeof facts.log_dir_id, "logs-%d",
                   sim->profile.shared_folder ? 0 : machine);
    agent_step(sim, machine,
               (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_CONFIGURED, .facts = &facts});
}

void machine_start(struct sim *sim, int machine)
{
    struct machine *m = &sim->machines[machine];
    if (m->agent != NULL)
        return;
    m->life++;
    m->incarnation += 1 + (uint64_t)sim->now_ms;
    m->stopped = m->ended = m->said_unsaved = m->told_stop = false;
    m->ending = false;
    m->held_at_end = m->exit_code = -1;
    m->heard_ms = sim->now_ms + m->clock_ms;
    m->known_saved = 0;
    struct dpt_agent_options options = {.run = sim->run,
                                        .node = m->id,
                                        .software = "dpt sim",
                                        .incarnation = m->incarnation,
                                        .timeout_ms = sim->profile.timeout_ms,
                                        .now_ms = sim->now_ms + m->clock_ms};
    struct dpt_err err;
    if (dpt_agent_create(&options, &m->agent, &err) != DPT_OK) {
        sim_fail(sim, "%s", err.text);
        return;
    }
    m->watch =
        agent_watch_create(sim->run, m->id, false); /* a message is decoded where it arrives */
    sim_say(sim, "%s starts", m->id);
    m->tick_ms = sim->now_ms;
    if (!rng_chance(&sim->rng, sim->trace == NULL ? 200 : 0))
        configure(sim, machine, NULL);
    else
        agent_step(sim, machine, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_TICK});
    net_connect(sim, machine, rng_range(&sim->rng, 1, 20));
}

/* The process ends; its remaining children are killed with it. */
static void end_machine(struct sim *sim, int machine)
{
    struct machine *m = &sim->machines[machine];
    m->incarnation = agent_watch_view(m->watch)->incarnation;
    dpt_agent_destroy(&m->agent);
    agent_watch_destroy(&m->watch);
    for (int i = 0; i < LOCALS_MAX; i++)
        if (m->procs[i] != NULL)
            proc_kill(sim, m->procs[i], -9);
    net_break(sim, machine);
    m->life++;
    for (size_t i = 0; i < m->n_deferred; i++)
        free(m->deferred[i].data);
    m->n_deferred = 0;
    m->stopped = false;
}

void machine_kill(struct sim *sim, int machine)
{
    if (sim->machines[machine].agent != NULL)
        end_machine(sim, machine);
}

static void on_exit_action(struct sim *sim, int machine, const struct dpt_agent_action *action)
{
    struct machine *m = &sim->machines[machine];
    const struct dpt_agent_view view = *agent_watch_view(m->watch);
    m->ended = true;
    m->exit_code = action->exit_code;
    (void)snprintf(m->exit_text, sizeof m->exit_text, "%.500s", action->text);
    sim_say(sim, "%s ends with code %d%s%s", m->id, m->exit_code, m->exit_text[0] ? ": " : "",
            m->exit_text);
    if (m->exit_code == DPT_EXIT_DONE && !view.leaving && !sim->done_seen && !m->told_stop)
        sim_fail(sim, "%s exits 0 before the end was acknowledged", m->id);
    check_exit(sim, m);
    /* With 75 where a process took steps along that no checkpoint has. */
    const bool lost = m->exit_code == DPT_EXIT_EXPELLED && m->said_unsaved;
    const bool no_server = (m->exit_code == DPT_EXIT_SERVER || (lost && !view.leaving)) &&
                           sim->host->server_hurt &&
                           sim->now_ms + m->clock_ms - m->heard_ms >= view.timing.join_ms;
    const bool failed = m->exit_code == DPT_EXIT_FAILED && sim->failed;
    const bool evicted =
        m->evicted && (m->exit_code == DPT_EXIT_CONFIG || m->exit_code == DPT_EXIT_EXPELLED);
    if (m->exit_code != DPT_EXIT_DONE && m->exit_code != DPT_EXIT_EXPELLED && !no_server &&
        !failed && !evicted)
        sim_fail(sim, "%s ends with code %d: %s", m->id, m->exit_code, m->exit_text);
    if (m->exit_code == DPT_EXIT_EXPELLED && !view.leaving && !no_server && !m->told_stop &&
        !evicted)
        sim_fail(sim, "%s gave up: %s", m->id, m->exit_text);
    bool again = (view.leaving || no_server || evicted || m->told_stop) && !sim->done_seen &&
                 !sim->failed && sim->trace == NULL;
    end_machine(sim, machine);
    if (again) {
        m->ended = false;
        sim_push(sim, (struct event){.at_ms = sim_delay(sim, 50, 4000),
                                     .kind = EV_MACHINE_START,
                                     .machine = machine});
    }
}

static void send_to_rank(struct sim *sim, int machine, const struct dpt_agent_send *send)
{
    struct event event = {.at_ms = sim->now_ms + 1,
                          .kind = EV_RANK_MESSAGE,
                          .machine = machine,
                          .life = sim->machines[machine].life,
                          .local = send->local_rank,
                          .spawn = send->spawn};
    sim_pack(sim, &send->message->base, &event);
    sim_push(sim, event);
}

/* What the ranks hold when the agent begins to end. */
static void note_held(struct machine *m)
{
    if (!agent_watch_view(m->watch)->ending || m->ending)
        return;
    m->ending = true;
    for (int i = 0; i < LOCALS_MAX; i++)
        if (m->procs[i] != NULL && m->procs[i]->alive && m->procs[i]->step > m->held_at_end)
            m->held_at_end = m->procs[i]->step;
}

static void agent_step(struct sim *sim, int machine, struct dpt_agent_event event)
{
    struct machine *m = &sim->machines[machine];
    event.now_ms = sim->now_ms + m->clock_ms;
    struct dpt_agent_output output;
    struct dpt_err err;
    if (dpt_agent_step(m->agent, &event, &output, &err) != DPT_OK) {
        sim_fail(sim, "agent %s: %s", m->id, err.text);
        return;
    }
    const char *broken = agent_watch_step(m->watch, m->agent, &event, &output);
    if (broken != NULL)
        sim_fail(sim, "agent %s: %s", m->id, broken);
    for (size_t i = 0; i < output.n_logs; i++) {
        sim_say(sim, "%s: %s", m->id, output.logs[i].text);
        if (strncmp(output.logs[i].text, "NOT SAVED", 9) != 0)
            continue;
        m->said_unsaved = true;
        check_unsaved(sim, m, output.logs[i].text);
    }
    note_held(m);
    const struct dpt_agent_action *exit_action = NULL;
    bool asked = false;
    for (size_t i = 0; i < output.n_actions; i++) {
        const struct dpt_agent_action *action = &output.actions[i];
        struct proc *proc = m->procs[action->local_rank];
        switch (action->kind) {
        case DPT_AGENT_ACTION_SPAWN:
            spawn(sim, machine, action);
            break;
        case DPT_AGENT_ACTION_KILL:
            if (proc != NULL && proc->spawn == action->spawn)
                proc_kill(sim, proc, -9);
            break;
        case DPT_AGENT_ACTION_CONFIGURE:
            asked = true;
            break;
        default:
            exit_action = action;
        }
    }
    for (size_t i = 0; i < output.n_to_ranks; i++)
        send_to_rank(sim, machine, &output.to_ranks[i]);
    if (output.to_server != NULL)
        net_to_server(sim, machine, output.to_server);
    if (exit_action != NULL) {
        on_exit_action(sim, machine, exit_action);
        return;
    }
    const int64_t due_ms = output.deadline_ms - m->clock_ms;
    if (m->tick_ms <= sim->now_ms || due_ms < m->tick_ms) {
        m->tick_ms = due_ms;
        sim_push(sim, (struct event){.at_ms = m->tick_ms,
                                     .kind = EV_AGENT_TICK,
                                     .machine = machine,
                                     .life = m->life});
    }
    if (asked)
        configure(sim, machine, output.actions[0].spec);
}

void machine_undefer(struct sim *sim, int machine)
{
    struct machine *m = &sim->machines[machine];
    m->stopped = false;
    for (size_t i = 0; i < m->n_deferred; i++) {
        m->deferred[i].at_ms = sim->now_ms;
        sim_push(sim, m->deferred[i]);
    }
    m->n_deferred = 0;
    m->tick_ms = sim->now_ms;
    sim_push(sim,
             (struct event){
                 .at_ms = sim->now_ms, .kind = EV_AGENT_TICK, .machine = machine, .life = m->life});
    for (int i = 0; i < LOCALS_MAX; i++)
        if (m->procs[i] != NULL && m->procs[i]->alive && m->procs[i]->stopped)
            proc_undefer(sim, m->procs[i]);
}

/* ---- events ---- */

static void note_word(struct sim *sim, struct machine *m, const Dpt__ServerState *message,
                      bool is_taken)
{
    if (is_taken) /* one that ends hears no more: an answer that comes then is too late */
        m->heard_ms = sim->now_ms + m->clock_ms;
    if (message->saved_step > m->known_saved)
        m->known_saved = message->saved_step;
    const bool is_done = message->phase == DPT__SERVER_PHASE__SERVER_DONE;
    if (is_done && !message->last_holder)
        m->known_saved = sim->profile.steps;
    m->told_stop = m->told_stop || (is_taken && is_done && message->last_holder);
    if (is_taken && message->phase == DPT__SERVER_PHASE__SERVER_EXPELLED)
        check_expelled(sim, m);
}

static void on_server_message(struct sim *sim, const struct event *event)
{
    struct machine *m = &sim->machines[event->machine];
    const struct dpt_agent_view *view = agent_watch_view(m->watch);
    Dpt__ServerState *message = NULL;
    struct dpt_err err;
    if (dpt_message_decode_server_state(event->data, event->bytes, &message, &err) != DPT_OK) {
        sim_fail(sim, "server to agent: %s", err.text);
        return;
    }
    if (message->stamp->incarnation == view->incarnation)
        note_word(sim, m, message, !view->ending);
    agent_step(sim, event->machine,
               (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_SERVER_MESSAGE,
                                        .server_message = message});
    dpt_message_free_server_state(&message);
}

static void on_rank_message(struct sim *sim, const struct event *event)
{
    struct machine *m = &sim->machines[event->machine];
    Dpt__RankToAgent *message = NULL;
    struct dpt_err err;
    if (dpt_message_decode_rank_to_agent(event->data, event->bytes, &message, &err) != DPT_OK) {
        sim_fail(sim, "rank to agent: %s", err.text);
        return;
    }
    if (message->state->checkpoint_step > m->known_saved)
        m->known_saved = message->state->checkpoint_step;
    if (message->state->rescued_step > m->known_saved)
        m->known_saved = message->state->rescued_step;
    agent_step(sim, event->machine,
               (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_RANK_MESSAGE,
                                        .local_rank = event->local,
                                        .spawn = event->spawn,
                                        .rank_message = message});
    dpt_message_free_rank_to_agent(&message);
}

static void connect_or_retry(struct sim *sim, int machine)
{
    struct machine *m = &sim->machines[machine];
    if (m->conn != 0)
        return;
    if (sim->core == NULL || m->partitioned || m->unheard || m->hears_nothing) {
        net_connect(sim, machine, rng_range(&sim->rng, 50, 300));
        return;
    }
    m->conn = ++sim->host->next_conn;
    agent_step(sim, machine, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_SERVER_UP});
}

void machine_event(struct sim *sim, const struct event *event)
{
    struct machine *m = &sim->machines[event->machine];
    if (event->kind == EV_MACHINE_START) {
        machine_start(sim, event->machine);
        return;
    }
    if (event->kind == EV_HEAL_NETWORK) {
        m->partitioned = m->unheard = m->hears_nothing = false;
        if (event->machine == sim->split_at)
            sim->split_at = 0;
        return;
    }
    if (m->agent == NULL || event->life != m->life)
        return;
    if (event->kind == EV_MACHINE_CONT) {
        machine_undefer(sim, event->machine);
        return;
    }
    if (m->stopped) {
        if (event->kind == EV_AGENT_TICK)
            return;
        const struct event kept = event_copy(event);
        defer(&m->deferred, &m->n_deferred, &m->deferred_max, &kept);
        return;
    }
    struct dpt_agent_event to_agent = {.local_rank = event->local, .spawn = event->spawn};
    switch (event->kind) {
    case EV_AGENT_MESSAGE:
        on_server_message(sim, event);
        return;
    case EV_AGENT_RANK_MESSAGE:
        on_rank_message(sim, event);
        return;
    case EV_AGENT_UP:
        connect_or_retry(sim, event->machine);
        return;
    case EV_AGENT_DOWN:
        m->conn = 0;
        to_agent.kind = DPT_AGENT_EVENT_SERVER_DOWN;
        net_connect(sim, event->machine, rng_range(&sim->rng, 10, 200));
        break;
    case EV_AGENT_TICK:
        if (event->at_ms != m->tick_ms)
            return;
        to_agent.kind = DPT_AGENT_EVENT_TICK;
        break;
    case EV_AGENT_RANK_EOF:
        to_agent.kind = DPT_AGENT_EVENT_RANK_EOF;
        break;
    case EV_AGENT_RANK_EXITED:
        to_agent.kind = DPT_AGENT_EVENT_RANK_EXITED;
        to_agent.exit_code = (int)event->number;
        break;
    case EV_AGENT_SIGNAL:
        to_agent.kind = DPT_AGENT_EVENT_SIGNAL;
        sim_say(sim, "%s is told to leave", m->id);
        break;
    default:
        DPT_ASSERT(false);
    }
    agent_step(sim, event->machine, to_agent);
}
