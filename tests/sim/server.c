/* The server process and the network between it and the agents. */
#include "tests/sim/faults.h"
#include "tests/sim/operator.h"

#include <stdlib.h>
#include <string.h>

/* The node of a connection, and its run; NULL: of no node any more. */
static struct machine *by_conn(struct sim *host, uint64_t conn, struct sim **ret_sim)
{
    for (struct sim *sim = host; sim != NULL && conn != 0; sim = sim->beside)
        for (int i = 0; i < sim->profile.machines; i++)
            if (sim->machines[i].conn == conn) {
                *ret_sim = sim;
                return &sim->machines[i];
            }
    return NULL;
}

static struct sim *by_run(struct sim *host, const char *run)
{
    return host->beside != NULL && strcmp(run, host->beside->run) == 0 ? host->beside : host;
}

bool server_view(const struct sim *sim, struct dpt_rdzv_run_view *ret)
{
    for (size_t i = 0; sim->core != NULL && i < dpt_rdzv_runs(sim->core); i++) {
        dpt_rdzv_run_view(sim->core, i, ret);
        if (strcmp(ret->run, sim->run) == 0)
            return true;
    }
    *ret = (struct dpt_rdzv_run_view){0};
    return false;
}

/* What both runs know of their server. */
static void share(struct sim *host)
{
    if (host->beside == NULL)
        return;
    host->beside->core = host->core;
    host->beside->server_life = host->server_life;
    host->beside->down_ms = host->down_ms;
    host->beside->outages = host->outages;
}

/* ---- network ---- */

/* Loss, repetition, delay; a few are held back for seconds and arrive long after they meant
 * anything. */
static void transmit(struct sim *sim, const struct event *event, bool cut)
{
    const struct profile *profile = &sim->profile;
    int copies = rng_chance(&sim->rng, profile->loss) || cut ? 0 : 1;
    copies += rng_chance(&sim->rng, profile->duplicate) && !cut;
    if (copies == 0)
        free(event->data);
    for (; copies > 0; copies--) { /* the last one has the data itself */
        struct event copy = copies > 1 ? event_copy(event) : *event;
        copy.at_ms = sim_delay(sim, profile->delay_min_ms, profile->delay_max_ms);
        if (rng_chance(&sim->rng, profile->reorder))
            copy.at_ms += rng_range(&sim->rng, 1, 4000);
        sim_push(sim, copy);
    }
}

void net_to_server(struct sim *sim, int machine, const Dpt__AgentState *message)
{
    struct machine *m = &sim->machines[machine];
    if (m->conn == 0)
        return;
    struct event event = {.kind = EV_SERVER_MESSAGE, .machine = -1, .conn = m->conn};
    sim_pack(sim, &message->base, &event);
    transmit(sim, &event, m->partitioned || m->unheard);
}

static void net_to_agent(struct sim *host, uint64_t conn, const Dpt__ServerState *message)
{
    struct sim *sim;
    struct machine *m = by_conn(host, conn, &sim);
    if (m == NULL)
        return;
    struct event event = {.kind = EV_AGENT_MESSAGE, .machine = (int)(m - sim->machines)};
    event.life = m->life;
    sim_pack(sim, &message->base, &event);
    transmit(sim, &event, m->partitioned || m->hears_nothing);
}

void net_connect(struct sim *sim, int machine, int64_t after_ms)
{
    sim_push(sim, (struct event){.at_ms = sim->now_ms + after_ms,
                                 .kind = EV_AGENT_UP,
                                 .machine = machine,
                                 .life = sim->machines[machine].life});
}

void net_break(struct sim *sim, int machine)
{
    struct machine *m = &sim->machines[machine];
    if (m->conn == 0)
        return;
    if (!m->partitioned && !m->unheard)
        sim_push(sim, (struct event){.at_ms = sim_delay(sim, 1, 5),
                                     .kind = EV_SERVER_BROKEN,
                                     .machine = -1,
                                     .conn = m->conn});
    m->conn = 0;
}

/* ---- server ---- */

