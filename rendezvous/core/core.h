/* The rendezvous server's decisions: a pure state machine over several runs. Events with the time
 * and randomness come in; messages, records and log lines come out. It owns no socket, clock,
 * thread or file, so the simulator (tests/sim) drives the same code as the server. The form is that
 * of raft_step in cowsql/raft.
 *
 *   phase      event                                               next phase
 *   WAITING    min_nodes are here, no generation was formed        SETTLING
 *   WAITING    min_nodes are here again, a save or a handover is   PREPARING(g+1)
 *              due, or nodes of an earlier server are back
 *   WAITING    all ranks train by an earlier server (adoption)     RUNNING(g)
 *   WAITING    an operator has stopped the run, and it is saved    DONE
 *   SETTLING   max_nodes are here, or the last call is over        PREPARING(g+1)
 *   SETTLING   fewer than min_nodes are left, or the run is held   WAITING
 *   PREPARING  every rank has reported                             PLANNED(g)
 *   PREPARING  fewer than min_nodes are left, or the run is held   WAITING
 *   PREPARING  all ranks of the last plan have finished            DONE
 *   PLANNED    every rank of the plan is READY                     RUNNING(g)
 *   PLANNED    likewise, and ranks have handed their state over    PREPARING(g+1)
 *   PLANNED    a member is lost or fails                           PREPARING(g+1)
 *   RUNNING    a member is lost, fails or leaves, a node joins,    PREPARING(g+1)
 *              or an operator holds the run (pause, stop)
 *   RUNNING    a rank has finished                                 DRAINING
 *   DRAINING   a member is lost or fails before it has finished    PREPARING(g+1)
 *   DRAINING   all ranks have finished                             DONE
 *   any        the run cannot go on                                FAILED
 *
 * docs/membership.md has the rules, run_state.h the files. One thread at a time. */
#ifndef DPT_RENDEZVOUS_CORE_CORE_H
#define DPT_RENDEZVOUS_CORE_CORE_H

#include "base/err.h"
#include "base/log.h"
#include "rendezvous/proto/health.h"
#include "rendezvous/proto/message.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DPT_RDZV_RUNS_MAX = 256, DPT_RDZV_KEY_BYTES = 32 };

struct dpt_rdzv;

struct dpt_rdzv_options {
    uint64_t epoch; /* a random number, not 0; a new one at each start of the server */
    int64_t now_ms;
    bool fresh; /* no node can have known an earlier server, so the server waits for none */
    /* Limits of one run; 0: those of the protocol. world_max: ranks that train. A rank takes about
     * 0.9 KB of memory, and a node 1.2 KB more (docs/membership.md, "Many nodes"). */
    uint32_t nodes_max, world_max;
};

/* The loop waits until a socket is readable or deadline_ms is reached. It passes every message and
 * every broken connection that has arrived to the core, then one TICK. The core judges silence only
 * at a TICK, so a server that was suspended first takes the messages that have arrived. An event
 * that comes more than dpt_timing.gap_ms after the deadline moves every deadline by the delay. A
 * TICK with `backlog` judges no silence, because messages are still unread. */
enum dpt_rdzv_event_kind {
    DPT_RDZV_EVENT_TICK,
    DPT_RDZV_EVENT_MESSAGE, /* conn, message */
    DPT_RDZV_EVENT_BROKEN,  /* conn: disconnected, or dropped because its queue was full */
    DPT_RDZV_EVENT_DENIED, /* conn: a message came over it whose sender's key has no right any more;
                              the core does not get the message */
    DPT_RDZV_EVENT_COUNT
};

struct dpt_rdzv_event {
    enum dpt_rdzv_event_kind kind;
    int64_t now_ms; /* monotonic, never below the last event's */
    uint64_t conn;  /* the loop's number of a connection, not 0 and never used again */
    bool backlog;   /* TICK: messages that have arrived may still be unread */
    const Dpt__AgentState *message; /* as decoded by dpt_message_decode_agent_state; borrowed */
    /* Secret random bytes, new for each event. The nonces of the event's plans are made from
     * them. */
    uint8_t random[DPT_PROTO_NONCE_BYTES];
    /* MESSAGE: the sender's public key, which the connection has proved; all zero: there are no
     * keys. A node id belongs to the key that uses it first in a run. */
    uint8_t key[DPT_RDZV_KEY_BYTES];
    bool join_only; /* MESSAGE: the sender may not define a run: it brings no config of a new one */
    const char *only_run; /* MESSAGE: the sender may take part in no other; NULL or "": in every */
};

