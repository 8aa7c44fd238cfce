/* dpt-bench rdzv --model (bench_rdzv_model.h). */
#include "worker/bench/bench_rdzv_model.h"

#include "rendezvous/proto/message.h"
#include "worker/bench/bench_rdzv_crowd.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

enum { SMALLER = 4, BEATS = 3, NODES_MIN = 2 };

/* ---- phases ---- */

/* Those of bench_rdzv.c, about nodes of the first run. */
static struct rdzv_command command_of(enum rdzv_phase_index phase, const struct rdzv_setup *setup)
{
    const int last = rdzv_crowd_first_run(setup->nodes, setup->ranks) - 1;
    switch (phase) {
    case RDZV_PHASE_CONNECT:
        return (struct rdzv_command){.kind = RDZV_CONNECT};
    case RDZV_PHASE_FORMATION:
        return (struct rdzv_command){.kind = RDZV_READY};
    case RDZV_PHASE_JOIN:
        return (struct rdzv_command){.kind = RDZV_JOIN, .first = last, .count = 1};
    case RDZV_PHASE_RACK:
        return (struct rdzv_command){.kind = RDZV_LOSE, .first = 0, .count = setup->rack};
    default:
        return (struct rdzv_command){.kind = RDZV_LOSE, .first = last, .count = 1};
    }
}

/* One second of the steady state. */
static struct rdzv_steady steady_of(const struct rdzv_pace *pace, double core_us, int nodes,
                                    double *values)
{
    const double beats = pace->beats_a_second, us = core_us + 2 * pace->socket_us;
    return (struct rdzv_steady){
        .seconds = 1,
        .server_cpu_percent = 1e-4 * beats * us,
        .counts = {.sent = (uint64_t)beats,
                   .received = (uint64_t)beats,
                   .beats = (uint64_t)beats,
                   .sent_bytes = (uint64_t)(beats * pace->beat_bytes),
                   .received_bytes = (uint64_t)(beats * pace->beat_back_bytes)},
        .answers = nodes,
        .answer_ms = rdzv_answer_times(nodes, 1e6 * nodes / beats, us / pace->share, values)};
}

static enum dpt_status go_through(struct rdzv_crowd *crowd, const struct rdzv_costs *costs,
                                  struct rdzv_figures *figures, double *values, struct dpt_err *err)
{
    const struct rdzv_setup *setup = &figures->setup;
    double core_us = 0;
    for (int i = 0; i < RDZV_PHASES; i++) {
        const struct rdzv_command command = command_of((enum rdzv_phase_index)i, setup);
        figures->phases[i].name = rdzv_phase_name((enum rdzv_phase_index)i);
        const enum dpt_status status =
            rdzv_crowd_phase(crowd, &command, &costs->phases[i], &figures->phases[i], err);
        if (status != DPT_OK)
            return dpt_wrap(err, status, "%s", figures->phases[i].name);
        for (int k = 0; i == RDZV_PHASE_FORMATION && k < BEATS; k++) {
            double us = 0;
            DPT_TRY(rdzv_crowd_beat(crowd, &us, err));
            core_us += us / BEATS;
        }
    }
    figures->steady = steady_of(&costs->steady, core_us, setup->nodes, values);
    figures->base_bytes = (int64_t)costs->base_bytes;
    figures->resident_bytes = (int64_t)(costs->base_bytes + setup->nodes * costs->steady_bytes);
    figures->peak_bytes = (int64_t)(costs->base_bytes + setup->nodes * costs->peak_bytes);
    return DPT_OK;
}

static enum dpt_status compute(const struct rdzv_setup *setup, const struct rdzv_costs *costs,
                               struct rdzv_figures *ret, struct dpt_err *err)
{
    struct rdzv_crowd *crowd = NULL;
    *ret = (struct rdzv_figures){.setup = *setup};
    double *values = calloc((size_t)setup->nodes, sizeof *values);
    if (values == NULL)
        return dpt_fail_nomem(err, "times of %d nodes", setup->nodes);
    enum dpt_status status = rdzv_crowd_create(setup, &costs->habits, &crowd, err);
    if (status == DPT_OK)
        status = go_through(crowd, costs, ret, values, err);
    rdzv_crowd_destroy(&crowd);
    free(values);
    return status;
}

/* ---- costs ---- */

static void set_beats(struct rdzv_pace *pace, double beats_a_second)
{
    pace->beats_a_second = beats_a_second;
    if (rdzv_beat_cores(pace) >= pace->share)
        pace->beats_a_second = 0;
}

