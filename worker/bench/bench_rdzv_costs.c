/* The arithmetic of dpt-bench rdzv --model (bench_rdzv_costs.h). */
#include "worker/bench/bench_rdzv_costs.h"

#include "base/median.h"
#include "rendezvous/core/timing.h"
#include "rendezvous/proto/message.h"

#include <math.h>

enum { CHANGES_OF_FORMATION = 4, ROUNDS = 4, TIMEOUT_MS = 5000 };

/* ---- unit costs ---- */

static int news_of_node(const struct rdzv_phase *phase, int changes)
{
    const double news = (double)phase->counts.sent - (double)phase->counts.beats;
    const long n = lround(news / phase->nodes / changes);
    return n > 1 ? (int)n : 1;
}

struct rdzv_habits rdzv_habits_of(const struct rdzv_figures *measured)
{
    return (struct rdzv_habits){
        .hellos = news_of_node(&measured->phases[RDZV_PHASE_CONNECT], 1),
        .reports = news_of_node(&measured->phases[RDZV_PHASE_FORMATION], CHANGES_OF_FORMATION)};
}

static double not_below_0(double value)
{
    return value > 0 ? value : 0;
}

double rdzv_us_of_message(const struct rdzv_steady *steady)
{
    return steady->counts.sent > 0
               ? 1e4 * steady->server_cpu_percent * steady->seconds / (double)steady->counts.sent
               : 0;
}

static double both_ways(const struct rdzv_counts *counts)
{
    return (double)counts->sent + (double)counts->received;
}

/* The part of the measured CPU time that is neither core nor codec. The core's run has fewer
 * heartbeats than the measured one. */
static double rest_us(const struct rdzv_phase *measured, const struct rdzv_phase *core,
                      double core_beat_us)
{
    const double beats = not_below_0((double)measured->counts.sent - (double)core->counts.sent);
    return not_below_0(1e3 * (measured->server_cpu_ms - core->server_cpu_ms) -
                       beats * core_beat_us);
}

static struct rdzv_pace steady_pace(const struct rdzv_steady *measured,
                                    const struct rdzv_steady *core)
{
    const double sent = (double)measured->counts.sent, back = (double)measured->counts.received;
    const double us = rdzv_us_of_message(measured), ways = sent > 0 ? (sent + back) / sent : 1;
    return (struct rdzv_pace){
        .socket_us = not_below_0(us - rdzv_us_of_message(core)) / ways,
        .beat_us = us,
        .beat_bytes = sent > 0 ? (double)measured->counts.sent_bytes / sent : 0,
        .beat_back_bytes = back > 0 ? (double)measured->counts.received_bytes / back : 0};
}

/* A busy server reads several messages at each wake-up, so a heartbeat in a phase costs as much as
 * the other messages of the phase, which is less than in the steady state. */
static void set_socket_us(struct rdzv_pace *pace, double socket_us, double core_beat_us)
{
    pace->socket_us = socket_us;
    pace->beat_us = core_beat_us + 2 * socket_us;
}

struct rdzv_costs rdzv_costs_of(const struct rdzv_figures *measured,
                                const struct rdzv_figures *core)
{
    const double core_beat_us = rdzv_us_of_message(&core->steady), nodes = measured->setup.nodes;
    const double base_bytes = (double)measured->base_bytes;
    struct rdzv_costs costs = {
        .habits = rdzv_habits_of(measured),
        .steady = steady_pace(&measured->steady, &core->steady),
        .base_bytes = base_bytes,
        .peak_bytes =
            not_below_0((double)(measured->peak_bytes - core->peak_bytes) - base_bytes) / nodes,
        .steady_bytes =
            not_below_0((double)(measured->resident_bytes - core->resident_bytes) - base_bytes) /
            nodes};
    for (int i = 0; i < RDZV_PHASES; i++) {
        const struct rdzv_phase *phase = &measured->phases[i];
        const double rest = rest_us(phase, &core->phases[i], core_beat_us);
        costs.phases[i] = costs.steady;
        set_socket_us(&costs.phases[i], rest / both_ways(&phase->counts), /* no phase is silent */
                      core_beat_us);
    }
    /* A connection costs what is left of the cold connect after messages as those of the formation:
     * in both all nodes speak at once. */
    const struct rdzv_phase *connect = &measured->phases[RDZV_PHASE_CONNECT];
    const double rest = rest_us(connect, &core->phases[RDZV_PHASE_CONNECT], core_beat_us);
    const double socket_us = costs.phases[RDZV_PHASE_FORMATION].socket_us;
    const double handshake_us =
        not_below_0(rest - both_ways(&connect->counts) * socket_us) / connect->nodes;
    set_socket_us(&costs.phases[RDZV_PHASE_CONNECT], socket_us, core_beat_us);
    for (int i = 0; i < RDZV_PHASES; i++)
        costs.phases[i].handshake_us = handshake_us;
    return costs;
}

/* ---- the check ---- */

void rdzv_add_beats(struct rdzv_phase *phase, const struct rdzv_pace *pace, double n)
{
    struct rdzv_counts *counts = &phase->counts;
    counts->beats += (uint64_t)n;
    counts->sent += (uint64_t)n;
    counts->received += (uint64_t)n;
    counts->sent_bytes += (uint64_t)(n * pace->beat_bytes);
    counts->received_bytes += (uint64_t)(n * pace->beat_back_bytes);
    phase->server_cpu_ms += 1e-3 * n * pace->beat_us;
}

