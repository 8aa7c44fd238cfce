/* dpt-bench rdzv --model (bench_rdzv_model.h). */
#include "worker/bench/bench_rdzv_model.h"

#include "rendezvous/proto/message.h"
#include "worker/bench/bench_rdzv_crowd.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

enum { SMALLER = 4, BEATS = 3, NODES_MIN = 2 };

/* What the text says of a heartbeat, which has an error and a spread as the phases have. */
static const char heartbeat_name[] = "heartbeat";

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
        .answer_ms = rdzv_answer_times(nodes, 1e6 * nodes / beats, us, values)};
}

/* A computation: of these nodes, with these costs. */
struct problem {
    const struct rdzv_setup *setup;
    const struct rdzv_costs *costs;
    const struct rdzv_figures *beats_of; /* a measured run: as many heartbeats come; NULL: as the
                                            computed time says */
    bool shows;                          /* prints each phase as soon as it is computed */
};

static enum dpt_status compute_phase(const struct problem *p, struct rdzv_crowd *crowd,
                                     enum rdzv_phase_index i, struct rdzv_phase *ret,
                                     struct dpt_err *err)
{
    const struct rdzv_command command = command_of(i, p->setup);
    const struct rdzv_pace *pace = &p->costs->phases[i];
    ret->name = rdzv_phase_name(i);
    const enum dpt_status status = rdzv_crowd_phase(crowd, &command, pace, ret, err);
    if (status != DPT_OK)
        return dpt_wrap(err, status, "%s", ret->name);
    if (p->beats_of != NULL)
        rdzv_add_beats(ret, pace, (double)p->beats_of->phases[i].counts.beats);
    if (p->shows)
        rdzv_figures_print_phase(ret);
    return DPT_OK;
}

static enum dpt_status compute_steady(const struct problem *p, struct rdzv_crowd *crowd,
                                      double *values, struct rdzv_figures *figures,
                                      struct dpt_err *err)
{
    double core_us = 0;
    int64_t peak_bytes = 0;
    for (int k = 0; k < BEATS; k++) {
        double us = 0;
        DPT_TRY(rdzv_crowd_beat(crowd, &us, err));
        core_us += us / BEATS;
    }
    figures->steady = steady_of(&p->costs->steady, core_us, p->setup->nodes, values);
    rdzv_crowd_memory(crowd, &figures->resident_bytes, &peak_bytes);
    return DPT_OK;
}

static enum dpt_status go_through(const struct problem *p, struct rdzv_crowd *crowd,
                                  struct rdzv_figures *figures, double *values, struct dpt_err *err)
{
    const struct rdzv_costs *costs = p->costs;
    int64_t now_bytes = 0;
    for (int i = 0; i < RDZV_PHASES; i++) {
        DPT_TRY(compute_phase(p, crowd, (enum rdzv_phase_index)i, &figures->phases[i], err));
        if (i == RDZV_PHASE_FORMATION)
            DPT_TRY(compute_steady(p, crowd, values, figures, err));
    }
    rdzv_crowd_memory(crowd, &now_bytes, &figures->peak_bytes);
    figures->base_bytes = (int64_t)costs->base_bytes;
    figures->resident_bytes += (int64_t)(costs->base_bytes + p->setup->nodes * costs->steady_bytes);
    figures->peak_bytes += (int64_t)(costs->base_bytes + p->setup->nodes * costs->peak_bytes);
    return DPT_OK;
}

static enum dpt_status compute(const struct problem *p, struct rdzv_figures *ret,
                               struct dpt_err *err)
{
    struct rdzv_crowd *crowd = NULL;
    *ret = (struct rdzv_figures){.setup = *p->setup};
    double *values = calloc((size_t)p->setup->nodes, sizeof *values);
    if (values == NULL)
        return dpt_fail_nomem(err, "times of %d nodes", p->setup->nodes);
    enum dpt_status status = rdzv_crowd_create(p->setup, &p->costs->habits, &crowd, err);
    if (status == DPT_OK)
        status = go_through(p, crowd, ret, values, err);
    rdzv_crowd_destroy(&crowd);
    free(values);
    return status;
}

/* The CPU time of core and codec is measured each time, so it has a median, too. */
static enum dpt_status compute_median(const struct problem *p, int repeats,
                                      struct rdzv_figures *ret, struct dpt_err *err)
{
    struct rdzv_figures runs[RDZV_REPEATS_MAX];
    for (int i = 0; i < repeats; i++)
        DPT_TRY(compute(p, &runs[i], err));
    *ret = rdzv_median_of(runs, repeats);
    return DPT_OK;
}

/* ---- costs ---- */

/* The costs of a run, with the heartbeats of `setup`. In a phase whose heartbeats would take a core
 * none come. */
