/* Derives every period and deadline from one timeout. */
#include "rendezvous/core/timing.h"

#include "rendezvous/proto/message.h"

#include <stdio.h>

static int64_t clamp_ms(int64_t value, int64_t low, int64_t high)
{
    return value < low ? low : value > high ? high : value;
}

struct dpt_timing dpt_timing_from(int64_t timeout_ms, int64_t drain_ms)
{
    const int64_t t = clamp_ms(timeout_ms, DPT_PROTO_TIMEOUT_MS_MIN, DPT_PROTO_TIMEOUT_MS_MAX);
    const int64_t drain = clamp_ms(drain_ms != 0 ? drain_ms : DPT_PROTO_DRAIN_MS_DEFAULT,
                                   DPT_PROTO_DRAIN_MS_MIN, DPT_PROTO_DRAIN_MS_MAX);
    return (struct dpt_timing){
        .timeout_ms = t,
        .heartbeat_ms = clamp_ms(t / 50, 10, 200),
        .grace_ms = clamp_ms(t / 8, 10, 250),
        /* Shorter than the timeout by the time that messages need, so that a loss is noticed within
         * the timeout. */
        .lease_ms = t - t / 10,
        /* write_ms + gap_ms < lease_ms (docs/membership.md, "Write permission") */
        .write_ms = t / 4,
        .gap_ms = t / 10,
        .last_call_ms = t / 5,
        .quiesce_ms = t,
        .stall_ms = t,
        .busy_ms = 60 * t,
        .join_ms = 12 * t,
        .drain_ms = drain,
        .boundary_ms = drain / 2,
        .exit_ms = clamp_ms(t / 5, 50, 1000),
        .respawn_ms = clamp_ms(t / 50, 10, 200),
        .respawn_max_ms = t,
        .exclude_ms = 6 * t,
        .forget_ms = 2 * t,
    };
}

/* The pause at which n_nodes nodes send DPT_TIMING_BEATS_A_SECOND messages. */
static int64_t even_pause_ms(uint32_t n_nodes)
{
    return (int64_t)n_nodes * 1000 / DPT_TIMING_BEATS_A_SECOND;
}

static int64_t longest_pause_ms(const struct dpt_timing *timing)
{
    const int64_t by_lease_ms = timing->lease_ms / 4, by_drain_ms = timing->drain_ms / 8;
    return by_lease_ms < by_drain_ms ? by_lease_ms : by_drain_ms;
}

int64_t dpt_timing_beat_ms(const struct dpt_timing *timing, uint32_t n_nodes, unsigned overload)
{
    const int64_t even_ms = even_pause_ms(n_nodes);
    const int64_t base_ms = even_ms > timing->heartbeat_ms ? even_ms : timing->heartbeat_ms;
    const int64_t most_ms = longest_pause_ms(timing);
    const unsigned shift = overload < 16 ? overload : 16;
    return base_ms << shift < most_ms       ? base_ms << shift
           : most_ms > timing->heartbeat_ms ? most_ms
                                            : timing->heartbeat_ms;
}

static int64_t round_up_to_seconds(int64_t ms)
{
    return (ms + 999) / 1000 * 1000;
}

void dpt_timing_for_nodes(uint32_t n_nodes, int64_t *ret_timeout_ms, int64_t *ret_drain_ms)
{
    const int64_t even_ms = even_pause_ms(n_nodes);
    *ret_timeout_ms = round_up_to_seconds(4 * even_ms * 10 / 9); /* a lease: 9/10 of the timeout */
    *ret_drain_ms = round_up_to_seconds(8 * even_ms);
}

bool dpt_timing_is_too_short(const struct dpt_timing *timing, uint32_t n_nodes, char *ret_text,
                             size_t text_bytes)
{
    int64_t timeout_ms, drain_ms;
    if (longest_pause_ms(timing) >= even_pause_ms(n_nodes))
        return false;
    dpt_timing_for_nodes(n_nodes, &timeout_ms, &drain_ms);
    (void)snprintf(ret_text, text_bytes,
                   "%u nodes send %lld heartbeats a second. cluster.timeout_s of %lld and "
                   "cluster.drain_s of %lld, or more, make it %d",
                   n_nodes, (long long)n_nodes * 1000 / dpt_timing_beat_ms(timing, n_nodes, 0),
                   (long long)timeout_ms / 1000, (long long)drain_ms / 1000,
                   DPT_TIMING_BEATS_A_SECOND);
    return true;
}

void dpt_timing_print(const struct dpt_timing *timing, char *ret_text, size_t text_bytes)
{
    (void)snprintf(
        ret_text, text_bytes,
        "timeout %lld ms: heartbeat %lld, grace %lld, lease %lld, write %lld, gap %lld, "
        "last call %lld, quiesce %lld, stall %lld, busy %lld, join %lld, drain %lld, boundary "
        "%lld, exit %lld, respawn %lld to %lld, exclude %lld, forget %lld",
        (long long)timing->timeout_ms, (long long)timing->heartbeat_ms, (long long)timing->grace_ms,
        (long long)timing->lease_ms, (long long)timing->write_ms, (long long)timing->gap_ms,
        (long long)timing->last_call_ms, (long long)timing->quiesce_ms, (long long)timing->stall_ms,
        (long long)timing->busy_ms, (long long)timing->join_ms, (long long)timing->drain_ms,
        (long long)timing->boundary_ms, (long long)timing->exit_ms, (long long)timing->respawn_ms,
        (long long)timing->respawn_max_ms, (long long)timing->exclude_ms,
        (long long)timing->forget_ms);
}
