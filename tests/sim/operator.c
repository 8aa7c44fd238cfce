/* An operator with dpt-ctl: pauses and resumes the run, stops it and starts it again, drains and
 * evicts nodes, wants checkpoints, at random moments (dpt_sim --ctl). It repeats each command until
 * the server says that it is done, as dpt-ctl does. It has a source of random numbers of its own,
 * so that a seed is the same world without it. */
#include "tests/sim/operator.h"

#include "tests/sim/faults.h"

#include <stdlib.h>

enum {
    FIRST_CONN = 1 << 30, /* command i is sent over the connection FIRST_CONN + i */
    AGAIN_MS = 200,       /* between two messages of one command */
    PAUSE_MS_MAX = 8000,  /* length of a pause */
    SAVE_MS = 1500        /* in a pause: from PAUSE to SAVE */
};

void operator_plan(struct sim *sim)
{
    const struct profile *profile = &sim->profile;
    static const Dpt__ControlVerb verbs[] = {
        DPT__CONTROL_VERB__CONTROL_PAUSE, DPT__CONTROL_VERB__CONTROL_PAUSE,
        DPT__CONTROL_VERB__CONTROL_DRAIN, DPT__CONTROL_VERB__CONTROL_EVICT,
        DPT__CONTROL_VERB__CONTROL_SAVE,  DPT__CONTROL_VERB__CONTROL_STOP};
    struct operator* operator= & sim->operator;
    DPT_ASSERT(profile->n_commands <= COMMANDS_MAX);
    operator->rng.state = ~sim->seed ^ 0x63746cu;
    for (int i = 0; i < profile->n_commands; i++) {
        operator->commands[i] =(struct sim_command){
            .verb =
                verbs[rng_range(&operator->rng, 0, (int64_t)(sizeof verbs / sizeof verbs[0]) - 1)],
            .machine = (int)rng_range(&operator->rng, 0, profile->machines - 1),
            .length_ms = rng_range(&operator->rng, 1, PAUSE_MS_MAX),
            .step = -1};
        const int64_t at_ms =
            rng_range(&operator->rng, profile->faults_from_ms, profile->faults_until_ms);
        sim_push(sim,
                 (struct event){.at_ms = at_ms, .kind = EV_OPERATOR, .machine = -1, .number = i});
    }
}

static void say_again(struct sim *sim, int64_t after_ms, int number)
{
    sim_push(sim, (struct event){.at_ms = sim->now_ms + after_ms,
                                 .kind = EV_OPERATOR,
                                 .machine = -1,
                                 .number = number});
}

/* Adds a command that follows another one. */
static void follow(struct sim *sim, Dpt__ControlVerb verb, int machine, int64_t after_ms)
{
    struct operator* operator= & sim->operator;
    DPT_ASSERT(operator->n_followed<COMMANDS_MAX);
    const int number = COMMANDS_MAX + operator->n_followed++;
    operator->commands[number] =(struct sim_command){.verb = verb, .machine = machine, .step = -1};
    say_again(sim, after_ms, number);
}

static bool names_node(Dpt__ControlVerb verb)
{
    return verb == DPT__CONTROL_VERB__CONTROL_DRAIN || verb == DPT__CONTROL_VERB__CONTROL_EVICT ||
           verb == DPT__CONTROL_VERB__CONTROL_ALLOW;
}

/* A node that is drained or evicted counts as hit by a fault. */
static void note_target(struct sim *sim, const struct sim_command *command)
{
    struct machine *m = &sim->machines[command->machine];
    if (command->verb != DPT__CONTROL_VERB__CONTROL_DRAIN &&
        command->verb != DPT__CONTROL_VERB__CONTROL_EVICT)
        return;
    m->hurt = m->was_hit = m->was_stopped = true;
    m->evicted = m->evicted || command->verb == DPT__CONTROL_VERB__CONTROL_EVICT;
}

/* The message waits while the server is stopped; without a server it is lost. */
static void send_command(struct sim *sim, int number, const Dpt__Control *control)
{
    const struct sim_command *command = &sim->operator.commands[number];
    char node[] = "dpt-ctl";
    Dpt__Stamp stamp = DPT__STAMP__INIT;
    Dpt__AgentState state = DPT__AGENT_STATE__INIT;
    stamp.run = (char *)sim->run;
    stamp.node = node;
    stamp.incarnation = 1 + (uint64_t)number;
    state.version = DPT_PROTO_VERSION;
    state.stamp = &stamp;
    state.counter = command->answers + 1;
    state.control = (Dpt__Control *)control;
    struct event event = {.at_ms = sim->now_ms + 1,
                          .kind = EV_SERVER_MESSAGE,
                          .machine = -1,
                          .conn = (uint64_t)(FIRST_CONN + number)};
    sim_pack(sim, &state.base, &event);
    sim_push(sim, event);
}

void operator_event(struct sim *sim, int number)
{
    struct sim_command *command = &sim->operator.commands[number];
    Dpt__Control control = DPT__CONTROL__INIT;
    if (command->done)
        return;
    say_again(sim, AGAIN_MS, number);
    note_target(sim, command);
    control.verb = command->verb;
    control.run = (char *)sim->run;
    if (names_node(command->verb))
        control.node = sim->machines[command->machine].id;
    control.step = command->step;
    control.number = command->number;
    send_command(sim, number, &control);
}

