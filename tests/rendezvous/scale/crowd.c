/* The crowd of crowd.h. */
#include "tests/rendezvous/scale/crowd_internal.h"

#include "base/clock.h"
#include "rendezvous/proto/links.h"
#include "tests/rendezvous/core/kept_view.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SPREAD_MS = 300, /* less than the gap after which the server judges no silence */
    TICK_EVERY = 16, /* messages between two TICKs, as a busy loop reads them */
    ROUNDS_MAX = 64
};

static void *take_memory(size_t n, size_t bytes)
{
    void *memory = calloc(n, bytes);
    DPT_ASSERT(memory != NULL);
    return memory;
}

void crowd_fail(const char *what, const char *why)
{
    (void)fprintf(stderr, "dpt_scale: %s: %s\n", what, why);
    exit(1);
}

static void start_server(struct crowd *crowd, uint64_t epoch, bool fresh)
{
    const struct dpt_rdzv_options options = {
        .epoch = epoch, .now_ms = crowd->now_ms, .fresh = fresh};
    struct dpt_err err;
    if (dpt_rdzv_create(&options, &crowd->core, &err) != DPT_OK)
        crowd_fail("create the machine", err.text);
}

struct crowd *crowd_create(uint32_t nodes, uint32_t ranks)
{
    struct crowd *crowd = take_memory(1, sizeof *crowd);
    crowd->n = nodes;
    crowd->ranks = ranks;
    crowd->now_ms = 1000;
    crowd->members = take_memory(nodes, sizeof crowd->members[0]);
    crowd->queue = take_memory(nodes, sizeof crowd->queue[0]);
    crowd->in = take_memory(1, CROWD_MESSAGE_BYTES_MAX);
    crowd->decoded = take_memory(1, DPT_MESSAGE_MEMORY_BYTES(CROWD_MESSAGE_BYTES_MAX));
    crowd->out_bytes = DPT_MESSAGE_BYTES_MAX;
    crowd->out = take_memory(1, crowd->out_bytes);
    for (uint32_t i = 0; i < nodes; i++) {
        struct member *member = &crowd->members[i];
        (void)snprintf(member->id, sizeof member->id, "node-%06u", i);
        (void)snprintf(member->tcp, sizeof member->tcp, "10.%u.%u.%u:40000", i >> 16 & 255,
                       i >> 8 & 255, i & 255);
        member->rank_phase = DPT__RANK_PHASE__RANK_STANDBY;
        member->first_rank = member->suspect = -1;
    }
    crowd->journal = kept_records_create();
    start_server(crowd, ++crowd->epoch, true);
    meter_begin(&crowd->meter);
    return crowd;
}

void crowd_destroy(struct crowd **crowd)
{
    dpt_rdzv_destroy(&(*crowd)->core);
    kept_records_destroy(&(*crowd)->journal);
    free((*crowd)->members);
    free((*crowd)->queue);
    free((*crowd)->in);
    free((*crowd)->decoded);
    free((*crowd)->out);
    free(*crowd);
    *crowd = NULL;
}

struct crowd_cost crowd_take_cost(struct crowd *crowd)
{
    return meter_take(&crowd->meter);
}

size_t crowd_machine_bytes(const struct crowd *crowd)
{
    return crowd->machine_bytes;
}

/* ---- messages ---- */

static bool has_position(const Dpt__Plan *plan, uint32_t position)
{
    for (size_t i = 0; i < plan->n_ranks; i++)
        if (plan->ranks[i]->position == position && plan->ranks[i]->tcp_addr[0] != '\0')
            return true;
    return false;
}

/* A plan has all ranks of a mesh. Of a larger world it has the ranks of the node, and the addresses
 * of all ranks to which these have links. */
