/* The server process and the network between it and the agents. */
#include "tests/sim/sim.h"

#include <stdlib.h>
#include <string.h>

static uint8_t *encode(struct sim *sim, const ProtobufCMessage *message, size_t *ret_bytes)
{
    size_t bytes = dpt_message_bytes(message);
    uint8_t *data = malloc(bytes + 1);
    DPT_ASSERT(data != NULL);
    struct dpt_err err;
    if (dpt_message_encode(message, data, bytes, ret_bytes, &err) != DPT_OK)
        sim_fail(sim, "encode: %s", err.text);
    return data;
}

static struct machine *by_conn(struct sim *sim, uint64_t conn)
{
    for (int i = 0; i < sim->profile.machines; i++)
        if (sim->machines[i].conn == conn)
            return &sim->machines[i];
    return NULL;
}

/* ---- network ---- */

/* Loss, repetition, delay; a few are held back for seconds and arrive long after they meant
 * anything. */
static void transmit(struct sim *sim, const struct event *event, bool cut)
{
    const struct profile *profile = &sim->profile;
    int copies = rng_chance(&sim->rng, profile->loss) || cut ? 0 : 1;
    copies += rng_chance(&sim->rng, profile->duplicate) && !cut;
    for (int i = 0; i < copies; i++) {
        struct event copy = *event;
        copy.data = malloc(event->bytes + 1);
        DPT_ASSERT(copy.data != NULL);
        memcpy(copy.data, event->data, event->bytes);
        copy.at_ms = sim_delay(sim, profile->delay_min_ms, profile->delay_max_ms);
        if (rng_chance(&sim->rng, profile->reorder))
            copy.at_ms += rng_range(&sim->rng, 1, 4000);
        sim_push(sim, copy);
    }
    free(event->data);
}

void net_to_server(struct sim *sim, int machine, const Dpt__AgentState *message)
{
    struct machine *m = &sim->machines[machine];
    if (m->conn == 0)
        return;
    struct event event = {.kind = EV_SERVER_MESSAGE, .machine = -1, .conn = m->conn};
    event.data = encode(sim, &message->base, &event.bytes);
    transmit(sim, &event, m->partitioned);
}

static void net_to_agent(struct sim *sim, uint64_t conn, const Dpt__ServerState *message)
{
    struct machine *m = by_conn(sim, conn);
    if (m == NULL || conn == 0)
        return;
    struct event event = {.kind = EV_AGENT_MESSAGE, .machine = (int)(m - sim->machines)};
    event.life = m->life;
    event.data = encode(sim, &message->base, &event.bytes);
    transmit(sim, &event, m->partitioned);
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
    if (!m->partitioned)
        sim_push(sim, (struct event){.at_ms = sim_delay(sim, 1, 5),
                                     .kind = EV_SERVER_BROKEN,
                                     .machine = -1,
                                     .conn = m->conn});
    m->conn = 0;
}

/* ---- server ---- */

void server_start(struct sim *sim)
{
    sim->server_life++;
    sim->epoch = rng_next(&sim->rng) | 1;
    struct dpt_rdzv_options options = {
        .epoch = sim->epoch, .seed = rng_next(&sim->rng), .now_ms = sim->now_ms};
    struct dpt_err err;
    if (dpt_rdzv_create(&options, &sim->core, &err) != DPT_OK)
        sim_fail(sim, "%s", err.text);
    sim->watch = watch_create(false); /* what is sent is decoded where it arrives */
    sim->server_tick_ms = sim->now_ms + 1;
    sim->server_stopped = false;
    sim_push(sim, (struct event){.at_ms = sim->server_tick_ms,
                                 .kind = EV_SERVER_TICK,
                                 .machine = -1,
                                 .life = sim->server_life});
}

