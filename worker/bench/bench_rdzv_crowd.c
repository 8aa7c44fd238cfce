/* The crowd of dpt-bench rdzv --model (bench_rdzv_crowd.h). */
#include "worker/bench/bench_rdzv_crowd.h"

#include "rendezvous/core/timing.h"
#include "worker/bench/bench_rdzv_light.h"
#include "worker/bench/bench_rdzv_lost.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS_MADE = 50 }; /* that ranks report after a formation */

static const struct rdzv_pace no_pace;

/* ---- runs ---- */

static int run_nodes_max(int ranks)
{
    const int by_world = DPT_PROTO_WORLD_MAX / ranks;
    return by_world < DPT_PROTO_NODES_MAX ? by_world : DPT_PROTO_NODES_MAX;
}

int rdzv_crowd_runs(int nodes, int ranks)
{
    return (nodes + run_nodes_max(ranks) - 1) / run_nodes_max(ranks);
}

int rdzv_crowd_first_run(int nodes, int ranks)
{
    return nodes / rdzv_crowd_runs(nodes, ranks);
}

/* ---- create, destroy ---- */

/* No server was here before: the first node that comes defines its run at once. */
static enum dpt_status create_server(struct rdzv_crowd *crowd, struct dpt_err *err)
{
    const struct dpt_rdzv_options options = {.epoch = 1, .now_ms = crowd->core_ms, .fresh = true};
    return dpt_rdzv_create(&options, &crowd->core, err);
}

static void name_runs(struct rdzv_crowd *crowd)
{
    for (int i = 0; i < crowd->n_runs; i++) {
        struct light_run *run = &crowd->runs[i];
        run->first = (int)((int64_t)crowd->setup.nodes * i / crowd->n_runs);
        run->n = (int)((int64_t)crowd->setup.nodes * (i + 1) / crowd->n_runs) - run->first;
        (void)snprintf(run->name, sizeof run->name, "bench-%d", i);
    }
}

static enum dpt_status allocate(struct rdzv_crowd *crowd, struct dpt_err *err)
{
    const size_t n = (size_t)crowd->setup.nodes;
    crowd->runs = calloc((size_t)crowd->n_runs, sizeof crowd->runs[0]);
    crowd->nodes = calloc(n, sizeof crowd->nodes[0]);
    crowd->queue = calloc(n, sizeof crowd->queue[0]);
    crowd->values = calloc(n, sizeof crowd->values[0]);
    crowd->lost_ranks = calloc(n * (size_t)crowd->setup.ranks, sizeof crowd->lost_ranks[0]);
    crowd->in = malloc(RDZV_LIGHT_IN_BYTES_MAX);
    crowd->out = malloc(DPT_MESSAGE_BYTES_MAX);
    crowd->decoded = malloc(DPT_MESSAGE_MEMORY_BYTES(RDZV_LIGHT_IN_BYTES_MAX));
    if (crowd->runs == NULL || crowd->nodes == NULL || crowd->queue == NULL ||
        crowd->values == NULL || crowd->lost_ranks == NULL || crowd->in == NULL ||
        crowd->out == NULL || crowd->decoded == NULL)
        return dpt_fail_nomem(err, "a model of %zu nodes", n);
    crowd->own_bytes = crowd->peak_bytes = rdzv_light_heap_bytes();
    return create_server(crowd, err);
}

enum dpt_status rdzv_crowd_create(const struct rdzv_setup *setup, const struct rdzv_habits *habits,
                                  struct rdzv_crowd **ret, struct dpt_err *err)
{
    struct rdzv_crowd *crowd = calloc(1, sizeof *crowd);
    if (crowd == NULL)
        return dpt_fail_nomem(err, "a model of %d nodes", setup->nodes);
    crowd->setup = *setup;
    crowd->habits = *habits;
    crowd->n_runs = rdzv_crowd_runs(setup->nodes, setup->ranks);
    crowd->core_ms = 1;
    crowd->step = -1;
    crowd->pace = &no_pace;
    crowd->reading_us = rdzv_light_reading_us();
    const enum dpt_status status = allocate(crowd, err);
    if (status != DPT_OK) {
        rdzv_crowd_destroy(&crowd);
        return status;
    }
    name_runs(crowd);
    *ret = crowd;
    return DPT_OK;
}

void rdzv_crowd_destroy(struct rdzv_crowd **crowd_p)
{
    struct rdzv_crowd *crowd = *crowd_p;
    *crowd_p = NULL;
    if (crowd == NULL)
        return;
    dpt_rdzv_destroy(&crowd->core);
    free(crowd->runs);
    free(crowd->nodes);
    free(crowd->queue);
    free(crowd->values);
    free(crowd->lost_ranks);
    free(crowd->in);
    free(crowd->out);
    free(crowd->decoded);
    free(crowd);
}

