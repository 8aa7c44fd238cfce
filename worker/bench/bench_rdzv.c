/* dpt-bench rdzv: one real dpt-rdzv and thousands of nodes that speak the real protocol to it.
 * Times of a cold connect, a formation, losses and a join; the server's CPU time, memory and
 * messages.
 *
 * A node's time in a phase counts from the begin of the phase for all nodes. The client processes
 * share the machine with the server, so times include their work; the server's CPU time does
 * not. */
#include "worker/bench/bench_rdzv.h"

#include "base/clock.h"
#include "rendezvous/proto/message.h"
#include "worker/bench/bench.h"
#include "worker/bench/bench_rdzv_figures.h"
#include "worker/bench/bench_rdzv_model.h"
#include "worker/bench/bench_rdzv_team.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    PHASE_TIMEOUT_MS = 180 * 1000,
    SECONDS_MAX = 3600,
    NODES = 64,
    MODEL_MEASURED_NODES = 1000,
    MODEL_ERROR_MAX = 1000 * 1000
};

static struct {
    int64_t nodes, ranks, clients, rack, seconds, model, repeats, model_error;
    bool open;
    struct dpt_bench_real timeout_s;
} args = {
    .ranks = 8,
    .clients = 2,
    .seconds = 5,
    .repeats = 3,
    .model_error = 25,
    .timeout_s = {.min = 1e-3 * DPT_PROTO_TIMEOUT_MS_MIN, .max = 1e-3 * DPT_PROTO_TIMEOUT_MS_MAX}};

static const struct dpt_option options[] = {
    {"--nodes", "N", "nodes (64; with --model 1000)", .number = &args.nodes, .min = 2,
     .max = DPT_PROTO_NODES_MAX},
    {"--ranks-per-node", "N", "ranks of each node (8)", .number = &args.ranks, .min = 1,
     .max = DPT_PROTO_RANKS_MAX},
    {"--rack", "N", "nodes that are lost at once (a twentieth of them)", .number = &args.rack,
     .min = 1, .max = DPT_PROTO_NODES_MAX},
    {"--clients", "N", "processes that play the nodes (2)", .number = &args.clients, .min = 1,
     .max = RDZV_CLIENTS_MAX},
    {"--seconds", "N", "of the steady state (5)", .number = &args.seconds, .min = 1,
     .max = SECONDS_MAX},
    {"--model", "N", "computes these phases for N nodes, too, and checks that model",
     .number = &args.model, .min = 2, .max = RDZV_MODEL_NODES_MAX},
    {"--repeats", "N", "measurements of each number of nodes for --model (3)",
     .number = &args.repeats, .min = 1, .max = RDZV_REPEATS_MAX},
    {"--model-error", "P", "largest error of the model's check, in percent of CPU time (25)",
     .number = &args.model_error, .min = 1, .max = MODEL_ERROR_MAX},
    {"--open", .help = "server and nodes without keys", .flag = &args.open},
    {"--timeout-s", "S", "cluster.timeout_s of the run (5, or what its nodes need)",
     .set = dpt_bench_set_real, .ctx = &args.timeout_s}};

static enum dpt_status check_options(struct rdzv_setup *ret, struct dpt_err *err)
{
    if (args.nodes == 0)
        args.nodes = args.model > 0 ? MODEL_MEASURED_NODES : NODES;
    const int64_t rack = args.rack > 0 ? args.rack : rdzv_rack_of((int)args.nodes);
    if (args.nodes * args.ranks > DPT_PROTO_WORLD_MAX)
        return dpt_fail(err, DPT_EINVAL,
                        "--nodes: %lld nodes of %lld ranks are %lld ranks, and a world has %d at "
                        "most: give fewer --nodes or --ranks-per-node",
                        (long long)args.nodes, (long long)args.ranks,
                        (long long)(args.nodes * args.ranks), DPT_PROTO_WORLD_MAX);
    if (rack > args.nodes / 2)
        return dpt_fail(err, DPT_EINVAL,
                        "--rack: %lld of %lld nodes are more than half of them: the nodes that "
                        "stay could not name all that are lost",
                        (long long)rack, (long long)args.nodes);
    *ret =
        (struct rdzv_setup){.nodes = (int)args.nodes,
                            .ranks = (int)args.ranks,
                            .clients = (int)(args.clients < args.nodes ? args.clients : args.nodes),
                            .rack = (int)rack,
                            .open = args.open};
    rdzv_set_timing(ret);
    if (args.timeout_s.value > 0)
        ret->timeout_ms = (int64_t)(1000 * args.timeout_s.value);
    return DPT_OK;
}