static struct rdzv_costs costs_for(const struct rdzv_costs *costs, const struct rdzv_setup *setup)
{
    struct rdzv_costs c = *costs;
    const double beats = rdzv_beats_a_second(setup->timeout_ms, setup->drain_ms, setup->nodes);
    for (int i = 0; i < RDZV_PHASES; i++) {
        c.phases[i].beats_a_second = beats;
        if (rdzv_beat_cores(&c.phases[i]) >= 1)
            c.phases[i].beats_a_second = 0;
    }
    c.steady.beats_a_second = beats;
    return c;
}

static double measured_beats_a_second(const struct rdzv_figures *measured)
{
    return (double)measured->steady.counts.sent / measured->steady.seconds;
}

static enum dpt_status find_costs(const struct rdzv_figures *measured, int repeats,
                                  struct rdzv_costs *ret, struct dpt_err *err)
{
    struct rdzv_figures core;
    const struct rdzv_costs none = {.habits = rdzv_habits_of(measured),
                                    .steady.beats_a_second = measured_beats_a_second(measured)};
    const struct problem alone = {.setup = &measured->setup, .costs = &none};
    DPT_TRY(compute_median(&alone, repeats, &core, err));
    *ret = rdzv_costs_of(measured, &core);
    return DPT_OK;
}

/* ---- the check ---- */

/* Several runs of one setup, and their median. */
struct measured {
    struct rdzv_figures runs[RDZV_REPEATS_MAX], median;
    int n;
};

static enum dpt_status measure_runs(const struct rdzv_setup *setup,
                                    const struct rdzv_model_options *options, struct measured *ret,
                                    struct dpt_err *err)
{
    ret->n = options->repeats;
    for (int i = 0; i < ret->n; i++) {
        DPT_TRY(options->measure(setup, &ret->runs[i], err));
        (void)putchar('\n');
    }
    ret->median = rdzv_median_of(ret->runs, ret->n);
    return DPT_OK;
}

/* Computes the larger run with the costs of the smaller one. The heartbeats in a phase and in a
 * second are those that came: they depend on the time that the client processes took. */
static enum dpt_status compute_check(const struct measured *small, const struct measured *large,
                                     struct rdzv_figures *ret, struct dpt_err *err)
{
    struct rdzv_costs costs;
    DPT_TRY(find_costs(&small->median, small->n, &costs, err));
    for (int i = 0; i < RDZV_PHASES; i++)
        costs.phases[i].beats_a_second = 0;
    costs.steady.beats_a_second = measured_beats_a_second(&large->median);
    const struct problem check = {
        .setup = &large->median.setup, .costs = &costs, .beats_of = &large->median};
    return compute_median(&check, large->n, ret, err);
}

static const char *name_of(int phase)
{
    return phase == RDZV_PHASES ? heartbeat_name : rdzv_phase_name((enum rdzv_phase_index)phase);
}

/* DPT_EREFUSED: the model's CPU time of a phase, or of a heartbeat, is too far from the
 * measurement. */
static enum dpt_status judge_check(const struct rdzv_figures *checked, const struct measured *large,
                                   const struct rdzv_model_options *options, struct dpt_err *err)
{
    int worst = 0;
    for (int i = 1; i <= RDZV_PHASES; i++)
        if (fabs(rdzv_cpu_error(checked, &large->median, i)) >
            fabs(rdzv_cpu_error(checked, &large->median, worst)))
            worst = i;
    const double error = rdzv_cpu_error(checked, &large->median, worst);
    if (fabs(error) <= options->error_max_percent)
        return DPT_OK;
    return dpt_fail(
        err, DPT_EREFUSED,
        "the model of %d nodes is not computed: in its check with %d nodes the CPU time "
        "of '%s' is %.0f %% too %s, and %.0f %% is the most (--model-error). The "
        "%d measurements differ by %.0f %%. Other work on the machine spoils them: "
        "repeat it on an idle machine",
        options->nodes, checked->setup.nodes, name_of(worst), fabs(error),
        error > 0 ? "high" : "low", options->error_max_percent, large->n,
        rdzv_spread_percent(large->runs, large->n, worst));
}

/* ---- text ---- */

static void print_phases(const struct rdzv_figures *figures)
{
    rdzv_figures_print_columns();
    for (int i = 0; i < RDZV_PHASES; i++)
        rdzv_figures_print_phase(&figures->phases[i]);
    rdzv_figures_print_rest(figures);
}

static void print_check(const struct rdzv_figures *model, const struct measured *measured,
                        int from_nodes)
{
    (void)printf("# CHECK OF THE MODEL: %d nodes, computed from the costs of the runs of %d nodes, "
                 "with the heartbeats that came in the measured phases\n",
                 model->setup.nodes, from_nodes);
    print_phases(model);
    (void)printf("\n# ITS ERRORS: computed less measured, in percent of measured (medians of %d "
                 "runs); gens: their difference\n",
                 measured->n);
    rdzv_figures_print_columns();
    rdzv_figures_print_errors(model, &measured->median);
    (void)printf("# SPREAD of the measured CPU time, in percent of the median:");
    for (int i = 0; i <= RDZV_PHASES; i++)
        (void)printf(" %s %.0f%s", name_of(i), rdzv_spread_percent(measured->runs, measured->n, i),
                     i < RDZV_PHASES ? "," : "\n");
    (void)fflush(stdout);
}