void server_crash(struct sim *sim)
{
    dpt_rdzv_destroy(&sim->core);
    watch_destroy(&sim->watch);
    sim->server_life++;
    for (size_t i = 0; i < sim->n_server_deferred; i++)
        free(sim->server_deferred[i].data);
    sim->n_server_deferred = 0;
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

static void say_sent(struct sim *sim, const struct machine *to, const Dpt__ServerState *message)
{
    if (sim->trace == NULL)
        return;
    /* Timelines show what is new: the first word of each phase and generation. */
    char word[64];
    (void)snprintf(word, sizeof word, "%s%s generation %llu",
                   dpt_message_server_phase_name(message->phase), message->soft ? " (soft)" : "",
                   (unsigned long long)message->stamp->generation);
    char *told = sim->told[to - sim->machines];
    if (strcmp(told, word) == 0)
        return;
    (void)snprintf(told, sizeof sim->told[0], "%s", word);
    sim_say(sim, "server -> %s  %s", to->id, word);
}

static void carry_out(struct sim *sim, const struct dpt_rdzv_output *output)
{
    for (size_t i = 0; i < output->n_logs; i++)
        sim_say(sim, "server: %s", output->logs[i].text);
    for (size_t i = 0; i < output->n_records; i++)
        sim->run_life += output->records[i].kind == DPT_RDZV_RECORD_RUN;
    for (size_t i = 0; i < output->n_sends; i++) {
        const Dpt__ServerState *message = output->sends[i].message;
        if (message->plan != NULL)
            check_plan_sent(sim, message);
        if (message->phase == DPT__SERVER_PHASE__SERVER_DONE) {
            if (sim->checkpoint != sim->profile.steps)
                sim_fail(sim, "the run is DONE, but its newest checkpoint is of step %lld",
                         (long long)sim->checkpoint);
            sim->done_seen = true;
        }
        if (message->phase == DPT__SERVER_PHASE__SERVER_EXPELLED)
            sim->expulsions++;
        struct machine *to = by_conn(sim, output->sends[i].conn);
        if (to != NULL)
            say_sent(sim, to, message);
        net_to_agent(sim, output->sends[i].conn, message);
    }
    if (sim->server_tick_ms > sim->now_ms && output->deadline_ms >= sim->server_tick_ms)
        return;
    sim->server_tick_ms = output->deadline_ms;
    sim_push(sim, (struct event){.at_ms = output->deadline_ms,
                                 .kind = EV_SERVER_TICK,
                                 .machine = -1,
                                 .life = sim->server_life});
}

static void step(struct sim *sim, struct dpt_rdzv_event event)
{
    event.now_ms = sim->now_ms;
    struct dpt_rdzv_output output;
    struct dpt_err err;
    if (dpt_rdzv_step(sim->core, &event, &output, &err) != DPT_OK) {
        sim_fail(sim, "server: %s", err.text);
        return;
    }
    const char *broken = watch_step(sim->watch, sim->core, &event, &output);
    if (broken != NULL)
        sim_fail(sim, "server: %s", broken);
    carry_out(sim, &output);
    check_after_server(sim);
}

void server_undefer(struct sim *sim)
{
    sim->server_stopped = false;
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
        step(sim, (struct dpt_rdzv_event){
                      .kind = DPT_RDZV_EVENT_MESSAGE, .conn = event->conn, .message = message});
    dpt_message_free_agent_state(&message);
}

void server_event(struct sim *sim, const struct event *event)
{
    if (event->kind == EV_SERVER_START) {
        if (sim->core == NULL) {
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
    if (sim->server_stopped) {
        if (event->kind == EV_SERVER_TICK)
            return;
        struct event kept = *event;
        if (event->data != NULL) {
            kept.data = malloc(event->bytes + 1);
            DPT_ASSERT(kept.data != NULL);
            memcpy(kept.data, event->data, event->bytes);
        }
        defer(&sim->server_deferred, &sim->n_server_deferred, &sim->server_deferred_max, &kept);
        return;
    }
    switch (event->kind) {
    case EV_SERVER_MESSAGE:
        take_message(sim, event);
        break;
    case EV_SERVER_BROKEN:
        step(sim, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_BROKEN, .conn = event->conn});
        break;
    default:
        if (event->at_ms == sim->server_tick_ms)
            step(sim, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_TICK});
    }
}