struct dpt_rdzv_send {
    uint64_t conn;
    const Dpt__ServerState *message;
};

/* A decision. A journal makes it durable before the sends of its step (rendezvous/core/journal.h).
 * Durable state changes by records alone (apply.h), so a server that gets the records of an earlier
 * one back knows all that the earlier one had decided. No heartbeat causes a record. */
enum dpt_rdzv_record_kind {
    DPT_RDZV_RECORD_START,   /* a server starts: number (epoch) */
    DPT_RDZV_RECORD_RUN,     /* a run is known: spec, fingerprint, data_digest, folder, key */
    DPT_RDZV_RECORD_JOINED,  /* a node is admitted: node, host, incarnation, secret, key, health */
    DPT_RDZV_RECORD_REMOVED, /* a node is removed: node, incarnation, flags, number (its counter),
                                count (nodes of a final save that failed), text (the reason) */
    DPT_RDZV_RECORD_GENERATION, /* PREPARE(generation) begins: its number is never used again;
                                   cause, text, detect_ms, SOFT; step and step_ms of the generation
                                   before */
    DPT_RDZV_RECORD_PLAN,       /* the plan of `generation`: step (from which it resumes), number
                                   (highest step before), count (ranks), digest, members, flags,
                                   and the cause in its last words */
    DPT_RDZV_RECORD_RUNS,       /* every rank of `generation` is READY: step, flags */
    DPT_RDZV_RECORD_ADOPTED,    /* the generation of an earlier server goes on: as PLAN and RUNS */
    DPT_RDZV_RECORD_GRANT,      /* `generation` may commit the checkpoint of `step` */
    DPT_RDZV_RECORD_SAVED,      /* a rank of node, host reports the checkpoint of `step` */
    DPT_RDZV_RECORD_CRASH,      /* restarts were used: count (all restarts in use), text, generation
                                   (of the plan to which the incident belongs; 0: none) */
    DPT_RDZV_RECORD_REFILL,     /* steps gave restarts back: count (all restarts that are in use) */
    DPT_RDZV_RECORD_ERROR,      /* text is the first error since the budget was last full */
    DPT_RDZV_RECORD_END,        /* DONE, or FAILED: `text` is the first error; step, step_ms */
    DPT_RDZV_RECORD_PAUSED,     /* an operator pauses the run (count 1) or lets it go on (0) */
    DPT_RDZV_RECORD_STOPPED, /* an operator ends the run after a checkpoint (count 1), or takes that
                                back (0) */
    DPT_RDZV_RECORD_DENIED,  /* an operator denies a node id (count 1) or allows it (0): node; text
                                (the run's name: the entry outlives the run) */
    DPT_RDZV_RECORD_UNHEALTHY, /* a node is refused because of its health check: node, host,
                                  incarnation, key, health, text (the fault), cause (the run's name:
                                  there may be no run yet); changes no durable state */
    DPT_RDZV_RECORD_FORGET,    /* the name is free again: generation (the highest that the run may
                                  have used), number (the newest that ran), step, node, host (of
                                  the newest checkpoint), flags */
    DPT_RDZV_RECORD_COUNT
};

enum dpt_rdzv_record_flag {
    DPT_RDZV_FLAG_CUT_OFF = 1,     /* REMOVED for silence alone: the node may return */
    DPT_RDZV_FLAG_AWAITED = 2,     /* REMOVED: it may hold the newest state */
    DPT_RDZV_FLAG_RELEASED = 4,    /* REMOVED because it left */
    DPT_RDZV_FLAG_LAST_HOLDER = 8, /* REMOVED: no other node holds its steps */
    DPT_RDZV_FLAG_SOFT = 16,       /* GENERATION at the next step boundary */
    DPT_RDZV_FLAG_FINAL_SAVE = 32, /* PLAN: its ranks only save */
    DPT_RDZV_FLAG_HANDOVER = 64,   /* PLAN: it hands state over and makes no step */
    DPT_RDZV_FLAG_REDUNDANT = 128, /* RUNS: every part of the state is on two nodes */
    DPT_RDZV_FLAG_ENDED = 256,     /* FORGET: the run had ended */
    DPT_RDZV_FLAG_FAILED = 512,    /* FORGET: the run had failed */
    DPT_RDZV_FLAG_STOPPED = 1024,  /* FORGET: an operator had stopped the run */
    DPT_RDZV_FLAG_LEFT = 2048,     /* FORGET: all nodes had left; no lost one could return */
};