static void print_costs(const struct rdzv_costs *costs, int from_nodes)
{
    (void)printf(
        "\n# UNIT COSTS of the runs of %d nodes, us of the server's CPU: a connection %.0f, "
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

static void print_model_head(const struct rdzv_setup *setup, const struct rdzv_costs *costs)
{
    const int runs = rdzv_crowd_runs(setup->nodes, setup->ranks);
    const double cores = rdzv_beat_cores(&costs->steady);
    (void)printf(
        "\n# MODEL, not measured: %d nodes of %d ranks %s, cluster.timeout_s %g. The server "
        "has a core of its own;\n"
        "# the network and the work of nodes take no time. Core and codec really run with all "
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
            "many nodes. Phases leave heartbeats out that would take a core.\n",
            cores);
    rdzv_figures_print_columns();
}

/* ---- JSON ---- */

static json_t *errors_json(const struct rdzv_figures *model, const struct rdzv_figures *measured)
{
    json_t *errors = json_object();
    for (int i = 0; i < RDZV_PHASES; i++) {
        const struct rdzv_phase *a = &model->phases[i], *b = &measured->phases[i];
        (void)json_object_set_new(
            errors, a->name,
            json_pack("{s:f, s:f}", "server_cpu_ms",
                      rdzv_error_percent(a->server_cpu_ms, b->server_cpu_ms), "to_server",
                      rdzv_error_percent((double)a->counts.sent, (double)b->counts.sent)));
    }
    (void)json_object_set_new(
        errors, heartbeat_name,
        json_pack("{s:f}", "server_cpu_ms", rdzv_cpu_error(model, measured, RDZV_PHASES)));
    return errors;
}

static json_t *spread_json(const struct measured *measured)
{
    json_t *spread = json_object();
    for (int i = 0; i <= RDZV_PHASES; i++)
        (void)json_object_set_new(spread, name_of(i),
                                  json_real(rdzv_spread_percent(measured->runs, measured->n, i)));
    return spread;
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

/* A timeout and a rack that were given stay, but a rack is at most half of the run. */
static struct rdzv_setup resized(const struct rdzv_setup *setup, int nodes)
{
    struct rdzv_setup s = *setup, usual = *setup;
    rdzv_set_timing(&usual);
    const int run = rdzv_crowd_first_run(nodes, setup->ranks);
    s.nodes = nodes;
    if (s.timeout_ms == usual.timeout_ms)
        rdzv_set_timing(&s);
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

enum dpt_status rdzv_model(const struct rdzv_setup *setup, const struct rdzv_model_options *options,
                           json_t **ret_report, struct dpt_err *err)
{
    const int quarter = setup->nodes / SMALLER;
    const struct rdzv_setup small = resized(setup, quarter > NODES_MIN ? quarter : NODES_MIN),
                            large = resized(setup, options->nodes);
    struct measured of_small, of_all;
    struct rdzv_figures checked, model;
    struct rdzv_costs costs;
    DPT_TRY(measure_runs(&small, options, &of_small, err));
    DPT_TRY(measure_runs(setup, options, &of_all, err));
    DPT_TRY(allow_signals(err));
    DPT_TRY(compute_check(&of_small, &of_all, &checked, err));
    print_check(&checked, &of_all, small.nodes);
    DPT_TRY(judge_check(&checked, &of_all, options, err));
    DPT_TRY(find_costs(&of_all.median, of_all.n, &costs, err));
    costs = costs_for(&costs, &large);
    print_costs(&costs, setup->nodes);
    print_model_head(&large, &costs);
    const struct problem problem = {.setup = &large, .costs = &costs, .shows = true};
    DPT_TRY(compute(&problem, &model, err));
    rdzv_figures_print_rest(&model);
    *ret_report = json_pack(
        "{s:s, s:o, s:f, s:i, s:o, s:[o, o], s:o, s:o, s:o}", "bench", "rdzv", "model",
        rdzv_figures_json(&model), "heartbeat_cores", rdzv_beat_cores(&costs.steady), "runs",
        rdzv_crowd_runs(large.nodes, large.ranks), "checked", rdzv_figures_json(&checked),
        "measured", rdzv_figures_json(&of_small.median), rdzv_figures_json(&of_all.median),
        "errors_percent", errors_json(&checked, &of_all.median), "spread_percent",
        spread_json(&of_all), "unit_costs", costs_json(&costs));
    return DPT_OK;
}