/* ---- phases ---- */

struct bench {
    struct rdzv_team team;
    struct rdzv_figures figures;
    bool *lost;     /* (nodes) */
    double *values; /* (nodes) or all samples, whichever is more */
    int n_phases;
};

/* What a phase is to lead to. */
struct goal {
    const char *name;
    struct rdzv_command command;
    bool forms;                 /* a generation; else every node joins */
    uint64_t generation_before; /* forms: newest before the phase */
    int nodes;                  /* that are there at its end */
};

static uint64_t newest_generation(const struct bench *b)
{
    uint64_t newest = 0;
    for (int i = 0; i < b->figures.setup.nodes; i++) {
        const struct rdzv_record *node = &b->team.shared->nodes[i];
        const uint64_t generation = __atomic_load_n(&node->generation, __ATOMIC_ACQUIRE);
        if (!b->lost[i] && generation > newest)
            newest = generation;
    }
    return newest;
}

/* Number of nodes that have got to the goal: joined, or in one new generation of all nodes. */
static int count_there(const struct bench *b, const struct goal *goal)
{
    const uint64_t newest = goal->forms ? newest_generation(b) : 0;
    const uint32_t world = (uint32_t)(goal->nodes * b->figures.setup.ranks);
    int n = 0;
    for (int i = 0; i < b->figures.setup.nodes; i++) {
        const struct rdzv_record *node = &b->team.shared->nodes[i];
        if (b->lost[i])
            continue;
        if (goal->forms)
            n += newest > goal->generation_before && node->generation == newest &&
                 node->world == world;
        else
            n += __atomic_load_n(&node->joined_ns, __ATOMIC_ACQUIRE) != 0;
    }
    return n;
}

static enum dpt_status await_goal(struct bench *b, const struct goal *goal, struct dpt_err *err)
{
    const int64_t deadline_ms = dpt_now_ms() + PHASE_TIMEOUT_MS;
    int there;
    while ((there = count_there(b, goal)) < goal->nodes) {
        if (dpt_now_ms() >= deadline_ms)
            return dpt_fail(err, DPT_ETIMEOUT, "%s: %d of %d nodes %s after %d s", goal->name,
                            there, goal->nodes,
                            goal->forms ? "run in one generation" : "have joined",
                            PHASE_TIMEOUT_MS / 1000);
        DPT_TRY(rdzv_team_pause(&b->team, goal->name, err));
    }
    return DPT_OK;
}

static struct rdzv_counts counts_since(const struct bench *b, const struct rdzv_counts *before)
{
    struct rdzv_counts c = rdzv_team_counts(&b->team);
    c.sent -= before->sent;
    c.sent_bytes -= before->sent_bytes;
    c.received -= before->received;
    c.received_bytes -= before->received_bytes;
    c.beats -= before->beats;
    return c;
}

static struct rdzv_times times_of_nodes(const struct bench *b, bool running, int64_t begin_ns)
{
    int n = 0;
    for (int i = 0; i < b->figures.setup.nodes; i++) {
        const struct rdzv_record *node = &b->team.shared->nodes[i];
        if (!b->lost[i])
            b->values[n++] =
                (double)((running ? node->running_ns : node->joined_ns) - begin_ns) * 1e-6;
    }
    return rdzv_times_of(b->values, n);
}

