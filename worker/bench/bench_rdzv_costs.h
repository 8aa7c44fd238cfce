/* The arithmetic of dpt-bench rdzv --model: unit costs of the server from a measured run, and what
 * they make of other numbers of nodes. Pure.
 *
 * The server's CPU time of a phase is that of its state machine and the codec, which the model runs
 * (bench_rdzv_crowd.h), and that of sockets and journal, which is a unit cost times the counted
 * messages. */
#ifndef DPT_WORKER_BENCH_BENCH_RDZV_COSTS_H
#define DPT_WORKER_BENCH_BENCH_RDZV_COSTS_H

#include "worker/bench/bench_rdzv_figures.h"

/* How many messages a node sends. */
struct rdzv_habits {
    int hellos;  /* until it has joined, with ranks that start */
    int reports; /* of a change of all of its ranks: STANDBY, QUIESCED, READY, RUNNING, a lost peer
                  */
};

/* What the messages of a phase cost the server, in us of its CPU. All 0: core and codec alone. */
struct rdzv_pace {
    double socket_us;                   /* a message to or from it, without core and codec */
    double handshake_us;                /* a connection */
    double beat_us;                     /* a heartbeat and its answer, all in all */
    double beats_a_second;              /* of all nodes; 0: no heartbeat comes */
    double beat_bytes, beat_back_bytes; /* of a heartbeat, of its answer */
};

struct rdzv_costs {
    struct rdzv_habits habits;
    struct rdzv_pace phases[RDZV_PHASES]; /* without beats_a_second */
    struct rdzv_pace steady;              /* likewise */
    double base_bytes;                    /* memory of the server without nodes */
    double peak_bytes, steady_bytes;      /* ... for each node, beside its state machine */
};

enum { RDZV_REPEATS_MAX = 9 };
/* Of 1 to RDZV_REPEATS_MAX runs of the same setup: in each phase the run with the median CPU time,
 * the run with the median CPU time of a heartbeat, the median memory. */
struct rdzv_figures rdzv_median_of(const struct rdzv_figures *runs, int n);
/* The difference between the largest and the least CPU time of a phase, in percent of the median.
 * RDZV_PHASES: of a heartbeat. */
double rdzv_spread_percent(const struct rdzv_figures *runs, int n, int phase);

/* The messages that the nodes of a measured run send in its cold connect and formation, without
 * heartbeats; each at least 1. In a formation a node reports four changes. */
struct rdzv_habits rdzv_habits_of(const struct rdzv_figures *measured);

/* `core`: the same nodes with paces of 0. A rest below 0, as noise may leave it, counts as 0. */
struct rdzv_costs rdzv_costs_of(const struct rdzv_figures *measured,
                                const struct rdzv_figures *core);

/* Adds to a computed phase the heartbeats that came in the measured one. */
void rdzv_add_beats(struct rdzv_phase *phase, const struct rdzv_pace *pace, double n);
/* CPU of the server for a message of a node and its answer, in us. */
double rdzv_us_of_message(const struct rdzv_steady *steady);
/* The error of the model's CPU time in a phase, in percent. RDZV_PHASES: of a heartbeat. */
double rdzv_cpu_error(const struct rdzv_figures *model, const struct rdzv_figures *measured,
                      int phase);

/* Cores that the heartbeats of all nodes take. */
double rdzv_beat_cores(const struct rdzv_pace *pace);
/* us in which the server, on a core of its own, does `work_us` of CPU beside the heartbeats of a
 * part `here` (0 to 1) of the nodes. The heartbeats of all nodes take less than a core. */
double rdzv_elapsed_us(const struct rdzv_pace *pace, double work_us, double here);
/* Sets the run's timeout_ms and drain_ms: 5 s and the default of cluster.drain_s, or what so many
 * nodes need (rendezvous/core/timing.h). */
void rdzv_set_timing(struct rdzv_setup *setup);
/* Heartbeats of so many nodes in a second: the pause that the server tells them
 * (rendezvous/core/timing.h), in whole heartbeats of an agent, of which it has waited for one
 * (worker/agent/core.c). */
double rdzv_beats_a_second(int64_t timeout_ms, int64_t drain_ms, int nodes);

/* The time from a heartbeat to its answer at a server that takes `service_us` for each of `n`
 * heartbeats, which come at random moments of `period_us`, in ms: waiting and service, without
 * network and node. All 0 if the server cannot keep up. `values`: (n), overwritten. */
struct rdzv_times rdzv_answer_times(int n, double period_us, double service_us, double *values);

#endif