/* The costs of a run, with the heartbeats of `setup`. `shared`: server and nodes share a machine,
 * as they did in that run; else the server has a core of its own. Heartbeats that would take all
 * of its share are left out of phases. */
static struct rdzv_costs costs_for(const struct rdzv_costs *costs, const struct rdzv_setup *setup,
                                   bool shared)
{
    struct rdzv_costs c = *costs;
    const double beats = rdzv_beats_a_second(setup->timeout_ms, setup->nodes);
    for (int i = 0; i < RDZV_PHASES; i++) {
        c.phases[i].share = shared ? c.phases[i].share : 1;
        set_beats(&c.phases[i], beats);
    }
    c.steady.beats_a_second = beats;
    return c;
}

/* Core and codec alone. Heartbeats are counted in the steady state only. */
static struct rdzv_costs no_costs(const struct rdzv_figures *measured)
{
    struct rdzv_costs costs = {.habits = rdzv_habits_of(measured)};
    for (int i = 0; i < RDZV_PHASES; i++)
        costs.phases[i].share = 1;
    costs.steady.share = 1;
    costs.steady.beats_a_second =
        rdzv_beats_a_second(measured->setup.timeout_ms, measured->setup.nodes);
    return costs;
}

static enum dpt_status find_costs(const struct rdzv_figures *measured, struct rdzv_costs *ret,
                                  struct dpt_err *err)
{
    struct rdzv_figures core;
    const struct rdzv_costs none = no_costs(measured);
    DPT_TRY(compute(&measured->setup, &none, &core, err));
    *ret = rdzv_costs_of(measured, &core);
    return DPT_OK;
}

/* ---- text ---- */

static void print_phases(const struct rdzv_figures *figures)
{
    rdzv_figures_print_columns();
    for (int i = 0; i < RDZV_PHASES; i++)
        rdzv_figures_print_phase(&figures->phases[i]);
    rdzv_figures_print_rest(figures);
}

static void print_check(const struct rdzv_figures *model, const struct rdzv_figures *measured,
                        int from_nodes)
{
    (void)printf(
        "\n# CHECK OF THE MODEL: %d nodes, computed from the costs of the run of %d nodes, "
        "on this machine with all client processes\n",
        model->setup.nodes, from_nodes);
    print_phases(model);
    (void)printf("\n# ITS ERRORS: computed less measured, in percent of measured; gens: their "
                 "difference\n");
    rdzv_figures_print_columns();
    rdzv_figures_print_errors(model, measured);
}

static void print_costs(const struct rdzv_costs *costs, int from_nodes)
{
    (void)printf(
        "\n# UNIT COSTS of the run of %d nodes, us of the server's CPU: a connection %.0f, "
        "a heartbeat with its answer %.1f;\n"
        "# a message to or from the server, without core and codec:",
        from_nodes, costs->phases[0].handshake_us, costs->steady.beat_us);
    for (int i = 0; i < RDZV_PHASES; i++)
        (void)printf(" %s %.1f,", rdzv_phase_name((enum rdzv_phase_index)i),
                     costs->phases[i].socket_us);
    (void)printf(
        " steady state %.1f\n"
        "# A node sends %d messages until it has joined, and %d for a change of its ranks.\n",
        costs->steady.socket_us, costs->habits.hellos, costs->habits.reports);
}

static void print_model(const struct rdzv_figures *model, const struct rdzv_costs *costs)
{
    const struct rdzv_setup *setup = &model->setup;
    const int runs = rdzv_crowd_runs(setup->nodes, setup->ranks);
    const double cores = rdzv_beat_cores(&costs->steady);
    (void)printf(
        "\n# MODEL, not measured: %d nodes of %d ranks %s, cluster.timeout_s %g. The server "
        "has a core of its own;\n"
        "# the network and the work of nodes take no time. Core and codec really ran with all "
        "nodes; the rest are unit costs.\n",
        setup->nodes, setup->ranks, setup->open ? "without keys" : "with keys",
        (double)setup->timeout_ms / 1000);
    if (runs > 1)
        (void)printf(
            "# One run has %d ranks and %d nodes at most, so these are %d runs of one server. "
            "Losses and the join concern the first run.\n",
            DPT_PROTO_WORLD_MAX, DPT_PROTO_NODES_MAX, runs);
    if (cores >= 1)
        (void)printf(
            "# OVERLOAD: the heartbeats alone take %.1f cores, so one dpt-rdzv cannot serve so "
            "many nodes. The phases below leave heartbeats out.\n",
            cores);
    print_phases(model);
}

