/* The node agent's core: a pure state machine for one node of one run. It has no socket, clock,
 * thread, process or file; loop.h carries out its actions.
 *
 * The agent relays membership between the server and its ranks. It decides for this node
 * only: when a rank is started, killed and started again, when files may be written, and
 * when and with which exit code the program ends. docs/membership.md has the rules. */
#ifndef DPT_WORKER_AGENT_CORE_H
#define DPT_WORKER_AGENT_CORE_H

#include "base/err.h"
#include "base/log.h"
#include "rendezvous/core/timing.h"
#include "rendezvous/proto/message.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum dpt_exit_code {
    DPT_EXIT_DONE = 0,
    DPT_EXIT_CONFIG = 2,   /* bad or refused configuration */
    DPT_EXIT_SERVER = 3,   /* no server until the join deadline */
    DPT_EXIT_FAILED = 4,   /* the run failed */
    DPT_EXIT_EXPELLED = 75 /* out of the run, and not back in time (EX_TEMPFAIL) */
};

struct dpt_agent;

/* Strings are copied. */
struct dpt_agent_options {
    const char *run;      /* rendezvous run id */
    const char *node;     /* random id, or --node-id */
    const char *software; /* "dpt 0.1.0" */
    uint64_t incarnation; /* until the facts give a higher one */
    int64_t timeout_ms;   /* until there is a config: the default */
    int64_t now_ms;
};

/* This node once it has a config: with --config from the start, else from the server's answer.
 * Copied, with the spec. */
struct dpt_agent_facts {
    const Dpt__RunSpec *spec; /* of the config in force here; has the timeout */
    uint32_t n_ranks;         /* rank processes of this node, 1 … DPT_PROTO_RANKS_MAX */
    char fingerprint[DPT_PROTO_DIGEST_BYTES], host[DPT_PROTO_DIGEST_BYTES];
    /* "": the run does not write to such a folder */
    char log_dir_id[DPT_PROTO_DIGEST_BYTES], checkpoint_dir_id[DPT_PROTO_DIGEST_BYTES];
    char data_digest[DPT_PROTO_DIGEST_BYTES];
    char host_name[DPT_PROTO_NAME_BYTES]; /* for messages; "": unknown */
    /* Of this node id (identity.h). An incarnation below that of the options has no effect. */
    uint8_t secret[DPT_PROTO_SECRET_BYTES];
    uint64_t incarnation;
};

/* The loop waits until a source is readable or deadline_ms, hands over every event, then one TICK.
 * The times of the events show the core when the loop stood still. */
enum dpt_agent_event_kind {
    DPT_AGENT_EVENT_TICK,           /* steps */
    DPT_AGENT_EVENT_CONFIGURED,     /* facts; once: the first event, or after ACTION_CONFIGURE */
    DPT_AGENT_EVENT_SERVER_UP,      /* a connection to the server is made (again) */
    DPT_AGENT_EVENT_SERVER_DOWN,    /* the connection is broken, or is being replaced */
    DPT_AGENT_EVENT_SERVER_MESSAGE, /* server_message */
    DPT_AGENT_EVENT_RANK_MESSAGE,   /* local_rank, spawn, rank_message */
    DPT_AGENT_EVENT_RANK_EOF,       /* local_rank, spawn, step: its socket closed; it is killed */
    DPT_AGENT_EVENT_RANK_EXITED,    /* local_rank, spawn, step, exit_code, text: reaped, or not
                                     * started */
    DPT_AGENT_EVENT_RANK_WAITS, /* local_rank, spawn: its start waits for the claims on the run's
                                 * folders, so it is not silent */
    DPT_AGENT_EVENT_DISOWNED,   /* text: another run owns the folders now */
    DPT_AGENT_EVENT_SIGNAL,     /* a signal or a spot notice: the first drains, the second ends
                                 * this node at once */
    DPT_AGENT_EVENT_COUNT
};

struct dpt_agent_event {
    enum dpt_agent_event_kind kind;
    int64_t now_ms; /* monotonic, not below that of the last event */
    const struct dpt_agent_facts *facts;
    const Dpt__ServerState *server_message; /* borrowed */
    uint32_t local_rank, spawn;             /* an event of an earlier spawn is ignored */
    const Dpt__RankToAgent *rank_message;   /* borrowed */
    int exit_code;                          /* RANK_EXITED: status if >= 0, -signal if killed */
    bool is_final;                          /* RANK_EXITED: no other can be started here */
    int64_t step;         /* newest step in the process's memfd, also after its end; 0: none */
    const int64_t *steps; /* the same of each local rank; NULL: not read */
    const char *text;     /* DISOWNED; RANK_EXITED: the cause, for a person; may be NULL */
};

