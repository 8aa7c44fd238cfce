/* Shared by the files of the watch: what it remembers of nodes and runs.
 *
 *   watch.c        events, records, nodes     watch_plan.c  a plan: its form, its members
 *   watch_tally.c  counters and lists */
#ifndef DPT_TESTS_RENDEZVOUS_CORE_WATCH_INTERNAL_H
#define DPT_TESTS_RENDEZVOUS_CORE_WATCH_INTERNAL_H

#include "tests/rendezvous/core/watch.h"

enum { PROCS_MAX = 128, BROKEN_BYTES = 512 };

/* A rank process that a message named. */
struct seen_proc {
    uint64_t incarnation;
    uint32_t local, spawn;
    uint64_t finished; /* newest generation in which it said FINISHED; 0: none */
};

struct seen_node {
    uint64_t hash; /* of run and id */
    char run[DPT_PROTO_NAME_BYTES], id[DPT_PROTO_NAME_BYTES];
    struct seen_proc procs[PROCS_MAX];
    size_t n_procs; /* of all time; the ring keeps the last PROCS_MAX */
    uint64_t told_incarnation, told_counter, told_generation, counter_seen;
    uint8_t told_secret[DPT_PROTO_SECRET_BYTES]; /* of told_incarnation */
};

struct member {
    size_t node;          /* index */
    uint64_t incarnation; /* 0: a process that is not remembered */
    uint32_t local, spawn;
    bool finished;
};

/* The part of a plan that must be the same for every node. */
struct seat {
    bool known; /* a plan that was sent has it */
    uint32_t position, rack, host, node;
    int32_t checkpoint_slot;
    bool takes_state, writes_log;
};

struct seen_run {
    char name[DPT_PROTO_NAME_BYTES];
    struct dpt_rdzv_run_view view; /* after the last step */
    uint64_t generation, planned;  /* newest of each record */
    int64_t grant_step;            /* of `planned`; -1: none */
    bool ended, stopped;           /* stopped: an operator wants its end */
    int64_t gap_ms; /* if all nodes are silent for longer, the server itself hears nothing */
    char digest[DPT_PROTO_DIGEST_BYTES]; /* of the newest plan in force */
    uint64_t plan_generation;
    struct member *members; /* (n_members) by rank; owned */
    uint32_t n_members;
    /* Of the newest plan that was sent. */
    uint64_t sent_generation;
    char sent_digest[DPT_PROTO_DIGEST_BYTES];
    int64_t sent_numbers[11];
    struct seat *seats; /* (n_seats) owned */
    uint32_t n_seats;
};

/* What the watch remembers of a run's name for its whole life. */
struct seen_name {
    char name[DPT_PROTO_NAME_BYTES];
    uint64_t generation; /* highest generation that a run of this name has used */
};

struct seen_nonce {
    uint8_t bytes[DPT_PROTO_NONCE_BYTES];
};

struct watch {
    bool decodes;
    uint64_t n_steps;
    uint64_t epoch; /* 0: nothing was sent yet */
    int64_t now_ms;
    int64_t event_ms; /* of the present step */
    bool backlog;     /* the present step is a TICK while messages are unread */
    int64_t heard_ms; /* time of the last message; a pause of the loop does not count */
    int64_t deadline_ms;
    bool ticked;                            /* the last event was a TICK */
    bool stale;                             /* the last message had to change nothing */
    uint8_t secret[DPT_PROTO_SECRET_BYTES]; /* of the last message; zeros if it had none */
    struct seen_node *nodes;
    size_t n_nodes, nodes_max;
    struct seen_run *runs;
    size_t n_runs, runs_max;
    struct seen_name *names;
    size_t n_names, names_max;
    struct seen_nonce *nonces; /* of all plans sent */
    size_t n_nonces, nonces_max;
    char broken[BROKEN_BYTES];
};

/* Notes a broken promise; the first one of a step is kept. */
void watch_broken(struct watch *watch, const char *fmt, ...) DPT_PRINTF(2, 3);

/* watch_tally.c */

/* Compares the counters, lists and indexes of the machine with a walk over all nodes. */
void watch_tally(struct watch *watch, const struct dpt_rdzv *core);

/* watch_plan.c */

/* Called when the plan in force has changed: finds and checks its members. */
void watch_members(struct watch *watch, struct seen_run *run, const struct dpt_rdzv *core,
                   const struct dpt_rdzv_run_view *view);
/* Checks a plan in a message to one node. */
void watch_plan(struct watch *watch, struct seen_run *run, const struct dpt_rdzv *core,
                const Dpt__ServerState *message);

#endif
