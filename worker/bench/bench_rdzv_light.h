/* A light node of dpt-bench rdzv --model (bench_rdzv_crowd.h): its messages, and the server that
 * takes them. */
#ifndef DPT_WORKER_BENCH_BENCH_RDZV_LIGHT_H
#define DPT_WORKER_BENCH_BENCH_RDZV_LIGHT_H

#include "rendezvous/core/core.h"
#include "rendezvous/proto/message.h"
#include "worker/bench/bench_rdzv_costs.h"

enum { RDZV_LIGHT_IN_BYTES_MAX = 64 * 1024 }; /* of a node's message */

/* Ranks change together, and are reported one after the other. */
struct light_ranks {
    Dpt__RankPhase phase;
    uint64_t generation, ran_generation, failed_generation;
};

struct light_node {
    uint64_t conn, counter, incarnation, generation;
    char digest[DPT_PROTO_DIGEST_BYTES];
    uint32_t world;
    int32_t first_rank, suspect;    /* first_rank: of the newest plan */
    struct light_ranks before, now; /* now: with so many messages still to come: */
    int repeats, reports;           /* without a change; with a part of it */
    bool is_known, lost, queued, there;
    double there_ms;
};

struct light_run {
    char name[24];
    int first, n;
    uint64_t generation; /* newest that a node has heard of */
};

struct rdzv_crowd {
    struct rdzv_setup setup;
    struct rdzv_habits habits;
    struct dpt_rdzv *core;
    struct light_run *runs; /* (n_runs) */
    int n_runs;
    struct light_node *nodes; /* (setup.nodes) */
    int *queue;               /* (setup.nodes) ring of nodes that have something to say */
    int queue_first, queue_n;
    double *values;               /* (setup.nodes) */
    bool *lost_ranks;             /* (setup.nodes * setup.ranks) of the world that loses nodes */
    int n_here;                   /* nodes that have joined and are not lost */
    int64_t core_ms, deadline_ms; /* the state machine's time: work does not move it */
    int64_t begun_ms;             /* ... when the phase began */
    int64_t step;                 /* that the ranks report; -1: no generation has run */
    double waited_us;             /* simulated time at which it last moved */
    double clock_us;              /* simulated time */
    double reading_us;            /* what it costs to read the CPU time */
    const struct rdzv_pace *pace; /* of this phase, as `cpu_us` and `counts` */
    double cpu_us;
    struct rdzv_counts counts;
    double n_beats;
    uint64_t n_events;
    size_t own_bytes;  /* heap of the process before the state machine was made */
    size_t peak_bytes; /* ... and while it told all nodes of a run, or at the end of a phase */
    char refusal[DPT_PROTO_TEXT_BYTES]; /* the first */
    uint8_t *in, *out;                  /* encoded messages */
    void *decoded;
};

/* The ranks of node i change. What it had still to say of an earlier change is said before. */
void rdzv_light_change(struct rdzv_crowd *crowd, int i, struct light_ranks now);

/* The node at the head of the queue, which is not empty, says all that it has to say. */
DPT_MUST_USE enum dpt_status rdzv_light_serve_next(struct rdzv_crowd *crowd, struct dpt_err *err);
/* An event without a message: TICK or BROKEN. */
DPT_MUST_USE enum dpt_status rdzv_light_event(struct rdzv_crowd *crowd, struct dpt_rdzv_event event,
                                              struct dpt_err *err);
/* Node i, whose ranks do not change, sends a message. */
DPT_MUST_USE enum dpt_status rdzv_light_say(struct rdzv_crowd *crowd, int i, struct dpt_err *err);

/* Simulated time passes, in which the nodes that are here send heartbeats. */
void rdzv_light_pass(struct rdzv_crowd *crowd, double us);
/* The heap that this process uses. 0: its allocator does not tell (a sanitizer's). */
size_t rdzv_light_heap_bytes(void);
/* Notes the heap that the state machine has now. */
void rdzv_light_note_heap(struct rdzv_crowd *crowd);
/* The least time that it takes to read the CPU time of this thread. */
double rdzv_light_reading_us(void);

#endif
