/* Every period and deadline of the control plane. They derive from cluster.timeout_s and, for
 * leaving, from cluster.drain_s. Server and worker log them when a run begins. docs/membership.md
 * has the table. */
#ifndef DPT_RENDEZVOUS_CORE_TIMING_H
#define DPT_RENDEZVOUS_CORE_TIMING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* "a -> b": b follows this time after a. */
struct dpt_timing {
    int64_t timeout_ms;
    int64_t heartbeat_ms; /* period of whole states: rank to agent and back; agent to server, unless
                             many nodes make it longer (dpt_timing_beat_ms) */
    int64_t grace_ms;     /* broken control connection -> the node is suspect */
    int64_t lease_ms;     /* silence -> lost: a node at the server, a rank at its agent */
    int64_t write_ms;     /* how far ahead an agent lets ranks write files (lease_until_ms) */
    int64_t gap_ms;       /* an event later than its deadline by this: this process was suspended */
    int64_t last_call_ms; /* enough nodes -> first formation */
    int64_t quiesce_ms;   /* PREPARE(hard) -> a rank that has not reported is lost */
    int64_t stall_ms;     /* no step -> stall; 10 x the median step if that is longer */
    int64_t busy_ms;     /* no step -> stall, while a rank saves or evaluates, and while DRAINING */
    int64_t join_ms;     /* agent: no server heard at start -> exit 3 */
    int64_t drain_ms;    /* a node leaves -> lost if it has not drained */
    int64_t boundary_ms; /* a node leaves -> the step in flight is given up */
    int64_t exit_ms;     /* asked to exit -> killed */
    int64_t respawn_ms; /* first pause before a dead rank is started again; each next one doubles */
    int64_t respawn_max_ms; /* longest pause before a dead rank is started again */
    int64_t exclude_ms;     /* a node that peers could not reach twice is excluded this long */
    int64_t forget_ms;      /* a finished run is remembered at most this long for late agents */
};

/* timeout_ms is clamped to DPT_PROTO_TIMEOUT_MS_MIN … _MAX, drain_ms (0: the default) to
 * DPT_PROTO_DRAIN_MS_MIN … _MAX. */
struct dpt_timing dpt_timing_from(int64_t timeout_ms, int64_t drain_ms);

/* The pause between two messages of an agent to a server of `n_nodes` nodes, in all of its runs. It
 * is heartbeat_ms for a few nodes. Then it grows with the number of nodes, so that about
 * DPT_TIMING_BEATS_A_SECOND messages arrive in a second: with keys each takes the server some 80 us
 * of CPU time, nearly all of it in sockets, so all of them take a sixth of a core. `overload`
 * doubles the pause that often. Two messages are 1.5 pauses apart at most, as a report may take the
 * place of a heartbeat, and two answers less than two pauses. So the pause is at most a quarter of
 * the lease, and an eighth of the drain time: a node that leaves takes a server for dead that has
 * been silent for a quarter of that time. */
enum { DPT_TIMING_BEATS_A_SECOND = 2000 };
int64_t dpt_timing_beat_ms(const struct dpt_timing *timing, uint32_t n_nodes, unsigned overload);

/* The shortest timeout_ms and drain_ms, in whole seconds, with which `n_nodes` nodes send no more
 * than DPT_TIMING_BEATS_A_SECOND messages. */
void dpt_timing_for_nodes(uint32_t n_nodes, int64_t *ret_timeout_ms, int64_t *ret_drain_ms);

/* True: the lease or the drain time is so short that `n_nodes` nodes must send more than
 * DPT_TIMING_BEATS_A_SECOND messages; the text says which settings are long enough. */
bool dpt_timing_is_too_short(const struct dpt_timing *timing, uint32_t n_nodes, char *ret_text,
                             size_t text_bytes);

/* One line for the log: "timeout 5000 ms: heartbeat 100, …". */
void dpt_timing_print(const struct dpt_timing *timing, char *ret_text, size_t text_bytes);

#endif