static double cpu_of(const struct rdzv_figures *figures, int phase)
{
    return phase == RDZV_PHASES ? rdzv_us_of_message(&figures->steady)
                                : figures->phases[phase].server_cpu_ms;
}

double rdzv_cpu_error(const struct rdzv_figures *model, const struct rdzv_figures *measured,
                      int phase)
{
    return rdzv_error_percent(cpu_of(model, phase), cpu_of(measured, phase));
}

/* ---- several runs ---- */

/* The run with the median CPU time: the lower one of two. */
static const struct rdzv_figures *median_run(const struct rdzv_figures *runs, int n, int phase)
{
    for (int i = 0; i < n; i++) {
        int below = 0, equal = 0;
        for (int k = 0; k < n; k++) {
            below += cpu_of(&runs[k], phase) < cpu_of(&runs[i], phase);
            equal += cpu_of(&runs[k], phase) == cpu_of(&runs[i], phase);
        }
        if (below <= (n - 1) / 2 && below + equal > (n - 1) / 2)
            return &runs[i];
    }
    DPT_ASSERT(false); /* n > 0, and no time is NaN */
    return runs;
}

struct rdzv_figures rdzv_median_of(const struct rdzv_figures *runs, int n)
{
    struct rdzv_figures median = runs[0];
    double peak[RDZV_REPEATS_MAX], resident[RDZV_REPEATS_MAX], base[RDZV_REPEATS_MAX];
    for (int i = 0; i < n; i++) {
        peak[i] = (double)runs[i].peak_bytes;
        resident[i] = (double)runs[i].resident_bytes;
        base[i] = (double)runs[i].base_bytes;
    }
    median.peak_bytes = (int64_t)dpt_median(peak, n);
    median.resident_bytes = (int64_t)dpt_median(resident, n);
    median.base_bytes = (int64_t)dpt_median(base, n);
    for (int i = 0; i < RDZV_PHASES; i++)
        median.phases[i] = median_run(runs, n, i)->phases[i];
    median.steady = median_run(runs, n, RDZV_PHASES)->steady;
    return median;
}

double rdzv_spread_percent(const struct rdzv_figures *runs, int n, int phase)
{
    double least = cpu_of(&runs[0], phase), most = least;
    for (int i = 1; i < n; i++) {
        const double cpu = cpu_of(&runs[i], phase);
        least = cpu < least ? cpu : least;
        most = cpu > most ? cpu : most;
    }
    const double median = cpu_of(median_run(runs, n, phase), phase);
    return median > 0 ? 100 * (most - least) / median : 0;
}

/* ---- time ---- */

double rdzv_beat_cores(const struct rdzv_pace *pace)
{
    return 1e-6 * pace->beats_a_second * pace->beat_us;
}

double rdzv_elapsed_us(const struct rdzv_pace *pace, double work_us, double here)
{
    const double left = 1 - here * rdzv_beat_cores(pace);
    DPT_ASSERT(left > 0);
    return work_us / left;
}

void rdzv_set_timing(struct rdzv_setup *setup)
{
    int64_t timeout_ms, drain_ms;
    dpt_timing_for_nodes((uint32_t)setup->nodes, &timeout_ms, &drain_ms);
    setup->timeout_ms = timeout_ms > TIMEOUT_MS ? timeout_ms : TIMEOUT_MS;
    setup->drain_ms = drain_ms > DPT_PROTO_DRAIN_MS_DEFAULT ? drain_ms : DPT_PROTO_DRAIN_MS_DEFAULT;
}

double rdzv_beats_a_second(int64_t timeout_ms, int64_t drain_ms, int nodes)
{
    const struct dpt_timing timing = dpt_timing_from(timeout_ms, drain_ms);
    const int64_t pause_ms = dpt_timing_beat_ms(&timing, (uint32_t)nodes, 0);
    const int64_t ticks =
        (pause_ms - 1) / timing.heartbeat_ms; /* (pause - heartbeat), rounded up */
    return 1000.0 * nodes / (double)(timing.heartbeat_ms * (ticks > 1 ? ticks : 1));
}

/* A random number from 0 to 1 for each i (splitmix64). */
static double scattered(uint64_t i)
{
    uint64_t x = (i + 1) * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (double)((x ^ (x >> 31)) >> 11) * 0x1p-53;
}

/* One queue, first come, first served. The same moments come again in each period; after some
 * periods the waits no longer change. */
struct rdzv_times rdzv_answer_times(int n, double period_us, double service_us, double *values)
{
    if (n == 0 || n * service_us >= period_us)
        return (struct rdzv_times){0};
    for (int i = 0; i < n; i++)
        values[i] = period_us * scattered((uint64_t)i);
    dpt_sort_doubles(values, n);
    double free_us = 0; /* when the server is free, in this period */
    for (int round = 0; round < ROUNDS; round++) {
        const bool is_last = round == ROUNDS - 1;
        free_us = round > 0 ? free_us - period_us : 0;
        for (int i = 0; i < n; i++) {
            const double begin_us = values[i] > free_us ? values[i] : free_us;
            free_us = begin_us + service_us;
            if (is_last)
                values[i] = 1e-3 * (free_us - values[i]);
        }
    }
    return rdzv_times_of(values, n);
}