static void check_ranks(const struct crowd *crowd, const struct member *member,
                        const Dpt__Plan *plan)
{
    uint32_t n_own = 0, links[DPT_LINKS_MAX];
    const bool mesh = dpt_links_are_mesh(plan->world_size);
    for (size_t i = 0; i < plan->n_ranks; i++) {
        const Dpt__PlanRank *rank = plan->ranks[i];
        const bool own = rank->local_rank >= 0;
        n_own += own;
        if (own != (rank->shm_addr[0] != '\0'))
            crowd_fail(member->id, "its plan has the wrong shared-memory addresses");
        for (int k = own && !mesh ? dpt_links_of(plan->world_size, rank->position, links) : 0;
             k > 0; k--)
            if (!has_position(plan, links[k - 1]))
                crowd_fail(member->id,
                           "its plan lacks a rank to which one of its ranks has a link");
    }
    if (n_own != crowd->ranks || (mesh && plan->n_ranks != plan->world_size) ||
        (!mesh && plan->n_ranks > crowd->ranks * (DPT_LINKS_MAX + 1)))
        crowd_fail(member->id, "its plan has too few or too many ranks");
}

static void note_plan(const struct crowd *crowd, struct member *member, const uint8_t *data,
                      size_t bytes)
{
    Dpt__ServerState *message = NULL;
    struct dpt_err err;
    if (dpt_message_decode_server_state(data, bytes, &message, &err) != DPT_OK)
        crowd_fail("no agent would take this plan", err.text);
    (void)snprintf(member->digest, sizeof member->digest, "%s", message->plan->digest);
    member->world = message->plan->world_size;
    member->first_rank = -1;
    for (size_t i = 0; i < message->plan->n_ranks; i++)
        if (message->plan->ranks[i]->local_rank == 0)
            member->first_rank = (int32_t)message->plan->ranks[i]->rank;
    if (member->first_rank < 0)
        crowd_fail(member->id, "its plan has no place for its first rank");
    check_ranks(crowd, member, message->plan);
    dpt_message_free_server_state(&message);
}

/* The ranks of a node carry out what the node is told. */
static bool obey(struct member *member)
{
    const Dpt__RankPhase before = member->rank_phase;
    const uint64_t generation = member->rank_generation;
    if (member->phase == DPT__SERVER_PHASE__SERVER_PREPARE)
        member->rank_phase = DPT__RANK_PHASE__RANK_QUIESCED;
    else if (member->phase == DPT__SERVER_PHASE__SERVER_PLAN)
        member->rank_phase = DPT__RANK_PHASE__RANK_READY;
    else if (member->phase == DPT__SERVER_PHASE__SERVER_RUNNING)
        member->rank_phase = DPT__RANK_PHASE__RANK_RUNNING;
    else
        return false;
    member->rank_generation = member->generation;
    return member->rank_phase != before || member->rank_generation != generation;
}

static void deliver(struct crowd *crowd, const struct dpt_rdzv_send *send)
{
    const Dpt__ServerState *message = send->message;
    struct member *member = &crowd->members[send->conn - 1]; /* beyond the end: an operator */
    size_t bytes = 0;
    struct dpt_err err;
    const int64_t start_ns = dpt_now_ns();
    if (dpt_message_encode(&message->base, crowd->out, crowd->out_bytes, &bytes, &err) != DPT_OK)
        crowd_fail("encode", err.text);
    crowd->meter.cost.encode_ns += dpt_now_ns() - start_ns;
    crowd->meter.cost.sends++;
    crowd->meter.cost.bytes += bytes;
    if (bytes > crowd->meter.cost.longest_bytes)
        crowd->meter.cost.longest_bytes = bytes;
    if (send->conn > crowd->n || member->gone)
        return;
    member->is_known = message->counter_seen > 0;
    member->epoch = message->stamp->epoch;
    member->phase = message->phase;
    member->generation = message->stamp->generation;
    crowd->restarts_left = message->restarts_left;
    if (message->plan != NULL)
        note_plan(crowd, member, crowd->out, bytes);
    if (message->phase == DPT__SERVER_PHASE__SERVER_REFUSED ||
        message->phase == DPT__SERVER_PHASE__SERVER_EXPELLED ||
        message->phase == DPT__SERVER_PHASE__SERVER_FAILED)
        crowd_fail(member->id, message->text);
    if (obey(member) && !member->has_news) {
        member->has_news = true;
        crowd->queue[crowd->n_queue++] = (uint32_t)(member - crowd->members);
    }
}