void server_start(struct sim *sim)
{
    sim = sim->host;
    sim->server_life++;
    sim->epoch = rng_next(&sim->rng) | 1;
    sim->nonces.state = rng_next(&sim->rng);
    net_server_clock_begin(sim);
    /* Every second server has the limit, so a restart lowers or raises it. */
    const bool limits = (sim->server_life / 2 + sim->seed) % 2 == 0;
    struct dpt_rdzv_options options = {.epoch = sim->epoch,
                                       .now_ms = sim->now_ms + sim->server_clock_ms,
                                       .world_max = limits ? sim->profile.server_max_world : 0};
    struct dpt_err err;
    if (dpt_rdzv_create(&options, &sim->core, &err) != DPT_OK)
        sim_fail(sim, "%s", err.text);
    sim->watch = watch_create(false); /* a message is decoded where it arrives */
    if (sim->has_journal && sim->disk != NULL)
        disk_restore(sim);
    else
        disk_wipe(sim);
    sim->server_tick_ms = sim->now_ms + 1;
    sim->server_stopped = false;
    sim->overload_until_ms = 0;
    share(sim);
    sim_push(sim, (struct event){.at_ms = sim->server_tick_ms,
                                 .kind = EV_SERVER_TICK,
                                 .machine = -1,
                                 .life = sim->server_life});
}

static void lose_connections(struct sim *sim)
{
    for (int i = 0; i < sim->profile.machines; i++) {
        struct machine *m = &sim->machines[i];
        if (m->conn == 0)
            continue;
        m->conn = 0;
        sim_push(sim, (struct event){.at_ms = sim_delay(sim, 1, 50),
                                     .kind = EV_AGENT_DOWN,
                                     .machine = i,
                                     .life = m->life});
    }
}

void server_crash(struct sim *sim)
{
    sim = sim->host;
    dpt_rdzv_destroy(&sim->core);
    watch_destroy(&sim->watch);
    sim->server_life++;
    sim->down_ms = sim->now_ms;
    share(sim);
    for (size_t i = 0; i < sim->n_server_deferred; i++)
        free(sim->server_deferred[i].data);
    sim->n_server_deferred = 0;
    for (; sim != NULL; sim = sim->beside)
        lose_connections(sim);
}

void server_stop(struct sim *sim)
{
    sim->host->server_stopped = true;
}

void server_outage(struct sim *sim, int64_t length_ms)
{
    sim = sim->host;
    sim->outages++;
    sim->outage_until_ms = sim->now_ms + length_ms;
    if (sim->core != NULL)
        server_crash(sim);
    sim->server_stopped = false;
    share(sim);
    sim_push(sim,
             (struct event){.at_ms = sim->outage_until_ms, .kind = EV_SERVER_START, .machine = -1});
}

static void say_sent(struct sim *sim, const struct machine *to, const Dpt__ServerState *message)
{
    if (sim->trace == NULL)
        return;
    /* Timelines show changes: the first message of each phase and generation. */
    char word[64];
    const char *phase =
        protobuf_c_enum_descriptor_get_value(&dpt__server_phase__descriptor, (int)message->phase)
            ->name;
    (void)snprintf(word, sizeof word, "%s%s generation %llu", phase + strlen("SERVER_"),
                   message->soft ? " (soft)" : "", (unsigned long long)message->stamp->generation);
    char *told = sim->told[to - sim->machines];
    if (strcmp(told, word) == 0)
        return;
    (void)snprintf(told, sizeof sim->told[0], "%s", word);
    sim_say(sim, "server -> %s  %s", to->id, word);
}

static void trace_sent_state(struct sim *sim, const struct dpt_rdzv_send *send)
{
    const Dpt__ServerState *message = send->message;
    if (message->reply != NULL) {
        operator_answered(sim, send->conn, message->reply);
        return;
    }
    if (message->plan != NULL)
        check_plan_sent(sim, message);
    if (message->phase == DPT__SERVER_PHASE__SERVER_DONE)
        check_done(sim, message);
    if (message->phase == DPT__SERVER_PHASE__SERVER_EXPELLED)
        sim->expulsions++;
    struct sim *of;
    struct machine *to = by_conn(sim->host, send->conn, &of);
    if (to != NULL && of != sim)
        sim_fail(sim, "%s of the other run is told of this one", to->id);
    if (to != NULL)
        say_sent(sim, to, message);
    net_to_agent(sim->host, send->conn, message);
}

static void note_records(struct sim *sim, const struct dpt_rdzv_output *output)
{
    for (size_t i = 0; i < output->n_records; i++) {
        const struct dpt_rdzv_record *record = &output->records[i];
        struct sim *of = by_run(sim, record->run);
        of->run_life += record->kind == DPT_RDZV_RECORD_RUN;
        if (record->kind == DPT_RDZV_RECORD_END && !of->failed)
            check_failed(of, record->text);
    }
}