static enum dpt_status measure_phase(struct bench *b, struct goal goal, struct dpt_err *err)
{
    const struct rdzv_counts before = rdzv_team_counts(&b->team);
    int64_t cpu_ns = 0, cpu_end_ns = 0;
    for (int i = 0; i < b->figures.setup.nodes; i++)
        goal.nodes += !b->lost[i];
    goal.generation_before = newest_generation(b);
    DPT_TRY(rdzv_team_server_cpu_ns(&b->team, &cpu_ns, err));
    const int64_t begin_ns = dpt_now_ns();
    DPT_TRY(rdzv_team_command(&b->team, goal.command, err));
    DPT_TRY(await_goal(b, &goal, err));
    DPT_TRY(rdzv_team_server_cpu_ns(&b->team, &cpu_end_ns, err));
    struct rdzv_phase *phase = &b->figures.phases[b->n_phases++];
    *phase = (struct rdzv_phase){
        .name = goal.name,
        .nodes = goal.nodes,
        .world = goal.forms ? (uint32_t)(goal.nodes * b->figures.setup.ranks) : 0,
        .generations = goal.forms ? (int)(newest_generation(b) - goal.generation_before) : 0,
        .ms = times_of_nodes(b, goal.forms, begin_ns),
        .server_cpu_ms = (double)(cpu_end_ns - cpu_ns) * 1e-6,
        .counts = counts_since(b, &before)};
    rdzv_figures_print_phase(phase);
    return DPT_OK;
}

/* Nodes first … first + count - 1 are lost, or join again. */
static enum dpt_status measure_change(struct bench *b, enum rdzv_phase_index phase,
                                      enum rdzv_command_kind kind, int first, int count,
                                      struct dpt_err *err)
{
    for (int i = first; i < first + count; i++)
        b->lost[i] = kind == RDZV_LOSE;
    return measure_phase(b,
                         (struct goal){.name = rdzv_phase_name(phase),
                                       .command = {.kind = kind, .first = first, .count = count},
                                       .forms = true},
                         err);
}

/* ---- the steady state ---- */

static struct rdzv_times answer_times(const struct bench *b, int *ret_n)
{
    int n = 0;
    for (int i = 0; i < b->team.n_clients; i++) {
        const struct rdzv_client *c = &b->team.shared->clients[i];
        const uint64_t taken = __atomic_load_n(&c->n_samples, __ATOMIC_RELAXED);
        const uint64_t kept = taken < RDZV_SAMPLES_MAX ? taken : RDZV_SAMPLES_MAX;
        for (uint64_t k = 0; k < kept; k++)
            b->values[n++] = (double)c->answer_us[k] * 1e-3;
    }
    *ret_n = n;
    return rdzv_times_of(b->values, n);
}

static enum dpt_status measure_steady(struct bench *b, struct dpt_err *err)
{
    static const char name[] = "steady state";
    struct rdzv_steady *s = &b->figures.steady;
    const struct rdzv_counts before = rdzv_team_counts(&b->team);
    int64_t cpu_ns = 0, cpu_end_ns = 0, peak_bytes = 0;
    for (int i = 0; i < b->team.n_clients; i++)
        __atomic_store_n(&b->team.shared->clients[i].n_samples, 0, __ATOMIC_RELAXED);
    DPT_TRY(rdzv_team_server_cpu_ns(&b->team, &cpu_ns, err));
    const int64_t begin_ns = dpt_now_ns(), end_ns = begin_ns + args.seconds * 1000000000;
    while (dpt_now_ns() < end_ns)
        DPT_TRY(rdzv_team_pause(&b->team, name, err));
    DPT_TRY(rdzv_team_server_cpu_ns(&b->team, &cpu_end_ns, err));
    s->counts = counts_since(b, &before);
    s->seconds = (double)(dpt_now_ns() - begin_ns) * 1e-9;
    s->server_cpu_percent = (double)(cpu_end_ns - cpu_ns) * 1e-7 / s->seconds;
    s->answer_ms = answer_times(b, &s->answers);
    return rdzv_team_server_memory(&b->team, &peak_bytes, &b->figures.resident_bytes, err);
}