static void end_command(struct sim *sim, struct sim_command *command)
{
    command->done = true;
    if (command->verb == DPT__CONTROL_VERB__CONTROL_PAUSE) {
        sim->operator.pauses++;
        follow(sim, DPT__CONTROL_VERB__CONTROL_RESUME, 0, command->length_ms);
        if (command->length_ms > 2 * SAVE_MS)
            follow(sim, DPT__CONTROL_VERB__CONTROL_SAVE, 0, SAVE_MS);
    }
    if (command->verb == DPT__CONTROL_VERB__CONTROL_EVICT) {
        sim->operator.evictions++;
        follow(sim, DPT__CONTROL_VERB__CONTROL_ALLOW, command->machine, command->length_ms);
    }
    sim->operator.drains += command->verb == DPT__CONTROL_VERB__CONTROL_DRAIN;
}

/* A stop could not save the newest steps, so the server holds the run. The operator stops the run
 * again, and it may end without these steps, or resumes it. */
static void follow_refused_stop(struct sim *sim, int number)
{
    const struct sim_command *command = &sim->operator.commands[number];
    const bool is_first = number < COMMANDS_MAX;
    struct dpt_rdzv_run_view view;
    if (!server_view(sim, &view) || !view.held)
        return;
    follow(sim,
           is_first && command->length_ms % 2 == 0 ? DPT__CONTROL_VERB__CONTROL_STOP
                                                   : DPT__CONTROL_VERB__CONTROL_RESUME,
           0, command->length_ms);
}

/* If a run of the name has been stopped, the machines may have begun the next one. */
static void check_stop_done(struct sim *sim)
{
    struct dpt_rdzv_run_view view;
    if (server_view(sim, &view) && view.phase != DPT_RDZV_DONE && sim->operator.own_stops == 0)
        sim_fail(sim, "a stop is done, but the run is %s", dpt_rdzv_phase_name(view.phase));
}

/* A server that was restarted without a journal knows no stop. */
static void check_stop_refused(struct sim *sim, const struct sim_command *command)
{
    struct dpt_rdzv_run_view view;
    const bool knows = sim->has_journal || !sim->host->server_hurt;
    const bool has_stopped = sim->operator.own_stops != command->stops_answered;
    if (knows && has_stopped && server_view(sim, &view) && !sim->done_seen && !view.held &&
        view.phase != DPT_RDZV_DONE)
        sim_fail(sim, "a stop was carried out, but its operator is told that it was not");
}

/* A checkpoint that cannot come, or a run that is over: dpt-ctl would wait no longer. A stop is
 * waited for, since a refused stop holds the run. */
static bool gives_up(const struct sim *sim, const struct sim_command *command)
{
    return command->verb == DPT__CONTROL_VERB__CONTROL_SAVE ||
           (sim->now_ms > sim->profile.faults_until_ms &&
            command->verb != DPT__CONTROL_VERB__CONTROL_RESUME &&
            command->verb != DPT__CONTROL_VERB__CONTROL_STOP &&
            command->verb != DPT__CONTROL_VERB__CONTROL_ALLOW);
}

void operator_answered(struct sim *sim, uint64_t conn, const Dpt__ControlReply *reply)
{
    const uint64_t number = conn - FIRST_CONN;
    DPT_ASSERT(number < 2 * COMMANDS_MAX);
    struct sim_command *command = &sim->operator.commands[number];
    if (command->done)
        return;
    command->answers++;
    if (command->step < 0) {
        command->stops_answered = sim->operator.own_stops;
        sim_say(sim, "operator: %s",
                reply->text[0] != '\0' ? reply->text : "the command is answered");
    }
    command->step = reply->step;
    command->number = reply->number;
    if (reply->outcome == DPT__CONTROL_OUTCOME__CONTROL_GOES_ON && !gives_up(sim, command))
        return;
    if (reply->outcome == DPT__CONTROL_OUTCOME__CONTROL_DONE ||
        command->verb == DPT__CONTROL_VERB__CONTROL_PAUSE)
        end_command(sim, command);
    else
        command->done = true;
    if (command->verb != DPT__CONTROL_VERB__CONTROL_STOP)
        return;
    if (reply->outcome == DPT__CONTROL_OUTCOME__CONTROL_DONE) {
        check_stop_done(sim);
    } else {
        check_stop_refused(sim, command);
        follow_refused_stop(sim, (int)number);
    }
}

/* Only kills, exits, leaves and slowness: no node trains where the server cannot see it. */
static bool sees_all(const struct sim *sim)
{
    if (sim->host->server_hurt || sim->profile.n_net_faults > 0)
        return false;
    for (int i = 0; i < sim->profile.n_faults; i++) {
        const int kind = sim->faults[i].kind;
        if (kind != FAULT_KILL_AGENT && kind != FAULT_KILL_RANK && kind != FAULT_EXIT_RANK &&
            kind != FAULT_LEAVE && kind != FAULT_SLOW && kind != FAULT_STRANGER)
            return false;
    }
    return true;
}

void operator_check(struct sim *sim)
{
    struct operator* operator= & sim->operator;
    struct dpt_rdzv_run_view view;
    if (sim->profile.n_commands == 0)
        return;
    const bool held = server_view(sim, &view) && view.held && view.phase == DPT_RDZV_WAITING;
    if (held && operator->held && sees_all(sim) && sim->furthest > operator->held_at)
        sim_fail(sim, "step %lld was made in a pause that began after step %lld",
                 (long long)sim->furthest, (long long)operator->held_at);
    if (held && !operator->held)
        operator->held_at = sim->furthest;
    operator->held = held;
}
