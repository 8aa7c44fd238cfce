/* The rendezvous server's decisions: a pure state machine over several runs. No sockets, clock,
 * threads, files or global state; time and randomness come in, messages and records come out, so
 * that the simulator (tests/sim) drives the very code that serves (as raft_step of cowsql/raft).
 *
 *   from       on                                                  to
 *   WAITING    min_nodes are here, nothing was trained yet         SETTLING
 *   WAITING    min_nodes are here again                            PREPARING(g+1)
 *   SETTLING   max_nodes are here, or the last call is over        PREPARING(g+1)
 *   PREPARING  every rank has reported                             PLANNED(g)
 *   PREPARING  fewer than min_nodes are left                       WAITING
 *   PLANNED    every rank of the plan is READY                     RUNNING(g)
 *   PLANNED    a member is lost or fails                           PREPARING(g+1)
 *   RUNNING    a member is lost, fails, leaves, or a node joins    PREPARING(g+1)
 *   RUNNING    a rank has finished                                 DRAINING
 *   DRAINING   all ranks have finished                             DONE
 *   any        the run cannot go on                                FAILED
 *
 * docs/membership.md has the rules; the code follows them in its order. One thread at a time. */
#ifndef DPT_RENDEZVOUS_CORE_CORE_H
#define DPT_RENDEZVOUS_CORE_CORE_H

#include "base/err.h"
#include "base/log.h"
#include "rendezvous/proto/message.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DPT_RDZV_RUNS_MAX = 256 };

struct dpt_rdzv;

struct dpt_rdzv_options {
    uint64_t epoch; /* drawn anew (random, not 0) at each start of the server */
    int64_t now_ms;
    /* No earlier server can have had a run of those who come: nothing waits for nodes of one. */
    bool fresh;
};

/* The loop: wait until a socket is readable or deadline_ms; hand over every message and broken
 * connection that has arrived, then one TICK. Leases are judged at TICK only, so a server that was
 * itself stopped reads what waited first; a late event (dpt_timing.gap_ms past the deadline asked
 * for) moves every deadline by the gap. A server that cannot read as fast as it is spoken to says
 * so with the TICK (`backlog`): then nobody's silence is judged, for its words may be waiting. */
enum dpt_rdzv_event_kind {
    DPT_RDZV_EVENT_TICK,
    DPT_RDZV_EVENT_MESSAGE,  /* conn, message */
    DPT_RDZV_EVENT_BROKEN,   /* conn: disconnected, or dropped because its queue was full */
    DPT_RDZV_EVENT_SHUTDOWN, /* the server ends: nothing is told to the agents, training goes on */
    DPT_RDZV_EVENT_COUNT
};

struct dpt_rdzv_event {
    enum dpt_rdzv_event_kind kind;
    int64_t now_ms; /* monotonic, never below the last event's */
    uint64_t conn;  /* the loop's name for a connection, not 0 and never used again */
    bool backlog;   /* TICK: messages that have arrived may still be unread */
    const Dpt__AgentState *message; /* as decoded by dpt_message_decode_agent_state; borrowed */
    /* Drawn anew for each event; the nonces of the plans that it brings about are made of it. From
     * the system's random source, and secret, in a server. */
    uint8_t random[DPT_PROTO_NONCE_BYTES];
};

struct dpt_rdzv_send {
    uint64_t conn;
    const Dpt__ServerState *message;
};

/* A decision to be made durable before the sends of the same step go out (the journal's seam; a
 * server without one ignores them). */
enum dpt_rdzv_record_kind {
    DPT_RDZV_RECORD_RUN,        /* a run is known: `spec` */
    DPT_RDZV_RECORD_GENERATION, /* PREPARE(generation) begins: never used again */
    DPT_RDZV_RECORD_PLAN,       /* plan of `generation`: text is its digest */
    DPT_RDZV_RECORD_GRANT,      /* checkpoint of `step` may be committed by `generation` */
    DPT_RDZV_RECORD_CRASH,      /* `crashes` counted against the restart budget: text says what */
    DPT_RDZV_RECORD_END,        /* DONE or FAILED (text: the first error) */
    DPT_RDZV_RECORD_FORGET,     /* the name is free again */
    DPT_RDZV_RECORD_COUNT
};

