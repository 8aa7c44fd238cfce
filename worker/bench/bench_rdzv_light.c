/* A light node of dpt-bench rdzv --model (bench_rdzv_light.h). */
#include "worker/bench/bench_rdzv_light.h"

#include "worker/bench/bench_rdzv_rank.h"

#include <malloc.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum {
    TICK_EVERY = 64, /* events between two TICKs, as a busy loop reads them */
    CLOCK_READS = 100
};

static struct light_run *run_of(const struct rdzv_crowd *crowd, int node)
{
    int i = 0;
    while (node >= crowd->runs[i].first + crowd->runs[i].n)
        i++;
    return &crowd->runs[i];
}

/* ---- memory ---- */

size_t rdzv_light_heap_bytes(void)
{
    const struct mallinfo2 heap = mallinfo2();
    return heap.uordblks + heap.hblkhd;
}

void rdzv_light_note_heap(struct rdzv_crowd *crowd)
{
    const size_t bytes = rdzv_light_heap_bytes();
    if (bytes > crowd->peak_bytes)
        crowd->peak_bytes = bytes;
}

/* ---- time ---- */

static double cpu_now_us(void)
{
    struct timespec now;
    DPT_ASSERT(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) == 0);
    return 1e6 * (double)now.tv_sec + 1e-3 * (double)now.tv_nsec;
}

double rdzv_light_reading_us(void)
{
    double least = 1e9;
    for (int i = 0; i < CLOCK_READS; i++) {
        const double begin = cpu_now_us(), us = cpu_now_us() - begin;
        least = us < least ? us : least;
    }
    return least;
}

void rdzv_light_pass(struct rdzv_crowd *crowd, double us)
{
    const double here = (double)crowd->n_here / crowd->setup.nodes;
    crowd->clock_us += us;
    crowd->n_beats += 1e-6 * us * here * crowd->pace->beats_a_second;
}

static void work(struct rdzv_crowd *crowd, double us)
{
    crowd->cpu_us += us;
    rdzv_light_pass(crowd,
                    rdzv_elapsed_us(crowd->pace, us, (double)crowd->n_here / crowd->setup.nodes));
}

/* ---- nodes ---- */

static void enqueue(struct rdzv_crowd *crowd, int i)
{
    if (crowd->nodes[i].queued)
        return;
    crowd->nodes[i].queued = true;
    crowd->queue[(crowd->queue_first + crowd->queue_n++) % crowd->setup.nodes] = i;
}

void rdzv_light_change(struct rdzv_crowd *crowd, int i, struct light_ranks now)
{
    struct light_node *node = &crowd->nodes[i];
    node->repeats += node->reports;
    node->before = node->now;
    node->now = now;
    node->reports = crowd->habits.reports;
    enqueue(crowd, i);
}

/* True: the phase tells the ranks to change. */
static bool phase_of_ranks(Dpt__ServerPhase phase, Dpt__RankPhase *ret)
{
    *ret = phase == DPT__SERVER_PHASE__SERVER_PREPARE   ? DPT__RANK_PHASE__RANK_QUIESCED
           : phase == DPT__SERVER_PHASE__SERVER_PLAN    ? DPT__RANK_PHASE__RANK_READY
           : phase == DPT__SERVER_PHASE__SERVER_RUNNING ? DPT__RANK_PHASE__RANK_RUNNING
                                                        : DPT__RANK_PHASE__RANK_STARTING;
    return *ret != DPT__RANK_PHASE__RANK_STARTING;
}

static void obey(struct rdzv_crowd *crowd, int i, const Dpt__ServerState *message, double at_us)
{
    struct light_node *node = &crowd->nodes[i];
    struct light_ranks now = node->now;
    const uint64_t generation = message->stamp->generation;
    if (!phase_of_ranks(message->phase, &now.phase) ||
        (now.phase == node->now.phase && generation == node->now.generation))
        return;
    now.generation = generation;
    if (now.phase == DPT__RANK_PHASE__RANK_RUNNING)
        now.ran_generation = generation;
    rdzv_light_change(crowd, i, now);
    node->there = now.phase == DPT__RANK_PHASE__RANK_RUNNING;
    node->there_ms = 1e-3 * at_us;
}

static enum dpt_status note_first_rank(struct rdzv_crowd *crowd, struct light_node *node,
                                       const Dpt__ServerState *message, struct dpt_err *err)
{
    Dpt__ServerState *read = NULL;
    size_t bytes = 0;
    DPT_TRY(dpt_message_encode(&message->base, crowd->out, DPT_MESSAGE_BYTES_MAX, &bytes, err));
    DPT_TRY(dpt_message_decode_server_state(crowd->out, bytes, &read, err));
    for (size_t k = 0; k < read->plan->n_ranks; k++)
        if (read->plan->ranks[k]->local_rank == 0)
            node->first_rank = (int32_t)read->plan->ranks[k]->rank;
    dpt_message_free_server_state(&read);
    return DPT_OK;
}