static void step(struct crowd *crowd, struct dpt_rdzv_event event)
{
    struct dpt_rdzv_output output;
    struct dpt_err err;
    event.now_ms = crowd->now_ms;
    crowd->random++;
    memcpy(event.random, &crowd->random, sizeof crowd->random);
    const int64_t start_ns = dpt_now_ns();
    if (dpt_rdzv_step(crowd->core, &event, &output, &err) != DPT_OK)
        crowd_fail("step", err.text);
    const int64_t took_ns = dpt_now_ns() - start_ns;
    crowd->meter.cost.events++;
    crowd->meter.cost.core_ns += took_ns;
    if (took_ns > crowd->meter.cost.longest_ns)
        crowd->meter.cost.longest_ns = took_ns;
    crowd->deadline_ms = output.deadline_ms;
    for (size_t i = 0; i < output.n_records; i++)
        kept_records_add(crowd->journal, &output.records[i]);
    for (size_t i = 0; i < output.n_sends; i++)
        deliver(crowd, &output.sends[i]);
}

static void tick(struct crowd *crowd, int64_t after_ms)
{
    crowd->now_ms += after_ms;
    step(crowd, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_TICK});
}

/* Gives the machine the message of crowd->in, from connection `conn`. */
static void send(struct crowd *crowd, uint64_t conn, size_t bytes)
{
    Dpt__AgentState *message = NULL;
    struct dpt_err err;
    const int64_t start_ns = dpt_now_ns();
    if (dpt_message_decode_agent_state_in(crowd->decoded, DPT_MESSAGE_MEMORY_BYTES(bytes),
                                          crowd->in, bytes, &message, &err) != DPT_OK)
        crowd_fail("decode a state", err.text);
    crowd->meter.cost.decode_ns += dpt_now_ns() - start_ns;
    step(crowd,
         (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_MESSAGE, .conn = conn, .message = message});
}

static void say(struct crowd *crowd, uint32_t i)
{
    struct member *member = &crowd->members[i];
    if (member->gone)
        return;
    send(crowd, i + 1, crowd_encode_state(crowd, member));
    if (i % TICK_EVERY == 0)
        tick(crowd, 0);
}

/* Members with news send, until none has any. A round of news takes one millisecond. */
static void settle(struct crowd *crowd)
{
    uint32_t *now = take_memory(crowd->n, sizeof now[0]);
    for (int round = 0; round < ROUNDS_MAX && crowd->n_queue > 0; round++) {
        const uint32_t n = crowd->n_queue;
        memcpy(now, crowd->queue, n * sizeof now[0]);
        crowd->n_queue = 0;
        for (uint32_t i = 0; i < n; i++)
            crowd->members[now[i]].has_news = false;
        for (uint32_t i = 0; i < n; i++)
            say(crowd, now[i]);
        tick(crowd, 1);
    }
    free(now);
}

/* ---- phases ---- */

void crowd_join(struct crowd *crowd)
{
    crowd->step = -1;
    for (uint32_t i = 0; i < crowd->n; i++)
        say(crowd, i);
}

void crowd_form(struct crowd *crowd)
{
    settle(crowd);
    for (int i = 0; i < ROUNDS_MAX && crowd_running(crowd) == 0; i++) {
        const int64_t left_ms = crowd->deadline_ms - crowd->now_ms;
        tick(crowd, left_ms > 0 ? left_ms : 1);
        settle(crowd);
    }
    crowd->step = 0;
}

void crowd_beat(struct crowd *crowd)
{
    crowd->now_ms += 50;
    crowd->step += crowd_running(crowd) > 0;
    for (uint32_t i = 0; i < crowd->n; i++)
        say(crowd, i);
    tick(crowd, 1);
}

/* Every node waits, as the run is held and has nothing to save any more. */
static bool crowd_is_held(const struct crowd *crowd)
{
    for (uint32_t i = 0; i < crowd->n; i++)
        if (!crowd->members[i].gone && crowd->members[i].phase != DPT__SERVER_PHASE__SERVER_WAITING)
            return false;
    return true;
}

/* All nodes speak, within SPREAD_MS. */
static void beat_in_turn(struct crowd *crowd)
{
    for (uint32_t i = 0; i < crowd->n; i++) {
        if (i % (crowd->n / SPREAD_MS + 1) == 0)
            tick(crowd, 1);
        say(crowd, i);
    }
}

