/* The node agent's core: a pure state machine for one node of one run. It uses no socket, clock,
 * thread, process or file; loop.h carries out its actions.
 *
 * The agent relays membership between the server and its ranks. For its own node it decides when a
 * rank starts, is killed and starts again, when files may be written, and when and with which exit
 * code the program ends. docs/membership.md has the rules. */
#ifndef DPT_WORKER_AGENT_CORE_H
#define DPT_WORKER_AGENT_CORE_H

#include "base/err.h"
#include "base/log.h"
#include "rendezvous/core/timing.h"
#include "rendezvous/proto/health.h"
#include "rendezvous/proto/message.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum dpt_exit_code {
    DPT_EXIT_DONE = 0,
    DPT_EXIT_CONFIG = 2, /* bad or refused configuration */
    DPT_EXIT_SERVER = 3, /* no server until the join deadline */
    DPT_EXIT_FAILED = 4, /* the run failed */
    DPT_EXIT_DENIED = 5, /* the server does not take this machine's keys */
    /* Left with unsaved steps, or out of a run in which it was (EX_TEMPFAIL). */
    DPT_EXIT_EXPELLED = 75
};

struct dpt_agent;

/* Strings are copied. */
struct dpt_agent_options {
    const char *run;      /* rendezvous run id */
    const char *node;     /* random id, or --node-id */
    const char *software; /* "dpt 0.1.0" */
    uint64_t incarnation; /* the first; the facts may give a higher one */
    int64_t timeout_ms;   /* the default, until there is a config */
    int64_t now_ms;
};

/* This node's part in the run, known once the node has a config: with --config from the start,
 * otherwise from the server's answer. Copied, with the spec. */
struct dpt_agent_facts {
    const Dpt__RunSpec *spec; /* spec of the config that this node uses; has the timeout */
    uint32_t n_ranks;         /* rank processes of this node, 1 … DPT_PROTO_RANKS_MAX */
    char fingerprint[DPT_PROTO_DIGEST_BYTES], host[DPT_PROTO_DIGEST_BYTES];
    /* "": the run writes to no such folder. */
    char log_dir_id[DPT_PROTO_DIGEST_BYTES], checkpoint_dir_id[DPT_PROTO_DIGEST_BYTES];
    char data_digest[DPT_PROTO_DIGEST_BYTES];
    char host_name[DPT_PROTO_NAME_BYTES]; /* name of the host in messages; "": unknown */
    char rack[DPT_PROTO_NAME_BYTES];      /* cluster.rack; "": none */
    /* The secret and the first incarnation of this node id (identity.h). An incarnation below that
     * of the options has no effect. */
    uint8_t secret[DPT_PROTO_SECRET_BYTES];
    uint64_t incarnation;
    struct dpt_health health;                  /* its round_trip_us comes with SERVER_UP */
    char health_fault[DPT_HEALTH_FAULT_BYTES]; /* "": the check has passed, or none was made */
};

/* The loop waits until a source is readable or deadline_ms has come. It hands over every event,
 * then one TICK. From the times of the events the core sees for how long the loop was suspended. */
enum dpt_agent_event_kind {
    DPT_AGENT_EVENT_TICK, /* with `steps` */
    /* CONFIGURED, with `facts`: happens once, as the first event or after ACTION_CONFIGURE. */
    DPT_AGENT_EVENT_CONFIGURED,
    /* SERVER_UP, with `round_trip_us`: a connection to the server is made (again). */
    DPT_AGENT_EVENT_SERVER_UP,
    DPT_AGENT_EVENT_SERVER_DOWN, /* the connection is broken, or is being replaced */
    /* SERVER_DENIES, with `text`: the server refuses this machine's key, or has another key than
     * this machine knows. Holds until `text` is "". */
    DPT_AGENT_EVENT_SERVER_DENIES,
    DPT_AGENT_EVENT_SERVER_MESSAGE, /* server_message */
    DPT_AGENT_EVENT_RANK_MESSAGE,   /* local_rank, spawn, rank_message */
    /* RANK_EOF, with local_rank, spawn, step: the rank's socket closed, and the core kills the
     * rank. */
    DPT_AGENT_EVENT_RANK_EOF,
    /* RANK_EXITED, with local_rank, spawn, step, exit_code, text, is_final: the process was reaped,
     * or it could not be started. */
    DPT_AGENT_EVENT_RANK_EXITED,
    /* RANK_WAITS, with local_rank, spawn: the start of the process waits for the claims on the
     * run's folders. The rank does not count as silent. */
    DPT_AGENT_EVENT_RANK_WAITS,
    DPT_AGENT_EVENT_DISOWNED, /* with `text`: another run owns the folders now */
    /* SIGNAL: a signal or a spot notice. The first one drains this node, the second ends it at
     * once. */
    DPT_AGENT_EVENT_SIGNAL,
    DPT_AGENT_EVENT_COUNT
};