/* ---- commands ---- */

static void start_node(struct rdzv_crowd *crowd, int i, Dpt__RankPhase phase)
{
    struct light_node *node = &crowd->nodes[i];
    const uint64_t incarnation = node->incarnation + 1;
    const struct light_ranks starting = {.phase = DPT__RANK_PHASE__RANK_STARTING};
    *node = (struct light_node){.incarnation = incarnation,
                                .conn = (incarnation - 1) * (uint64_t)crowd->setup.nodes +
                                        (uint64_t)i + 1,
                                .first_rank = -1,
                                .suspect = -1,
                                .now = starting};
    rdzv_light_change(crowd, i, (struct light_ranks){.phase = phase});
    node->repeats = crowd->habits.hellos;
    if (phase == DPT__RANK_PHASE__RANK_STARTING)
        node->reports = 0;
}

/* The ranks of node i, which stays, name their lost neighbour or the first lost rank. If no rank of
 * the node has a lost neighbour, it tells this with what it says next, as agents do. */
static void name_lost(struct rdzv_crowd *crowd, int i, const struct rdzv_lost *lost)
{
    struct light_node *node = &crowd->nodes[i];
    struct light_ranks now = node->now;
    int32_t neighbour = -1;
    for (int k = 0; k < crowd->setup.ranks && neighbour < 0; k++)
        neighbour = rdzv_lost_neighbour(lost, (uint32_t)(node->first_rank + k));
    node->suspect = neighbour < 0 ? lost->first : neighbour;
    now.failed_generation = now.generation;
    if (neighbour < 0)
        node->now = now;
    else
        rdzv_light_change(crowd, i, now);
}

/* These nodes of the first run die. Together the others have heard of all of them. */
static enum dpt_status lose(struct rdzv_crowd *crowd, int first, int count, struct dpt_err *err)
{
    const struct light_run *run = &crowd->runs[0];
    struct rdzv_lost lost = {.world = crowd->nodes[first].world, .ranks = crowd->lost_ranks};
    memset(crowd->lost_ranks, 0, lost.world * sizeof crowd->lost_ranks[0]);
    for (int i = first; i < first + count; i++) {
        for (int k = 0; k < crowd->setup.ranks; k++)
            crowd->lost_ranks[crowd->nodes[i].first_rank + k] = true;
        crowd->nodes[i].lost = true;
        crowd->n_here--;
        DPT_TRY(rdzv_light_event(
            crowd,
            (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_BROKEN, .conn = crowd->nodes[i].conn},
            err));
    }
    crowd->core_ms++; /* a node is heard after the break */
    for (int i = 0; i < run->n; i++) {
        lost.first = crowd->nodes[first + i % count].first_rank;
        if (!crowd->nodes[i].lost)
            name_lost(crowd, i, &lost);
    }
    return DPT_OK;
}

static enum dpt_status command_nodes(struct rdzv_crowd *crowd, const struct rdzv_command *command,
                                     struct dpt_err *err)
{
    switch (command->kind) {
    case RDZV_CONNECT:
        for (int i = 0; i < crowd->setup.nodes; i++)
            start_node(crowd, i, DPT__RANK_PHASE__RANK_STARTING);
        return DPT_OK;
    case RDZV_READY:
        for (int i = 0; i < crowd->setup.nodes; i++)
            rdzv_light_change(crowd, i,
                              (struct light_ranks){.phase = DPT__RANK_PHASE__RANK_STANDBY});
        return DPT_OK;
    case RDZV_LOSE:
        return lose(crowd, command->first, command->count, err);
    case RDZV_JOIN:
        for (int i = command->first; i < command->first + command->count; i++)
            start_node(crowd, i, DPT__RANK_PHASE__RANK_STANDBY);
        return DPT_OK;
    case RDZV_END:
        break;
    }
    return dpt_fail(err, DPT_EINVAL, "command %d is none for light nodes", (int)command->kind);
}

/* ---- phases ---- */

/* Nodes that the command is about, of `ret_n`, that have got there, and when. */
static int count_there(const struct rdzv_crowd *crowd, const struct rdzv_command *command,
                       int *ret_n)
{
    const bool forms = command->kind != RDZV_CONNECT;
    const bool all = command->kind == RDZV_CONNECT || command->kind == RDZV_READY;
    int there = 0;
    *ret_n = 0;
    for (int r = 0; r < (all ? crowd->n_runs : 1); r++) {
        const struct light_run *run = &crowd->runs[r];
        for (int i = run->first; i < run->first + run->n; i++) {
            const struct light_node *node = &crowd->nodes[i];
            *ret_n += !node->lost;
            if (node->lost || !node->there || (forms && node->now.generation != run->generation))
                continue;
            crowd->values[there++] = node->there_ms;
        }
    }
    return there;
}

