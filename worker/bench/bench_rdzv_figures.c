/* The figures of dpt-bench rdzv (bench_rdzv_figures.h). */
#include "worker/bench/bench_rdzv_figures.h"

#include "base/median.h"
#include "worker/bench/bench.h"

#include <stdio.h>

static double value_at(const double *sorted, int n, int percent)
{
    const int64_t place = ((int64_t)n * percent + 99) / 100; /* rounded up */
    return sorted[place > 0 ? place - 1 : 0];
}

struct rdzv_times rdzv_times_of(double *values, int n)
{
    if (n == 0)
        return (struct rdzv_times){0};
    dpt_sort_doubles(values, n);
    return (struct rdzv_times){
        .p50 = value_at(values, n, 50), .p99 = value_at(values, n, 99), .max = values[n - 1]};
}

/* ---- text ---- */

const char *rdzv_phase_name(enum rdzv_phase_index phase)
{
    static const char *const names[RDZV_PHASES] = {[RDZV_PHASE_CONNECT] = "cold connect",
                                                   [RDZV_PHASE_FORMATION] = "formation",
                                                   [RDZV_PHASE_LOSS] = "loss of one",
                                                   [RDZV_PHASE_JOIN] = "join",
                                                   [RDZV_PHASE_RACK] = "loss of a rack"};
    return names[phase];
}

void rdzv_figures_print_head(const struct rdzv_setup *setup)
{
    (void)printf("# %d nodes of %d ranks in %d client processes on this machine, one dpt-rdzv %s, "
                 "cluster.timeout_s %g, drain_s %g\n"
                 "# Times in ms from the begin of a phase, over the nodes. Server: its CPU time. "
                 "Messages without headers.\n",
                 setup->nodes, setup->ranks, setup->clients,
                 setup->open ? "without keys" : "with keys", (double)setup->timeout_ms / 1000,
                 (double)setup->drain_ms / 1000);
    rdzv_figures_print_columns();
}

void rdzv_figures_print_columns(void)
{
    (void)printf("%-16s %6s %6s %5s %9s %9s %9s %9s %9s %9s %9s %9s\n", "phase", "nodes", "world",
                 "gens", "p50", "p99", "max", "server", "to it", "MB", "from it", "MB");
    (void)fflush(stdout);
}

void rdzv_figures_print_phase(const struct rdzv_phase *p)
{
    const struct rdzv_counts *c = &p->counts;
    (void)printf("%-16s %6d %6u %5d %9.1f %9.1f %9.1f %9.1f %9llu %9.3f %9llu %9.3f\n", p->name,
                 p->nodes, p->world, p->generations, p->ms.p50, p->ms.p99, p->ms.max,
                 p->server_cpu_ms, (unsigned long long)c->sent, (double)c->sent_bytes * 1e-6,
                 (unsigned long long)c->received, (double)c->received_bytes * 1e-6);
    (void)fflush(stdout);
}

void rdzv_figures_print_rest(const struct rdzv_figures *figures)
{
    const struct rdzv_steady *s = &figures->steady;
    const double per_message =
        s->counts.sent > 0 ? 1e4 * s->server_cpu_percent * s->seconds / (double)s->counts.sent : 0;
    (void)printf(
        "\nsteady state over %.1f s: the server uses %.2f %% of a core, %.1f us for a "
        "message of a node\n"
        "  to it %.0f messages/s, %.3f MB/s; from it %.0f messages/s, %.3f MB/s\n"
        "  an answer takes p50 %.3f, p99 %.3f, max %.3f ms (%d answers)\n"
        "server memory: %.1f MiB while steady, %.1f MiB at most\n",
        s->seconds, s->server_cpu_percent, per_message, (double)s->counts.sent / s->seconds,
        (double)s->counts.sent_bytes * 1e-6 / s->seconds, (double)s->counts.received / s->seconds,
        (double)s->counts.received_bytes * 1e-6 / s->seconds, s->answer_ms.p50, s->answer_ms.p99,
        s->answer_ms.max, s->answers, (double)figures->resident_bytes / (1 << 20),
        (double)figures->peak_bytes / (1 << 20));
}