static bool is_refusal(Dpt__ServerPhase phase)
{
    return phase == DPT__SERVER_PHASE__SERVER_DONE || phase == DPT__SERVER_PHASE__SERVER_FAILED ||
           phase == DPT__SERVER_PHASE__SERVER_EXPELLED ||
           phase == DPT__SERVER_PHASE__SERVER_REFUSED ||
           phase == DPT__SERVER_PHASE__SERVER_RELEASED;
}

static enum dpt_status deliver(struct rdzv_crowd *crowd, const struct dpt_rdzv_send *send,
                               double at_us, struct dpt_err *err)
{
    const Dpt__ServerState *message = send->message;
    const int i = (int)((send->conn - 1) % (uint64_t)crowd->setup.nodes);
    struct light_node *node = &crowd->nodes[i];
    if (node->lost || node->conn != send->conn)
        return DPT_OK;
    if (is_refusal(message->phase) && crowd->refusal[0] == '\0')
        (void)snprintf(crowd->refusal, sizeof crowd->refusal, "n%d: %s", i,
                       message->text[0] != '\0' ? message->text : "the run has ended");
    if (!node->is_known && message->counter_seen > 0) {
        node->is_known = node->there = true;
        node->there_ms = 1e-3 * at_us;
        crowd->n_here++;
    }
    struct light_run *run = run_of(crowd, i);
    node->generation = message->stamp->generation;
    if (node->generation > run->generation)
        run->generation = node->generation;
    if (message->plan != NULL) {
        (void)snprintf(node->digest, sizeof node->digest, "%s", message->plan->digest);
        node->world = message->plan->world_size;
        DPT_TRY(note_first_rank(crowd, node, message, err));
    }
    obey(crowd, i, message, at_us);
    return DPT_OK;
}

/* ---- the server ---- */

/* The server's loop: decodes a message (in_bytes > 0), steps the state machine, encodes the
 * answers. */
static enum dpt_status step_and_encode(struct rdzv_crowd *crowd, struct dpt_rdzv_event event,
                                       size_t in_bytes, struct dpt_rdzv_output *ret,
                                       struct dpt_err *err)
{
    Dpt__AgentState *message = NULL;
    if (in_bytes > 0)
        DPT_TRY(dpt_message_decode_agent_state_in(crowd->decoded,
                                                  DPT_MESSAGE_MEMORY_BYTES(in_bytes), crowd->in,
                                                  in_bytes, &message, err));
    event.message = message;
    event.now_ms = crowd->core_ms;
    crowd->n_events++;
    memcpy(event.random, &crowd->n_events, sizeof crowd->n_events);
    DPT_TRY(dpt_rdzv_step(crowd->core, &event, ret, err));
    for (size_t i = 0; i < ret->n_sends; i++) {
        size_t bytes = 0;
        DPT_TRY(dpt_message_encode(&ret->sends[i].message->base, crowd->out, DPT_MESSAGE_BYTES_MAX,
                                   &bytes, err));
        crowd->counts.received++;
        crowd->counts.received_bytes += bytes;
    }
    return DPT_OK;
}

/* The answers of a step leave one after the other while its time passes. */
static enum dpt_status take_event(struct rdzv_crowd *crowd, struct dpt_rdzv_event event,
                                  size_t in_bytes, double extra_us, struct dpt_err *err)
{
    struct dpt_rdzv_output output;
    const double begin_us = cpu_now_us();
    DPT_TRY(step_and_encode(crowd, event, in_bytes, &output, err));
    const double cpu_us = cpu_now_us() - begin_us - crowd->reading_us;
    if (output.n_sends >= (size_t)crowd->runs[0].n / 2)
        rdzv_light_note_heap(crowd);
    const double at_us = crowd->clock_us, n = (double)output.n_sends;
    work(crowd,
         (cpu_us > 0 ? cpu_us : 0) + extra_us + crowd->pace->socket_us * (n + (in_bytes > 0)));
    crowd->deadline_ms = output.deadline_ms;
    for (size_t i = 0; i < output.n_sends; i++)
        DPT_TRY(deliver(crowd, &output.sends[i],
                        at_us + (crowd->clock_us - at_us) * (double)(i + 1) / n, err));
    return DPT_OK;
}

enum dpt_status rdzv_light_event(struct rdzv_crowd *crowd, struct dpt_rdzv_event event,
                                 struct dpt_err *err)
{
    return take_event(crowd, event, 0, 0, err);
}

/* ---- messages ---- */

static Dpt__RunSpec spec_of(const struct rdzv_crowd *crowd, const struct light_run *run)
{
    Dpt__RunSpec spec = DPT__RUN_SPEC__INIT;
    spec.min_nodes = (uint32_t)(run == crowd->runs ? run->n - crowd->setup.rack : run->n);
    spec.max_nodes = (uint32_t)run->n;
    spec.timeout_ms = (uint32_t)crowd->setup.timeout_ms;
    spec.drain_ms = (uint32_t)crowd->setup.drain_ms;
    spec.max_restarts = UINT16_MAX;
    spec.max_world = (uint32_t)(run->n * crowd->setup.ranks);
    spec.config_digest = (char *)(uintptr_t) "bench";
    spec.config_yaml = (char *)(uintptr_t) "run: bench\n";
    spec.user = (char *)(uintptr_t) "bench";
    return spec;
}

