/* Every period and deadline of the control plane, derived in one place from the one timeout
 * (cluster.timeout_s), but for how long a node takes to leave (cluster.drain_s). Never set one by
 * one; printed at start by both programs. docs/membership.md has the table. */
#ifndef DPT_RENDEZVOUS_CORE_TIMING_H
#define DPT_RENDEZVOUS_CORE_TIMING_H

#include <stddef.h>
#include <stdint.h>

/* All in milliseconds. */
struct dpt_timing {
    int64_t timeout_ms; /* cluster.timeout_s */
    int64_t
        heartbeat_ms; /* agent -> server, rank <-> agent: whole state this often, at most a tenth */
    int64_t grace_ms; /* broken control connection -> the node is suspect, unless it came back */
    int64_t lease_ms; /* silence -> lost: node at the server, rank process at its agent */
    int64_t write_ms; /* how far ahead of now a rank may write files (lease_until_ms) */
    int64_t gap_ms;   /* an own loop late by more than this was stopped */
    int64_t last_call_ms; /* enough nodes -> first formation */
    int64_t quiesce_ms;   /* PREPARE(hard) -> every rank has reported, else it is lost */
    int64_t
        stall_ms; /* least time without progress that counts as a stall (or 10 x the median step) */
    int64_t busy_ms;        /* the same while a rank says that it is saving or evaluating */
    int64_t join_ms;        /* agent: no server heard at start -> exit 3 */
    int64_t drain_ms;       /* leaving node: what has not drained by then is a loss */
    int64_t boundary_ms;    /* ... and so long the others finish the step in flight for it */
    int64_t exit_ms;        /* asked to exit -> killed */
    int64_t respawn_ms;     /* first pause before a dead rank is started again; doubles ... */
    int64_t respawn_max_ms; /* ... up to this */
    int64_t bench_ms;  /* node that failed two formations running with the same peer: sits out */
    int64_t forget_ms; /* a finished run's name is kept at most this long for late hearers */
};

/* Pure. timeout_ms is clamped to DPT_PROTO_TIMEOUT_MS_MIN … _MAX. A node takes
 * DPT_PROTO_DRAIN_MS_DEFAULT to leave. */
struct dpt_timing dpt_timing_from(int64_t timeout_ms);

/* The timing of a run: the same with its drain_ms, clamped to DPT_PROTO_DRAIN_MS_MIN … _MAX; 0 is
 * the default. */
struct dpt_timing dpt_timing_of_run(int64_t timeout_ms, int64_t drain_ms);

/* One line for the log: "timeout 5000 ms: heartbeat 100, …". */
void dpt_timing_print(const struct dpt_timing *timing, char *ret_text, size_t text_bytes);

#endif