enum dpt_agent_action_kind {
    DPT_AGENT_ACTION_CONFIGURE, /* spec: the run's config; NULL: the server has none, use the demo's
                                 */
    DPT_AGENT_ACTION_SPAWN,     /* start process `spawn` of local_rank */
    DPT_AGENT_ACTION_KILL,      /* SIGKILL to its process group; RANK_EXITED must follow */
    DPT_AGENT_ACTION_EXIT,      /* kill the processes and end the program; the last action */
    DPT_AGENT_ACTION_COUNT
};

struct dpt_agent_action {
    enum dpt_agent_action_kind kind;
    uint32_t local_rank, spawn;
    uint64_t incarnation;     /* SPAWN: of the node */
    int exit_code;            /* EXIT: enum dpt_exit_code, or a rank's own with a fatal error */
    const char *text;         /* EXIT: one line for a person; "" with code 0 */
    const Dpt__RunSpec *spec; /* CONFIGURE; EXIT: of the run that refused this node's config */
};

struct dpt_agent_send {
    uint32_t local_rank, spawn;
    const Dpt__AgentToRank *message;
};

struct dpt_agent_log_line {
    enum dpt_log_level level;
    uint64_t generation;
    const char *text;
};

/* To carry out in this order: logs, actions, messages. Borrowed and valid until the next step or
 * destroy. */
struct dpt_agent_output {
    const struct dpt_agent_action *actions;
    size_t n_actions;
    const Dpt__AgentState *to_server; /* NULL: none; may be dropped when there is no connection */
    const struct dpt_agent_send *to_ranks;
    size_t n_to_ranks;
    const struct dpt_agent_log_line *logs;
    size_t n_logs;
    int64_t deadline_ms; /* of the next TICK; always set */
};

/* Returns owned; DPT_ENOMEM. The caller has checked the options (lengths below DPT_PROTO_*). */
DPT_MUST_USE enum dpt_status dpt_agent_create(const struct dpt_agent_options *options,
                                              struct dpt_agent **ret, struct dpt_err *err);
void dpt_agent_destroy(struct dpt_agent **agent);

/* Takes one event. Never blocks. DPT_ENOMEM is the only failure and leaves the core unusable. After
 * ACTION_EXIT every event is ignored. */
DPT_MUST_USE enum dpt_status dpt_agent_step(struct dpt_agent *agent,
                                            const struct dpt_agent_event *event,
                                            struct dpt_agent_output *ret, struct dpt_err *err);

struct dpt_agent_evaluation {
    int64_t step; /* completed steps; 0: no evaluation yet */
    double loss;
    int64_t right, samples; /* samples whose label was predicted, of all; 0: without labels */
};

/* The effect of a SIGTERM on unsaved steps while no server answers: they are lost; this node
 * saves a part of the state, and other nodes must save the rest; or it saves the whole state. */
enum dpt_agent_rescue { DPT_AGENT_RESCUE_NONE, DPT_AGENT_RESCUE_PART, DPT_AGENT_RESCUE_WHOLE };

/* The state for the progress lines and the simulator. Pointers are valid until the next step. */
struct dpt_agent_view {
    uint64_t incarnation, generation, epoch;
    Dpt__ServerPhase phase; /* newest of this incarnation */
    char plan_digest[DPT_PROTO_DIGEST_BYTES];
    uint32_t world_size, n_nodes;
    int64_t step;             /* newest of a living rank here; -1: none */
    float loss, tokens_per_s; /* the world's; 0 until a rank here has completed a step */
    struct dpt_agent_evaluation val;
    /* Of the generation in force, once it trains. */
    bool trains;
    const char *cause, *cause_kind; /* "" else */
    int64_t resume_step, steps_lost;
    int64_t still_ms; /* from the last sign of life of the lost rank, or the step boundary, to GO */
    /* The newest report of rank 0, if it is or was on this node; NULL: elsewhere. */
    const Dpt__RankToAgent *first;
    int64_t unsaved_steps; /* that no checkpoint has, as far as this node knows */
    enum dpt_agent_rescue rescue;
    bool computing; /* a rank here is in a generation that is not known to be broken */
    bool server_up, leaving, ending, ended;
    int64_t last_call_ms; /* SETTLING: its length when the number of nodes last changed */
    char reason[DPT_PROTO_TEXT_BYTES]; /* why it is long; "" */
    int64_t write_until_ms;            /* ranks may write files until then */
    struct dpt_timing timing;
};
void dpt_agent_view(const struct dpt_agent *agent, struct dpt_agent_view *ret);

#endif