/* Addresses as long as those of real ranks. */
static void fill_rank(const struct light_node *node, int64_t step, bool has_changed,
                      Dpt__RankState *rank)
{
    const struct light_ranks *ranks = has_changed ? &node->now : &node->before;
    dpt__rank_state__init(rank);
    rank->spawn = 1;
    rank->phase = ranks->phase;
    rank->generation = ranks->generation;
    rank->shm_addr = (char *)(uintptr_t) "dpt-bench-n00000-0-1";
    rank->tcp_addr = (char *)(uintptr_t) "10.0.0.1:20000";
    rank->step_applied = step;
    rank->outcome_step = rank->checkpoint_step = rank->grant_step = -1;
    rank->failed_generation = ranks->failed_generation;
    rank->suspect = ranks->failed_generation > 0 ? node->suspect : -1;
    rank->ran_generation = ranks->ran_generation;
    rank->step_ms_median = ranks->ran_generation > 0 ? RDZV_STEP_MS : 0;
    rank->plan_rank = -1;
}

/* Encodes a message into crowd->in, with so many of the node's ranks in their new state. */
static enum dpt_status encode_state(struct rdzv_crowd *crowd, int i, int n_changed,
                                    size_t *ret_bytes, struct dpt_err *err)
{
    struct light_node *node = &crowd->nodes[i];
    const struct light_run *run = run_of(crowd, i);
    Dpt__RankState ranks[DPT_PROTO_RANKS_MAX], *list[DPT_PROTO_RANKS_MAX];
    Dpt__AgentState state = DPT__AGENT_STATE__INIT;
    Dpt__Stamp stamp = DPT__STAMP__INIT;
    Dpt__RunSpec spec = spec_of(crowd, run);
    char id[16], host[24];
    uint8_t secret[DPT_PROTO_SECRET_BYTES] = {1};
    const int64_t step = node->digest[0] != '\0' ? crowd->step : -1; /* -1: it has no state yet */
    (void)snprintf(id, sizeof id, "n%d", i);
    (void)snprintf(host, sizeof host, "host-%d", i);
    for (int k = 0; k < crowd->setup.ranks; k++) {
        fill_rank(node, step, k < n_changed, &ranks[k]);
        ranks[k].local_rank = (uint32_t)k;
        list[k] = &ranks[k];
    }
    stamp.epoch = node->is_known ? 1 : 0;
    stamp.run = (char *)(uintptr_t)run->name;
    stamp.generation = node->generation;
    stamp.node = id;
    stamp.incarnation = node->incarnation;
    state.version = DPT_PROTO_VERSION;
    state.software = (char *)(uintptr_t) "dpt-bench";
    state.stamp = &stamp;
    state.counter = ++node->counter;
    state.spec = node->is_known ? NULL : &spec;
    state.fingerprint = state.data_digest = (char *)(uintptr_t) "bench";
    state.host = state.host_name = state.log_dir_id = host;
    state.checkpoint_dir_id = (char *)(uintptr_t) "checkpoints";
    state.plan_digest = node->digest;
    state.plan_world = node->world;
    state.secret = (ProtobufCBinaryData){sizeof secret, secret};
    state.ranks = list;
    state.n_ranks = (size_t)crowd->setup.ranks;
    return dpt_message_encode(&state.base, crowd->in, RDZV_LIGHT_IN_BYTES_MAX, ret_bytes, err);
}

static enum dpt_status say(struct rdzv_crowd *crowd, int i, int n_changed, struct dpt_err *err)
{
    const struct light_node *node = &crowd->nodes[i];
    size_t bytes = 0;
    DPT_TRY(encode_state(crowd, i, n_changed, &bytes, err));
    crowd->counts.sent++;
    crowd->counts.sent_bytes += bytes;
    DPT_TRY(take_event(crowd,
                       (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_MESSAGE, .conn = node->conn},
                       bytes, node->counter == 1 ? crowd->pace->handshake_us : 0, err));
    if (crowd->n_events % TICK_EVERY != 0)
        return DPT_OK;
    return rdzv_light_event(crowd, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_TICK}, err);
}

enum dpt_status rdzv_light_say(struct rdzv_crowd *crowd, int i, struct dpt_err *err)
{
    return say(crowd, i, crowd->setup.ranks, err);
}

enum dpt_status rdzv_light_serve_next(struct rdzv_crowd *crowd, struct dpt_err *err)
{
    const int i = crowd->queue[crowd->queue_first];
    struct light_node *node = &crowd->nodes[i];
    crowd->queue_first = (crowd->queue_first + 1) % crowd->setup.nodes;
    crowd->queue_n--;
    node->queued = false;
    while (!node->lost && node->repeats + node->reports > 0) { /* an answer may bring a change */
        int n_changed = 0;
        if (node->repeats > 0) {
            node->repeats--;
        } else {
            const int said = crowd->habits.reports - --node->reports;
            n_changed = crowd->setup.ranks * said / crowd->habits.reports;
        }
        DPT_TRY(say(crowd, i, n_changed, err));
    }
    return DPT_OK;
}