void crowd_stop(struct crowd *crowd)
{
    send(crowd, crowd->n + 1, crowd_encode_command(crowd, DPT__CONTROL_VERB__CONTROL_STOP));
    for (int i = 0; i < ROUNDS_MAX && !crowd_is_held(crowd); i++) {
        beat_in_turn(crowd);
        settle(crowd);
    }
    if (!crowd_is_held(crowd))
        crowd_fail("stop", "the run is not held");
}

void crowd_restart(struct crowd *crowd)
{
    struct dpt_err err;
    const size_t bytes = meter_heap_bytes();
    dpt_rdzv_destroy(&crowd->core);
    if (crowd->machine_bytes == 0)
        crowd->machine_bytes = bytes - meter_heap_bytes();
    start_server(crowd, ++crowd->epoch, false);
    const int64_t start_ns = dpt_now_ns();
    for (size_t i = 0; i < kept_records_count(crowd->journal); i++)
        if (dpt_rdzv_restore(crowd->core, kept_record_at(crowd->journal, i), &err) != DPT_OK)
            crowd_fail("restore the journal", err.text);
    crowd->meter.cost.core_ns += dpt_now_ns() - start_ns;
    for (uint32_t i = 0; i < crowd->n; i++)
        crowd->members[i].is_known = false;
    for (uint32_t i = 0; i < crowd->n; i++)
        say(crowd, i);
    tick(crowd, 1);
}

void crowd_lose(struct crowd *crowd, uint64_t lost)
{
    uint32_t first = 0;
    while (crowd->members[first].gone || crowd->members[first + 1].gone)
        first++;
    const uint32_t end = first + 1 + (uint32_t)lost; /* `first` stays */
    const uint64_t generation = crowd_generation(crowd);
    for (uint32_t i = first + 1; i < end; i++) {
        crowd->members[i].gone = true;
        step(crowd, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_BROKEN, .conn = i + 1});
    }
    crowd->now_ms++;
    for (uint32_t i = 0; i < crowd->n; i++) {
        crowd->members[i].failed_generation = generation;
        crowd->members[i].suspect = -1;
    }
    /* The nodes that stay name the lost ones in turn. */
    uint32_t at = first + 1;
    for (uint32_t i = 0; i < crowd->n && at < end; i++) {
        struct member *peer = &crowd->members[i];
        if (peer->gone)
            continue;
        peer->suspect = crowd->members[at++].first_rank;
        say(crowd, i);
    }
    for (int i = 0; i < ROUNDS_MAX * 8 && (i == 0 || crowd_running(crowd) == 0); i++) {
        settle(crowd);
        const int64_t left_ms = crowd->deadline_ms - crowd->now_ms;
        tick(crowd, left_ms > 0 ? left_ms : 1);
    }
    settle(crowd);
}

void crowd_silence(struct crowd *crowd, uint64_t lost)
{
    beat_in_turn(crowd);
    const uint64_t before = crowd_generation(crowd);
    bool stays = true; /* every second node falls silent */
    for (uint32_t i = 0; i < crowd->n && lost > 0; i++) {
        if (crowd->members[i].gone)
            continue;
        stays = !stays;
        crowd->members[i].gone = !stays;
        lost -= !stays;
    }
    for (int i = 0;
         i < ROUNDS_MAX && (crowd_generation(crowd) == before || crowd_running(crowd) == 0); i++) {
        beat_in_turn(crowd);
        settle(crowd);
    }
}

uint64_t crowd_running(const struct crowd *crowd)
{
    uint64_t n = 0;
    const uint64_t generation = crowd_generation(crowd);
    for (uint32_t i = 0; i < crowd->n; i++) {
        const struct member *member = &crowd->members[i];
        n += !member->gone && member->phase == DPT__SERVER_PHASE__SERVER_RUNNING &&
             member->rank_phase == DPT__RANK_PHASE__RANK_RUNNING &&
             member->generation == generation;
    }
    return n;
}

uint64_t crowd_generation(const struct crowd *crowd)
{
    uint64_t newest = 0;
    for (uint32_t i = 0; i < crowd->n; i++)
        if (!crowd->members[i].gone && crowd->members[i].generation > newest)
            newest = crowd->members[i].generation;
    return newest;
}

uint32_t crowd_restarts_left(const struct crowd *crowd)
{
    return crowd->restarts_left;
}
