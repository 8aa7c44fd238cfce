/* The scripted server: decodes the agent's messages, lets the script answer, queues its
 * messages. */
#include "tests/worker/agent/script_server.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/eventfd.h>

#include <cmocka.h>

enum { EPOCH = 99 };

void script_push(struct world *world, const void *bytes, size_t n)
{
    DPT_ASSERT(world->queued < QUEUE_MAX && n <= sizeof world->queue[0].bytes);
    memcpy(world->queue[world->queued].bytes, bytes, n);
    world->queue[world->queued++].n = n;
    (void)eventfd_write(world->event_fd, 1);
}

Dpt__RankState *script_rank(const Dpt__AgentState *said)
{
    return said->n_ranks > 0 ? said->ranks[0] : NULL;
}

static void note_what_was_said(struct world *world, const Dpt__AgentState *said)
{
    const Dpt__RankState *rank = script_rank(said);
    world->incarnation = said->stamp->incarnation;
    world->leaving = world->leaving || said->leaving;
    if (said->first_error[0] != '\0')
        (void)snprintf(world->first_error, sizeof world->first_error, "%s", said->first_error);
    if (rank == NULL)
        return;
    if (rank->phase == DPT__RANK_PHASE__RANK_DEAD && rank->spawn > 0)
        world->deaths++;
    world->spawn = rank->spawn;
}

/* The client of rendezvous/client is a world here. */
static struct world *world_of(const struct dpt_client *client)
{
    return (struct world *)(uintptr_t)client;
}

enum dpt_status dpt_client_send(struct dpt_client *client, const void *message, size_t bytes,
                                struct dpt_err *err)
{
    struct world *world = world_of(client);
    Dpt__AgentState *said = NULL;
    if (world->refuse_first) {
        world->refuse_first = false;
        return DPT_INPROGRESS;
    }
    DPT_TRY(dpt_message_decode_agent_state(message, bytes, &said, err));
    note_what_was_said(world, said);
    Dpt__Stamp stamp = *said->stamp;
    stamp.epoch = EPOCH;
    stamp.generation = 0;
    Dpt__ServerState reply = DPT__SERVER_STATE__INIT;
    reply.version = DPT_PROTO_VERSION;
    reply.stamp = &stamp;
    reply.counter_seen = said->counter;
    reply.counter = ++world->counter;
    reply.grant_step = -1;
    reply.n_nodes = 1;
    if (!world->silent && world->queued < QUEUE_MAX / 2)
        world->script(world, said, &reply);
    dpt_message_free_agent_state(&said);
    return DPT_OK;
}

static void answer(struct world *world, const Dpt__ServerState *reply)
{
    uint8_t buf[4096];
    size_t bytes;
    struct dpt_err err;
    if (dpt_message_encode(&reply->base, buf, sizeof buf, &bytes, &err) != DPT_OK)
        fail_msg("%s", err.text);
    script_push(world, buf, bytes);
}

enum dpt_status dpt_client_next(struct dpt_client *client, struct dpt_client_event *ret,
                                struct dpt_err *err)
{
    struct world *world = world_of(client);
    (void)err;
    if (!world->up_told) {
        world->up_told = true;
        *ret = (struct dpt_client_event){.kind = DPT_CLIENT_UP};
        return DPT_OK;
    }
    eventfd_t ignored;
    (void)eventfd_read(world->event_fd, &ignored);
    if (world->queued == 0)
        return DPT_INPROGRESS;
    size_t n = world->queue[0].n;
    memcpy(world->current, world->queue[0].bytes, n);
    memmove(&world->queue[0], &world->queue[1], --world->queued * sizeof world->queue[0]);
    *ret = (struct dpt_client_event){DPT_CLIENT_MESSAGE, world->current, n};
    return DPT_OK;
}

uint32_t dpt_client_round_trip_us(const struct dpt_client *client)
{
    (void)client;
    return 0;
}

void dpt_client_fds(const struct dpt_client *client, int ret_fds[DPT_CLIENT_FDS])
{
    ret_fds[0] = world_of(client)->event_fd;
    ret_fds[1] = -1; /* poll passes over it */
}

void dpt_client_tick(struct dpt_client *client, int64_t now_ms)
{
    (void)client, (void)now_ms;
}

void script_reply(struct world *world, Dpt__ServerState *reply, Dpt__ServerPhase phase,
                  uint64_t generation, const char *text)
{
    reply->phase = phase;
    reply->stamp->generation = generation;
    reply->text = (char *)(uintptr_t)text;
    answer(world, reply);
}

void script_reply_plan(struct world *world, const Dpt__AgentState *said, Dpt__ServerState *reply,
                       Dpt__ServerPhase phase)
{
    static uint8_t nonce[DPT_PROTO_NONCE_BYTES];
    Dpt__PlanRank rank = DPT__PLAN_RANK__INIT;
    Dpt__PlanRank *ranks[] = {&rank};
    Dpt__Plan plan = DPT__PLAN__INIT;
    rank.tcp_addr = (char *)(uintptr_t) "127.0.0.1:1";
    rank.spawn = script_rank(said)->spawn;
    rank.checkpoint_slot = -1;
    plan.generation = GENERATION;
    plan.nonce.data = nonce;
    plan.nonce.len = sizeof nonce;
    plan.world_size = plan.n_nodes = plan.n_hosts = 1;
    plan.ranks = ranks;
    plan.n_ranks = 1;
    plan.digest = (char *)(uintptr_t) "digest";
    plan.load_checkpoint = -1;
    plan.cause = plan.cause_kind = (char *)(uintptr_t) "start";
    reply->plan = &plan;
    script_reply(world, reply, phase, GENERATION, "");
}

bool dpt_client_is_denied(const struct dpt_client *client, char ret[DPT_CLIENT_DENIAL_BYTES])
{
    struct world *world = world_of(client);
    const char *text = world->denials[world->denied++ > 0];
    (void)snprintf(ret, DPT_CLIENT_DENIAL_BYTES, "%s", text != NULL ? text : "");
    return text != NULL;
}

bool dpt_client_awaits_new_key(const struct dpt_client *client)
{
    (void)client;
    return false;
}

void dpt_client_why(const struct dpt_client *client, char ret[DPT_CLIENT_WHY_BYTES])
{
    (void)client;
    (void)snprintf(ret, DPT_CLIENT_WHY_BYTES, "nothing listens");
}