struct dpt_agent_event {
    enum dpt_agent_event_kind kind;
    int64_t now_ms; /* monotonic; at least that of the event before */
    const struct dpt_agent_facts *facts;
    const Dpt__ServerState *server_message; /* borrowed */
    uint32_t round_trip_us;                 /* to the server; 0: not known */
    uint32_t local_rank, spawn;             /* events of an earlier spawn are ignored */
    const Dpt__RankToAgent *rank_message;   /* borrowed */
    int exit_code;                          /* RANK_EXITED: exit status, or -signal if killed */
    bool is_final; /* RANK_EXITED: no other process can start in its place */
    /* Newest completed step in the process's memfd, which also exists after its end; 0: none. */
    int64_t step;
    /* The newest completed step of each local rank; NULL: not read. */
    const int64_t *steps;
    /* The reason, for a person: of DISOWNED and SERVER_DENIES; of RANK_EXITED the cause of the end,
     * may be NULL. */
    const char *text;
};

enum dpt_agent_action_kind {
    /* CONFIGURE: make the node from `spec`, the run's config; NULL: the server has none, use the
     * demo's. */
    DPT_AGENT_ACTION_CONFIGURE,
    DPT_AGENT_ACTION_SPAWN, /* start process `spawn` of local_rank */
    DPT_AGENT_ACTION_KILL,  /* SIGKILL to its process group; RANK_EXITED follows */
    DPT_AGENT_ACTION_EXIT,  /* kill the processes and end the program; the last action */
    DPT_AGENT_ACTION_COUNT
};

struct dpt_agent_action {
    enum dpt_agent_action_kind kind;
    uint32_t local_rank, spawn;
    uint64_t incarnation; /* SPAWN: the node's incarnation */
    /* EXIT: enum dpt_exit_code, or the exit code of a rank with a fatal error. */
    int exit_code;
    const char *text; /* EXIT: one line for a person; "" with code 0 */
    /* CONFIGURE: the run's config. EXIT: the config of the run that refused this node's config. */
    const Dpt__RunSpec *spec;
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

/* The loop carries the outputs out in this order: logs, actions, messages. Borrowed, and valid
 * until the next step or destroy. */
struct dpt_agent_output {
    const struct dpt_agent_action *actions;
    size_t n_actions;
    const Dpt__AgentState *to_server; /* NULL: none; dropped without a connection */
    const struct dpt_agent_send *to_ranks;
    size_t n_to_ranks;
    const struct dpt_agent_log_line *logs;
    size_t n_logs;
    int64_t deadline_ms; /* time of the next TICK; always set */
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
    /* Number of correctly predicted labels, and number of samples; 0: no labels. */
    int64_t right, samples;
};

/* What happens to unsaved steps if SIGTERM comes while no server answers. NONE: they are lost.
 * PART: this node saves its part of the state, and other nodes must save the rest. WHOLE: this node
 * saves the whole state. */
enum dpt_agent_rescue { DPT_AGENT_RESCUE_NONE, DPT_AGENT_RESCUE_PART, DPT_AGENT_RESCUE_COMPLETE };

/* The state for the progress lines and the simulator. Pointers are valid until the next step. */
struct dpt_agent_view {
    uint64_t incarnation, generation, epoch;
    Dpt__ServerPhase phase; /* newest of this incarnation */
    char plan_digest[DPT_PROTO_DIGEST_BYTES];
    uint32_t world_size, n_nodes;
    int64_t step;             /* newest of a living local rank; -1: none */
    float loss, tokens_per_s; /* of the whole world; 0 until a local rank has completed a step */
    struct dpt_agent_evaluation val;
    /* Of the present generation, once it trains. */
    bool trains;
    const char *cause, *cause_kind; /* "" if `trains` is false */
    int64_t resume_step, steps_lost;
    /* Duration of the standstill before the generation: from the last sign of life of the lost
     * rank, or from the step boundary, to GO. */
    int64_t still_ms;
    /* The newest report of rank 0, if rank 0 is or was on this node; else NULL. */
    const Dpt__RankToAgent *first;
    /* Number of steps that no checkpoint has, as far as this node knows. */
    int64_t unsaved_steps;
    /* Number of these steps that died with rank processes here and that other nodes keep. */
    int64_t steps_elsewhere;
    enum dpt_agent_rescue rescue;
    /* A local rank is in a generation that is not known to be broken. */
    bool computing;
    bool paused; /* an operator has paused or stopped the run */
    bool server_up, leaving, ending, ended;
    struct {
        int64_t length_ms;                 /* SETTLING: when the number of nodes last changed */
        char reason[DPT_PROTO_TEXT_BYTES]; /* why it is long; "" */
    } last_call;
    int64_t write_until_ms; /* ranks may write files until this time */
    struct dpt_timing timing;
};
void dpt_agent_view(const struct dpt_agent *agent, struct dpt_agent_view *ret);

#endif