/* ---- the bench ---- */

static enum dpt_status measure_all(struct bench *b, struct dpt_err *err)
{
    const struct rdzv_setup *setup = &b->figures.setup;
    int64_t resident_bytes = 0;
    DPT_TRY(rdzv_team_server_memory(&b->team, &resident_bytes, &b->figures.base_bytes, err));
    rdzv_figures_print_head(setup);
    DPT_TRY(measure_phase(b,
                          (struct goal){.name = rdzv_phase_name(RDZV_PHASE_CONNECT),
                                        .command = {.kind = RDZV_CONNECT}},
                          err));
    DPT_TRY(measure_phase(b,
                          (struct goal){.name = rdzv_phase_name(RDZV_PHASE_FORMATION),
                                        .command = {.kind = RDZV_READY},
                                        .forms = true},
                          err));
    DPT_TRY(measure_steady(b, err));
    DPT_TRY(measure_change(b, RDZV_PHASE_LOSS, RDZV_LOSE, setup->nodes - 1, 1, err));
    DPT_TRY(measure_change(b, RDZV_PHASE_JOIN, RDZV_JOIN, setup->nodes - 1, 1, err));
    DPT_TRY(measure_change(b, RDZV_PHASE_RACK, RDZV_LOSE, 0, setup->rack, err));
    DPT_TRY(rdzv_team_server_memory(&b->team, &b->figures.peak_bytes, &resident_bytes, err));
    rdzv_figures_print_rest(&b->figures);
    return DPT_OK;
}

static enum dpt_status measure_with_team(struct bench *b, struct dpt_err *err)
{
    struct dpt_err later; /* the first error is reported, this one is not */
    enum dpt_status status = rdzv_team_start(&b->team, &b->figures.setup, err);
    if (status == DPT_OK)
        status = measure_all(b, err);
    const enum dpt_status ended =
        rdzv_team_end(&b->team, status != DPT_OK, status == DPT_OK ? err : &later);
    return status != DPT_OK ? status : ended;
}

/* One server and nodes, from their start to their end. */
static enum dpt_status measure(const struct rdzv_setup *setup, struct rdzv_figures *ret,
                               struct dpt_err *err)
{
    struct bench b = {.figures = {.setup = *setup}};
    DPT_TRY(rdzv_team_check_limit(&b.figures.setup, err));
    const size_t nodes = (size_t)b.figures.setup.nodes;
    const size_t samples = (size_t)b.figures.setup.clients * RDZV_SAMPLES_MAX;
    b.lost = calloc(nodes, sizeof *b.lost);
    b.values = calloc(nodes > samples ? nodes : samples, sizeof *b.values);
    enum dpt_status status = b.lost != NULL && b.values != NULL
                                 ? measure_with_team(&b, err)
                                 : dpt_fail_nomem(err, "figures of %zu nodes", nodes);
    if (status == DPT_OK)
        *ret = b.figures;
    free(b.lost);
    free(b.values);
    return status;
}

static enum dpt_status run_bench(json_t **ret_report, struct dpt_err *err)
{
    struct rdzv_figures figures;
    struct rdzv_setup setup;
    DPT_TRY(check_options(&setup, err));
    if (args.model > 0)
        return rdzv_model(
            &setup,
            &(struct rdzv_model_options){.nodes = (int)args.model,
                                         .repeats = (int)args.repeats,
                                         .error_max_percent = (double)args.model_error,
                                         .measure = measure},
            ret_report, err);
    DPT_TRY(measure(&setup, &figures, err));
    *ret_report = rdzv_figures_json(&figures);
    return DPT_OK;
}

const struct dpt_bench dpt_bench_rdzv = {.name = "rdzv",
                                         .help = "the rendezvous server with many nodes: "
                                                 "formations, losses, CPU, memory",
                                         .options = options,
                                         .n_options = sizeof options / sizeof *options,
                                         .run = run_bench};
