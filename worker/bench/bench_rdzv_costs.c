/* The arithmetic of dpt-bench rdzv --model (bench_rdzv_costs.h). */
#include "worker/bench/bench_rdzv_costs.h"

#include "base/median.h"
#include "rendezvous/core/timing.h"

#include <math.h>

enum { CHANGES_OF_FORMATION = 4, ROUNDS = 4 };

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

/* CPU of the server for a message of a node and its answer. */
static double us_of_message(const struct rdzv_steady *steady)
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

/* Of a core, over the phases together, in the time in which the server did not wait for a deadline.
 * In the core's run the time beside the work is such waits. */
static double share_of(const struct rdzv_figures *measured, const struct rdzv_figures *core)
{
    double cpu_ms = 0, busy_ms = 0;
    for (int i = 0; i < RDZV_PHASES; i++) {
        const struct rdzv_phase *phase = &measured->phases[i], *alone = &core->phases[i];
        const double waited_ms = not_below_0(alone->ms.max - alone->server_cpu_ms);
        const double ms = phase->ms.max - waited_ms;
        cpu_ms += phase->server_cpu_ms;
        busy_ms += ms > phase->server_cpu_ms ? ms : phase->server_cpu_ms;
    }
    return busy_ms > 0 ? cpu_ms / busy_ms : 1;
}

static struct rdzv_pace steady_pace(const struct rdzv_steady *measured,
                                    const struct rdzv_steady *core)
{
    const double sent = (double)measured->counts.sent, back = (double)measured->counts.received;
    const double us = us_of_message(measured), ways = sent > 0 ? (sent + back) / sent : 1;
    return (struct rdzv_pace){
        .socket_us = not_below_0(us - us_of_message(core)) / ways,
        .beat_us = us,
        .beat_bytes = sent > 0 ? (double)measured->counts.sent_bytes / sent : 0,
        .beat_back_bytes = back > 0 ? (double)measured->counts.received_bytes / back : 0,
        .share = 1};
}

struct rdzv_costs rdzv_costs_of(const struct rdzv_figures *measured,
                                const struct rdzv_figures *core)
{
    const double core_beat_us = us_of_message(&core->steady), nodes = measured->setup.nodes;
    const double base_bytes = (double)measured->base_bytes, share = share_of(measured, core);
    struct rdzv_costs costs = {
        .habits = rdzv_habits_of(measured),
        .steady = steady_pace(&measured->steady, &core->steady),
        .base_bytes = base_bytes,
        .peak_bytes = not_below_0((double)measured->peak_bytes - base_bytes) / nodes,
        .steady_bytes = not_below_0((double)measured->resident_bytes - base_bytes) / nodes};
    for (int i = 0; i < RDZV_PHASES; i++) {
        const struct rdzv_phase *phase = &measured->phases[i];
        const double rest = rest_us(phase, &core->phases[i], core_beat_us);
        costs.phases[i] = costs.steady;
        costs.phases[i].share = share;
        costs.phases[i].socket_us = rest / both_ways(&phase->counts); /* no phase is silent */
    }
    /* A connection costs what is left of the cold connect after messages as those of the steady
     * state. */
    const struct rdzv_phase *connect = &measured->phases[RDZV_PHASE_CONNECT];
    const double rest = rest_us(connect, &core->phases[RDZV_PHASE_CONNECT], core_beat_us);
    const double messages_us = both_ways(&connect->counts) * costs.steady.socket_us;
    const double handshake_us = not_below_0(rest - messages_us) / connect->nodes;
    costs.phases[RDZV_PHASE_CONNECT].socket_us = costs.steady.socket_us;
    for (int i = 0; i < RDZV_PHASES; i++)
        costs.phases[i].handshake_us = handshake_us;
    return costs;
}

/* ---- time ---- */

double rdzv_beat_cores(const struct rdzv_pace *pace)
{
    return 1e-6 * pace->beats_a_second * pace->beat_us;
}

double rdzv_elapsed_us(const struct rdzv_pace *pace, double work_us, double here)
{
    const double left = pace->share - here * rdzv_beat_cores(pace);
    DPT_ASSERT(left > 0);
    return work_us / left;
}

double rdzv_beats_a_second(int64_t timeout_ms, int nodes)
{
    const struct dpt_timing timing = dpt_timing_from(timeout_ms, 0);
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