static void carry_out(struct sim *sim, const struct dpt_rdzv_output *output)
{
    for (size_t i = 0; i < output->n_logs; i++) {
        sim_say(by_run(sim, output->logs[i].run), "server: %s", output->logs[i].text);
        check_log(by_run(sim, output->logs[i].run), output->logs[i].text);
    }
    for (size_t i = 0; i < output->n_sends; i++)
        trace_sent_state(by_run(sim, output->sends[i].message->stamp->run), &output->sends[i]);
    const int64_t due_ms = output->deadline_ms - sim->server_clock_ms;
    sim->server_due_ms = due_ms;
    if (sim->server_tick_ms > sim->now_ms && due_ms >= sim->server_tick_ms)
        return;
    sim->server_tick_ms = due_ms;
    sim_push(sim,
             (struct event){
                 .at_ms = due_ms, .kind = EV_SERVER_TICK, .machine = -1, .life = sim->server_life});
}

/* Without effect after a crash in an earlier step of the same event. */
static void step_server(struct sim *sim, struct dpt_rdzv_event event)
{
    if (sim->core == NULL)
        return;
    event.now_ms = sim->now_ms + sim->server_clock_ms;
    const uint64_t random[2] = {rng_next(&sim->nonces), rng_next(&sim->nonces)};
    memcpy(event.random, random, sizeof event.random);
    struct dpt_rdzv_output output;
    struct dpt_err err;
    if (dpt_rdzv_step(sim->core, &event, &output, &err) != DPT_OK) {
        sim_fail(sim, "server: %s", err.text);
        return;
    }
    const char *broken = watch_step(sim->watch, sim->core, &event, &output);
    if (broken != NULL)
        sim_fail(sim, "server: %s", broken);
    const enum disk_crash crash = disk_take(sim, &output);
    if (crash != DISK_CRASH_LOST)
        note_records(sim, &output);
    if (crash != DISK_NO_CRASH) {
        disk_crash(sim);
        return;
    }
    carry_out(sim, &output);
    for (struct sim *each = sim; each != NULL; each = each->beside)
        check_after_server(each);
}

void server_undefer(struct sim *sim)
{
    sim->server_stopped = false;
    sim->overload_until_ms = 0;
    for (size_t i = 0; i < sim->n_server_deferred; i++) {
        sim->server_deferred[i].at_ms = sim->now_ms;
        sim_push(sim, sim->server_deferred[i]);
    }
    sim->n_server_deferred = 0;
    sim->server_tick_ms = sim->now_ms;
    sim_push(sim, (struct event){.at_ms = sim->now_ms,
                                 .kind = EV_SERVER_TICK,
                                 .machine = -1,
                                 .life = sim->server_life});
}

static void take_message(struct sim *sim, const struct event *event)
{
    Dpt__AgentState *message = NULL;
    struct dpt_err err;
    if (dpt_message_decode_agent_state(event->data, event->bytes, &message, &err) != DPT_OK)
        sim_fail(sim, "agent to server: %s", err.text);
    else
        step_server(sim, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_MESSAGE,
                                                 .conn = event->conn,
                                                 .message = message});
    dpt_message_free_agent_state(&message);
}

int server_rank_of(const struct sim *sim, const struct proc *proc)
{
    return dpt_rdzv_rank_of(sim->core,
                            &(struct dpt_rdzv_process){.run = sim->run,
                                                       .node = sim->machines[proc->machine].id,
                                                       .incarnation = proc->incarnation,
                                                       .local_rank = proc->local,
                                                       .spawn = proc->spawn});
}

static bool has_place(const struct sim *sim, const struct machine *m)
{
    for (int i = 0; i < LOCALS_MAX; i++)
        if (m->procs[i] != NULL && m->procs[i]->alive && server_rank_of(sim, m->procs[i]) >= 0)
            return true;
    return false;
}

/* The run as the server has it, in one line. */
static void view_line(const struct sim *sim, char ret[512])
{
    struct dpt_rdzv_run_view view;
    (void)server_view(sim, &view);
    (void)snprintf(ret, 512, "%s, generation %llu, %u nodes, world %u, %u restarts left, plan %s",
                   dpt_rdzv_phase_name(view.phase), (unsigned long long)view.generation, view.nodes,
                   view.world_size, view.restarts_left, view.plan_digest);
}