/* ---- JSON ---- */

static json_t *errors_json(const struct rdzv_figures *model, const struct rdzv_figures *measured)
{
    json_t *errors = json_object();
    for (int i = 0; i < RDZV_PHASES; i++) {
        const struct rdzv_phase *a = &model->phases[i], *b = &measured->phases[i];
        (void)json_object_set_new(
            errors, a->name,
            json_pack("{s:f, s:f, s:f}", "server_cpu_ms",
                      rdzv_error_percent(a->server_cpu_ms, b->server_cpu_ms), "ms_max",
                      rdzv_error_percent(a->ms.max, b->ms.max), "to_server",
                      rdzv_error_percent((double)a->counts.sent, (double)b->counts.sent)));
    }
    return errors;
}

static json_t *costs_json(const struct rdzv_costs *costs)
{
    json_t *sockets = json_object();
    for (int i = 0; i < RDZV_PHASES; i++)
        (void)json_object_set_new(sockets, rdzv_phase_name((enum rdzv_phase_index)i),
                                  json_real(costs->phases[i].socket_us));
    (void)json_object_set_new(sockets, "steady state", json_real(costs->steady.socket_us));
    return json_pack("{s:f, s:f, s:o, s:i, s:i}", "handshake_us", costs->phases[0].handshake_us,
                     "heartbeat_us", costs->steady.beat_us, "socket_us", sockets, "hellos",
                     costs->habits.hellos, "reports", costs->habits.reports);
}

/* ---- the bench ---- */

/* A rack that was given stays, but is at most half of the run. */
static struct rdzv_setup resized(const struct rdzv_setup *setup, int nodes)
{
    struct rdzv_setup s = *setup;
    const int run = rdzv_crowd_first_run(nodes, setup->ranks);
    s.nodes = nodes;
    s.clients = s.clients < nodes ? s.clients : nodes;
    if (s.rack == rdzv_rack_of(setup->nodes))
        s.rack = rdzv_rack_of(run);
    if (s.rack > run / 2)
        s.rack = run / 2;
    return s;
}

/* No child process is left, which a signal that ends this one would orphan. */
static enum dpt_status allow_signals(struct dpt_err *err)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    const struct sigaction action = {.sa_handler = SIG_DFL};
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
        if (sigaction(signals[i], &action, NULL) != 0)
            return dpt_fail_errno(err, errno, "reset signal %d", signals[i]);
    return DPT_OK;
}

enum dpt_status rdzv_model(const struct rdzv_setup *setup, int nodes,
                           enum dpt_status (*measure)(const struct rdzv_setup *setup,
                                                      struct rdzv_figures *ret,
                                                      struct dpt_err *err),
                           json_t **ret_report, struct dpt_err *err)
{
    const int quarter = setup->nodes / SMALLER;
    const struct rdzv_setup small = resized(setup, quarter > NODES_MIN ? quarter : NODES_MIN),
                            large = resized(setup, nodes);
    struct rdzv_figures measured_small, measured, checked, model;
    struct rdzv_costs costs_small, costs;
    DPT_TRY(measure(&small, &measured_small, err));
    (void)putchar('\n');
    DPT_TRY(measure(setup, &measured, err));
    DPT_TRY(allow_signals(err));
    DPT_TRY(find_costs(&measured_small, &costs_small, err));
    costs_small = costs_for(&costs_small, setup, true);
    DPT_TRY(compute(setup, &costs_small, &checked, err));
    print_check(&checked, &measured, small.nodes);
    DPT_TRY(find_costs(&measured, &costs, err));
    costs = costs_for(&costs, &large, false);
    print_costs(&costs, setup->nodes);
    DPT_TRY(compute(&large, &costs, &model, err));
    print_model(&model, &costs);
    *ret_report = json_pack(
        "{s:s, s:o, s:f, s:i, s:o, s:[o, o], s:o, s:o}", "bench", "rdzv", "model",
        rdzv_figures_json(&model), "heartbeat_cores", rdzv_beat_cores(&costs.steady), "runs",
        rdzv_crowd_runs(nodes, setup->ranks), "checked", rdzv_figures_json(&checked), "measured",
        rdzv_figures_json(&measured_small), rdzv_figures_json(&measured), "errors_percent",
        errors_json(&checked, &measured), "unit_costs", costs_json(&costs));
    return DPT_OK;
}