/* A node with a place in a plan. */
struct dpt_rdzv_member {
    const char *node;
    const char *rack; /* cluster.rack, "": none; for the history: a journal need not give it back */
    uint64_t incarnation;
    uint32_t first_rank, n_ranks; /* its lowest rank of the plan, and their number */
};

/* Which members a kind uses is said above. The others are 0 or "", step is -1. */
struct dpt_rdzv_record {
    enum dpt_rdzv_record_kind kind;
    int64_t at_ms;   /* now_ms of the event that caused it */
    const char *run; /* "" with START, DENIED and UNHEALTHY */
    uint64_t generation;
    int64_t step;
    uint64_t number;
    uint32_t count, flags;
    const char *text;
    const char *cause; /* "node_lost", …, as in Plan.cause_kind */
    int64_t detect_ms, step_ms;
    const char *node, *host;
    uint64_t incarnation;
    uint8_t secret[DPT_PROTO_SECRET_BYTES], key[DPT_RDZV_KEY_BYTES];
    struct dpt_health health;
    const Dpt__RunSpec *spec;
    const char *fingerprint, *data_digest;
    const char *folder; /* checkpoint_dir_id */
    const char *digest;
    const struct dpt_rdzv_member *members; /* (n_members) in order of joining */
    size_t n_members;
    bool is_outdated; /* PLAN or ADOPTED from a journal, without its members: their places count no
                         more, as a later plan of the run has run, or has the same members */
};

struct dpt_rdzv_log_line {
    enum dpt_log_level level;
    const char *run;
    uint64_t generation;
    const char *text;
};

/* The caller carries out the records, then the sends, then the logs. Valid until the next step or
 * destroy. */
struct dpt_rdzv_output {
    const struct dpt_rdzv_record *records;
    size_t n_records;
    const struct dpt_rdzv_send *sends; /* at most one per connection */
    size_t n_sends;
    const struct dpt_rdzv_log_line *logs;
    size_t n_logs;
    int64_t deadline_ms; /* next TICK no later than this; always set */
};

/* Returns owned; DPT_ENOMEM. */
DPT_MUST_USE enum dpt_status dpt_rdzv_create(const struct dpt_rdzv_options *options,
                                             struct dpt_rdzv **ret, struct dpt_err *err);
void dpt_rdzv_destroy(struct dpt_rdzv **core);

/* Gives a record of an earlier server back. To be called for all of them in their order, after
 * dpt_rdzv_create and before the first step; of runs that were forgotten the FORGET records are
 * enough. The new server waits a lease for the members that the records name
 * (docs/membership.md, "Server restart"). DPT_ECORRUPT: no server makes this record after those
 * before it. DPT_ENOMEM. */
DPT_MUST_USE enum dpt_status
dpt_rdzv_restore(struct dpt_rdzv *core, const struct dpt_rdzv_record *record, struct dpt_err *err);

/* Takes one event. Does not block. DPT_ENOMEM, the only failure, leaves the machine unusable. */
DPT_MUST_USE enum dpt_status dpt_rdzv_step(struct dpt_rdzv *core,
                                           const struct dpt_rdzv_event *event,
                                           struct dpt_rdzv_output *ret, struct dpt_err *err);

/* True: a node with a place in the newest plan of its run speaks over the connection. */
bool dpt_rdzv_is_member_conn(const struct dpt_rdzv *core, uint64_t conn);

/* Phases of a run; the table above has the transitions. */
enum dpt_rdzv_phase {
    DPT_RDZV_WAITING,
    DPT_RDZV_SETTLING,
    DPT_RDZV_PREPARING, /* reports are coming in */
    DPT_RDZV_PLANNED,   /* ranks connect and fill their state */
    DPT_RDZV_RUNNING,
    DPT_RDZV_DRAINING,
    DPT_RDZV_DONE,
    DPT_RDZV_FAILED,
    DPT_RDZV_PHASE_COUNT
};

#endif