struct dpt_rdzv_record {
    enum dpt_rdzv_record_kind kind;
    const char *run;
    uint64_t generation;
    int64_t step;
    uint32_t crashes;         /* 0 when about none */
    const char *text;         /* "" when none */
    const Dpt__RunSpec *spec; /* NULL when none */
};

struct dpt_rdzv_log_line {
    enum dpt_log_level level;
    const char *run; /* "" when about no run */
    uint64_t generation;
    const char *text;
};

/* What to do, in this order: records, sends, logs. Everything is borrowed and valid until the next
 * step or destroy. */
struct dpt_rdzv_output {
    const struct dpt_rdzv_record *records;
    size_t n_records;
    const struct dpt_rdzv_send *sends; /* at most one a connection */
    size_t n_sends;
    const struct dpt_rdzv_log_line *logs;
    size_t n_logs;
    int64_t deadline_ms; /* next TICK no later than this; always set */
};

/* Returns owned; DPT_ENOMEM. */
DPT_MUST_USE enum dpt_status dpt_rdzv_create(const struct dpt_rdzv_options *options,
                                             struct dpt_rdzv **ret, struct dpt_err *err);
void dpt_rdzv_destroy(struct dpt_rdzv **core);

/* Takes one event. Never blocks. DPT_ENOMEM is the only failure and leaves the machine unusable:
 * the server ends (and is started again, with a new epoch). */
DPT_MUST_USE enum dpt_status dpt_rdzv_step(struct dpt_rdzv *core,
                                           const struct dpt_rdzv_event *event,
                                           struct dpt_rdzv_output *ret, struct dpt_err *err);

/* One run as the status page and the simulator see it. */
enum dpt_rdzv_phase {
    DPT_RDZV_WAITING,
    DPT_RDZV_SETTLING,
    DPT_RDZV_PREPARING, /* FORMING: reports are coming in */
    DPT_RDZV_PLANNED,   /* FORMING: the plan is out, READYs are coming in */
    DPT_RDZV_RUNNING,
    DPT_RDZV_DRAINING,
    DPT_RDZV_DONE,
    DPT_RDZV_FAILED,
    DPT_RDZV_PHASE_COUNT
};
const char *dpt_rdzv_phase_name(enum dpt_rdzv_phase phase);

/* What the loss of one node would cost: of a part that nobody else holds, the steps since the
 * newest checkpoint. */
enum dpt_rdzv_redundancy {
    DPT_RDZV_REDUNDANCY_NONE, /* some part of the state is on one node alone */
    /* A generation is being formed, parts are moved and copied; or it trains already, and copies
     * are still being made. */
    DPT_RDZV_REDUNDANCY_REBUILDING,
    DPT_RDZV_REDUNDANCY_WHOLE, /* every part is on two nodes at least */
    DPT_RDZV_REDUNDANCY_COUNT
};

struct dpt_rdzv_run_view {
    char run[DPT_PROTO_NAME_BYTES];
    enum dpt_rdzv_phase phase;
    uint64_t generation;
    uint64_t run_generation; /* newest that this server has sent off or adopted; 0: none */
    char plan_digest[DPT_PROTO_DIGEST_BYTES]; /* "" while none is in force */
    uint32_t nodes, world_size, restarts_left;
    int64_t step; /* newest applied step any member told of; -1: none */
    enum dpt_rdzv_redundancy redundancy;
    char text[DPT_PROTO_TEXT_BYTES]; /* cause of this generation or of the end */
    char cause_kind[DPT_PROTO_NAME_BYTES];
};

/* Number of runs known; run `i` of them into `ret`. */
size_t dpt_rdzv_runs(const struct dpt_rdzv *core);
void dpt_rdzv_run_view(const struct dpt_rdzv *core, size_t i, struct dpt_rdzv_run_view *ret);

/* True when `conn` spoke last for a node counted into the current generation of its run; its plan
 * rank for local_rank (-1: spare or none) into *ret_rank. For the simulator's invariants. */
bool dpt_rdzv_counts_in(const struct dpt_rdzv *core, const char *run, const char *node,
                        uint64_t incarnation, uint32_t local_rank, uint32_t spawn, int *ret_rank);

#endif