double rdzv_error_percent(double model, double measured)
{
    if (measured == 0)
        return model == 0 ? 0 : 100;
    return 100 * (model - measured) / measured;
}

void rdzv_figures_print_errors(const struct rdzv_figures *model,
                               const struct rdzv_figures *measured)
{
    for (int i = 0; i < RDZV_PHASES; i++) {
        const struct rdzv_phase *a = &model->phases[i], *b = &measured->phases[i];
        const struct rdzv_counts *m = &a->counts, *r = &b->counts;
        (void)printf("%-16s %6s %6s %5d %9s %9s %9s %+8.0f%% %+8.0f%% %+8.0f%% %+8.0f%% %+8.0f%%\n",
                     a->name, "", "", a->generations - b->generations, "", "", "",
                     rdzv_error_percent(a->server_cpu_ms, b->server_cpu_ms),
                     rdzv_error_percent((double)m->sent, (double)r->sent),
                     rdzv_error_percent((double)m->sent_bytes, (double)r->sent_bytes),
                     rdzv_error_percent((double)m->received, (double)r->received),
                     rdzv_error_percent((double)m->received_bytes, (double)r->received_bytes));
    }
    (void)printf(
        "steady state: CPU %+.0f%%, messages to it %+.0f%%; server memory at most %+.0f%%\n",
        rdzv_error_percent(model->steady.server_cpu_percent, measured->steady.server_cpu_percent),
        rdzv_error_percent((double)model->steady.counts.sent / model->steady.seconds,
                           (double)measured->steady.counts.sent / measured->steady.seconds),
        rdzv_error_percent((double)model->peak_bytes, (double)measured->peak_bytes));
    (void)fflush(stdout);
}

/* ---- JSON ---- */

static json_t *times_json(const struct rdzv_times *times)
{
    return json_pack("{s:f, s:f, s:f}", "p50", times->p50, "p99", times->p99, "max", times->max);
}

static json_t *counts_json(const struct rdzv_counts *c)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I}", "to_server", (json_int_t)c->sent,
                     "to_server_bytes", (json_int_t)c->sent_bytes, "from_server",
                     (json_int_t)c->received, "from_server_bytes", (json_int_t)c->received_bytes,
                     "heartbeats", (json_int_t)c->beats);
}

static json_t *phase_json(const struct rdzv_phase *p)
{
    return json_pack("{s:s, s:i, s:I, s:i, s:o, s:f, s:o}", "phase", p->name, "nodes", p->nodes,
                     "world", (json_int_t)p->world, "generations", p->generations, "ms",
                     times_json(&p->ms), "server_cpu_ms", p->server_cpu_ms, "messages",
                     counts_json(&p->counts));
}

json_t *rdzv_figures_json(const struct rdzv_figures *figures)
{
    const struct rdzv_setup *setup = &figures->setup;
    const struct rdzv_steady *s = &figures->steady;
    json_t *phases = json_array();
    for (int i = 0; i < RDZV_PHASES; i++)
        (void)json_array_append_new(phases, phase_json(&figures->phases[i]));
    return json_pack(
        "{s:s, s:i, s:i, s:i, s:i, s:b, s:f, s:f, s:o, s:{s:f, s:f, s:o, s:i, s:o}, s:I, s:I}",
        "bench", "rdzv", "nodes", setup->nodes, "ranks_per_node", setup->ranks, "rack", setup->rack,
        "clients", setup->clients, "keys", !setup->open, "timeout_s",
        (double)setup->timeout_ms / 1000, "drain_s", (double)setup->drain_ms / 1000, "phases",
        phases, "steady", "seconds", s->seconds, "server_cpu_percent", s->server_cpu_percent,
        "answer_ms", times_json(&s->answer_ms), "answers", s->answers, "messages",
        counts_json(&s->counts), "server_peak_bytes", (json_int_t)figures->peak_bytes,
        "server_steady_bytes", (json_int_t)figures->resident_bytes);
}