/* Nobody has anything to say. The state machine's time goes on to its deadline; simulated time,
 * which has gone on with the work, waits for the rest. */
static enum dpt_status wait_for_deadline(struct rdzv_crowd *crowd, struct dpt_err *err)
{
    const struct dpt_timing timing =
        dpt_timing_from(crowd->setup.timeout_ms, crowd->setup.drain_ms);
    const int64_t left_ms = crowd->deadline_ms - crowd->core_ms, ms = left_ms > 1 ? left_ms : 1;
    if (crowd->core_ms + ms - crowd->begun_ms > timing.lease_ms / 2)
        return dpt_fail(err, DPT_EPROTO,
                        "no node has anything to say, and the server waits for %lld ms",
                        (long long)ms);
    const double until_us = crowd->waited_us + 1e3 * (double)ms;
    if (until_us > crowd->clock_us)
        rdzv_light_pass(crowd, until_us - crowd->clock_us);
    crowd->core_ms += ms;
    crowd->waited_us = crowd->clock_us;
    return rdzv_light_event(crowd, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_TICK}, err);
}

static enum dpt_status await_nodes(struct rdzv_crowd *crowd, const struct rdzv_command *command,
                                   int *ret_n, struct dpt_err *err)
{
    int n = 0;
    for (;;) { /* ends: the nodes say less and less, and a deadline that is far is an error */
        while (crowd->queue_n > 0 && crowd->refusal[0] == '\0')
            DPT_TRY(rdzv_light_serve_next(crowd, err));
        DPT_TRY(rdzv_light_event(crowd, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_TICK}, err));
        if (crowd->refusal[0] != '\0')
            return dpt_fail(err, DPT_EPROTO, "the server refuses node %s", crowd->refusal);
        if (crowd->queue_n > 0)
            continue;
        const int there = count_there(crowd, command, &n);
        *ret_n = n;
        if (there == n)
            return DPT_OK;
        const enum dpt_status status = wait_for_deadline(crowd, err);
        if (status != DPT_OK)
            return dpt_wrap(err, status, "%d of %d nodes have got there", there, n);
    }
}

static void begin_costs(struct rdzv_crowd *crowd, const struct rdzv_pace *pace)
{
    crowd->pace = pace;
    crowd->cpu_us = crowd->n_beats = crowd->clock_us = crowd->waited_us = 0;
    crowd->counts = (struct rdzv_counts){0};
    crowd->begun_ms = crowd->core_ms;
    for (int i = 0; i < crowd->setup.nodes; i++)
        crowd->nodes[i].there = false;
}

enum dpt_status rdzv_crowd_phase(struct rdzv_crowd *crowd, const struct rdzv_command *command,
                                 const struct rdzv_pace *pace, struct rdzv_phase *ret,
                                 struct dpt_err *err)
{
    const bool forms = command->kind != RDZV_CONNECT;
    const uint64_t before = crowd->runs[0].generation;
    int n = 0;
    begin_costs(crowd, pace);
    enum dpt_status status = command_nodes(crowd, command, err);
    if (status == DPT_OK)
        status = await_nodes(crowd, command, &n, err);
    if (status != DPT_OK)
        return dpt_wrap(err, status, "model of %d nodes", crowd->setup.nodes);
    crowd->step = forms ? STEPS_MADE : -1;
    rdzv_light_note_heap(crowd);
    *ret = (struct rdzv_phase){.name = ret->name,
                               .nodes = n,
                               .world = forms ? (uint32_t)(n * crowd->setup.ranks) : 0,
                               .generations = forms ? (int)(crowd->runs[0].generation - before) : 0,
                               .ms = rdzv_times_of(crowd->values, n),
                               .server_cpu_ms = 1e-3 * crowd->cpu_us,
                               .counts = crowd->counts};
    rdzv_add_beats(ret, pace, crowd->n_beats);
    crowd->pace = &no_pace;
    return DPT_OK;
}

void rdzv_crowd_memory(const struct rdzv_crowd *crowd, int64_t *ret_now_bytes,
                       int64_t *ret_peak_bytes)
{
    *ret_now_bytes = (int64_t)rdzv_light_heap_bytes() - (int64_t)crowd->own_bytes;
    *ret_peak_bytes = (int64_t)(crowd->peak_bytes - crowd->own_bytes);
}

enum dpt_status rdzv_crowd_beat(struct rdzv_crowd *crowd, double *ret_us, struct dpt_err *err)
{
    begin_costs(crowd, &no_pace);
    for (int i = 0; i < crowd->setup.nodes; i++)
        if (!crowd->nodes[i].lost)
            DPT_TRY(rdzv_light_say(crowd, i, err));
    *ret_us = crowd->cpu_us / (double)crowd->counts.sent;
    return DPT_OK;
}