void server_meet_stranger(struct sim *sim, int machine)
{
    const struct machine *m = &sim->machines[machine];
    char before[512], after[512];
    struct sim *host = sim->host;
    if (sim->core == NULL || host->server_stopped || host->overload_until_ms != 0)
        return;
    step_server(host, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_TICK}); /* due work is done */
    if (sim->core == NULL || !has_place(sim, m))
        return;
    uint8_t secret[DPT_PROTO_SECRET_BYTES] = {2};
    Dpt__Stamp stamp = DPT__STAMP__INIT;
    Dpt__RunSpec spec = machine_spec(sim);
    Dpt__AgentState state = DPT__AGENT_STATE__INIT;
    stamp.run = (char *)sim->run;
    stamp.node = (char *)m->id;
    stamp.incarnation = (uint64_t)rng_range(&sim->rng, 1, 2 * (int64_t)m->incarnation + 1000);
    if (rng_chance(&sim->rng, 300))
        spec.config_digest = "another";
    state.version = DPT_PROTO_VERSION;
    state.stamp = &stamp;
    state.counter = 1;
    state.spec = &spec;
    state.fingerprint = "cpu";
    state.host = "elsewhere";
    state.checkpoint_dir_id = "checkpoints";
    state.data_digest = "data";
    state.secret = (ProtobufCBinaryData){sizeof secret, secret};
    struct event event = {.kind = EV_SERVER_MESSAGE, .conn = ++host->next_conn};
    sim_pack(sim, &state.base, &event);
    view_line(sim, before);
    take_message(host, &event);
    view_line(sim, after);
    free(event.data);
    if (sim->core == NULL)
        return;
    sim->strangers++;
    if (strcmp(before, after) != 0 || !has_place(sim, m))
        sim_fail(sim, "a stranger that calls itself %s made of %s: %s", m->id, before, after);
}

/* ---- a server that is stopped, or reads too slowly ---- */

void server_overload(struct sim *sim, int64_t length_ms)
{
    sim = sim->host;
    if (sim->core == NULL || sim->server_stopped || sim->overload_until_ms != 0)
        return;
    sim->overload_until_ms = sim->now_ms + length_ms;
    sim_push(sim, (struct event){.at_ms = sim->now_ms + 1,
                                 .kind = EV_SERVER_ROUND,
                                 .machine = -1,
                                 .life = sim->server_life});
}

/* One message of the node that connected first is read; later nodes wait until all is over. */
static void read_one(struct sim *sim)
{
    size_t at = 0;
    for (size_t i = 1; i < sim->n_server_deferred; i++)
        if (sim->server_deferred[i].conn < sim->server_deferred[at].conn)
            at = i;
    struct event event = sim->server_deferred[at];
    sim->n_server_deferred--;
    memmove(&sim->server_deferred[at], &sim->server_deferred[at + 1],
            (sim->n_server_deferred - at) * sizeof event);
    if (event.kind == EV_SERVER_MESSAGE)
        take_message(sim, &event);
    else if (event.kind == EV_SERVER_BROKEN)
        step_server(sim,
                    (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_BROKEN, .conn = event.conn});
    free(event.data);
}

static void read_round(struct sim *sim)
{
    if (sim->n_server_deferred > 0)
        read_one(sim);
    step_server(sim, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_TICK,
                                             .backlog = sim->n_server_deferred > 0});
    if (sim->core == NULL)
        return;
    if (sim->now_ms >= sim->overload_until_ms) {
        server_undefer(sim);
        return;
    }
    sim_push(sim, (struct event){.at_ms = sim_delay(sim, 20, 60),
                                 .kind = EV_SERVER_ROUND,
                                 .machine = -1,
                                 .life = sim->server_life});
}

static void put_off(struct sim *sim, const struct event *event)
{
    if (event->kind == EV_SERVER_TICK)
        return;
    const struct event kept = event_copy(event);
    defer(&sim->server_deferred, &sim->n_server_deferred, &sim->server_deferred_max, &kept);
}

void server_event(struct sim *sim, const struct event *event)
{
    sim = sim->host;
    if (event->kind == EV_SERVER_START) {
        if (sim->core == NULL && sim->now_ms >= sim->outage_until_ms) {
            server_start(sim);
            sim_say(sim, "server starts again");
        }
        return;
    }
    if (sim->core == NULL || (event->life != 0 && event->life != sim->server_life))
        return;
    if (event->kind == EV_SERVER_CONT) {
        server_undefer(sim);
        return;
    }
    if (event->kind == EV_SERVER_ROUND) {
        if (sim->overload_until_ms != 0 && !sim->server_stopped)
            read_round(sim);
        return;
    }
    if (sim->server_stopped || sim->overload_until_ms != 0) {
        put_off(sim, event);
        return;
    }
    switch (event->kind) {
    case EV_SERVER_MESSAGE:
        take_message(sim, event);
        break;
    case EV_SERVER_BROKEN:
        step_server(sim,
                    (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_BROKEN, .conn = event->conn});
        break;
    default:
        if (event->at_ms == sim->server_tick_ms)
            step_server(sim, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_TICK});
    }
}
