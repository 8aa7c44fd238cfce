/* The node agent's decisions: a pure state machine for one node of one run. No sockets, clock,
 * threads, processes or files; the loop round it (worker/agent) carries out what it says.
 *
 * The agent relays membership between the server and its ranks; it decides by itself only what
 * concerns this node: when a rank is started, killed and started again, when files may be written,
 * and when and with which code the program ends. docs/membership.md has the rules. */
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
    DPT_EXIT_SERVER = 3,   /* server unreachable until the join deadline */
    DPT_EXIT_FAILED = 4,   /* the run failed */
    DPT_EXIT_EXPELLED = 75 /* out, and could not rejoin in time (EX_TEMPFAIL) */
};

struct dpt_agent;

/* Strings are copied. */
struct dpt_agent_options {
    const char *run;      /* rendezvous run id */
    const char *node;     /* random id, or --node-id */
    const char *software; /* "dpt 0.1.0" */
    uint64_t incarnation; /* until the facts tell a higher one; with it nothing but the config is
                             asked for */
    int64_t timeout_ms;   /* until a config is known: the default's */
    int64_t now_ms;
};

/* What is known once the config is (with --config from the start, else from the server's answer).
 * Strings and spec are copied. */
struct dpt_agent_facts {
    const Dpt__RunSpec *spec; /* of the config in force here; the timing is made of it */
    uint32_t n_ranks;         /* rank processes of this node, 1 … DPT_PROTO_RANKS_MAX */
    const char *fingerprint, *host, *log_dir_id, *checkpoint_dir_id, *data_digest;
    const char *host_name; /* for people; NULL: not known */
    /* Of this node id: see identity.h. The incarnation counts if it is above that of the options.
     */
    uint8_t secret[DPT_PROTO_SECRET_BYTES];
    uint64_t incarnation;
};

/* The loop: wait until something is readable or deadline_ms, hand over what arrived, then one TICK.
 * The machine itself notices from the times that its loop was stopped. */
enum dpt_agent_event_kind {
    DPT_AGENT_EVENT_TICK,           /* steps */
    DPT_AGENT_EVENT_CONFIGURED,     /* facts; once, first thing or in answer to ACTION_CONFIGURE */
    DPT_AGENT_EVENT_SERVER_UP,      /* a connection to the server stands (again): say who we are */
    DPT_AGENT_EVENT_SERVER_DOWN,    /* it is gone, or is being replaced */
    DPT_AGENT_EVENT_SERVER_MESSAGE, /* server_message */
    DPT_AGENT_EVENT_RANK_MESSAGE,   /* local_rank, spawn, rank_message */
    DPT_AGENT_EVENT_RANK_EOF,       /* local_rank, spawn, step: its socket closed; it is killed */
    DPT_AGENT_EVENT_RANK_EXITED,    /* local_rank, spawn, step, exit_code, text: reaped, or never
                                     * started */
    DPT_AGENT_EVENT_RANK_WAITS, /* local_rank, spawn: not started yet, since the run's folders are
                                 * still being claimed: it is not silent */
    DPT_AGENT_EVENT_DISOWNED,   /* text: the run's folders are another's by now */
    DPT_AGENT_EVENT_SIGNAL,     /* told to end, by a signal or a spot notice: the first drains, the
                                 * second means now
                                 */
    DPT_AGENT_EVENT_COUNT
};

struct dpt_agent_event {
    enum dpt_agent_event_kind kind;
    int64_t now_ms; /* monotonic, never below the last event's */
    const struct dpt_agent_facts *facts;
    const Dpt__ServerState *server_message; /* borrowed */
    uint32_t local_rank, spawn;             /* an event of an earlier spawn is ignored */
    const Dpt__RankToAgent *rank_message;   /* borrowed */
    int exit_code;                          /* RANK_EXITED: status if >= 0, -signal if killed */
    bool is_final;                          /* RANK_EXITED: no other can be started here */
    /* The newest step that the process has kept outside itself, which its messages may not have
     * told yet; 0: none. `steps`: of each local rank; NULL: nobody has looked. */
    int64_t step;
    const int64_t *steps;
    const char *text; /* DISOWNED; RANK_EXITED: for a person, e.g. why it could not be started; may
                         be NULL */
};

enum dpt_agent_action_kind {
    DPT_AGENT_ACTION_CONFIGURE, /* `spec`: config to take from the server; NULL: it has none, use
                                   the demo config */
    DPT_AGENT_ACTION_SPAWN,     /* start process `spawn` of local_rank (incarnation: for its command
                                   line) */
    DPT_AGENT_ACTION_KILL,      /* SIGKILL its process group; RANK_EXITED must follow */
    DPT_AGENT_ACTION_EXIT, /* end the program with exit_code, saying text; killing what is left. The
                              last action */
    DPT_AGENT_ACTION_COUNT
};

struct dpt_agent_action {
    enum dpt_agent_action_kind kind;
    uint32_t local_rank, spawn;
    uint64_t incarnation;     /* SPAWN: of the node */
    int exit_code;            /* EXIT: enum dpt_exit_code, or a rank's own with a fatal error */
    const char *text;         /* EXIT: one line for a person; "" with code 0 */
    const Dpt__RunSpec *spec; /* CONFIGURE; EXIT when the config was refused: the run's, to name the
                                 differing keys */
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

/* What to do, in this order: logs, actions, sends. Everything is borrowed and valid until the next
 * step or destroy. */
struct dpt_agent_output {
    const struct dpt_agent_action *actions;
    size_t n_actions;
    const Dpt__AgentState
        *to_server; /* NULL: nothing to say now. May be dropped when there is no connection */
    const struct dpt_agent_send *to_ranks;
    size_t n_to_ranks;
    const struct dpt_agent_log_line *logs;
    size_t n_logs;
    int64_t deadline_ms; /* next TICK no later than this; always set */
};

/* Returns owned; DPT_ENOMEM. Options are as checked by the caller (lengths below DPT_PROTO_*). */
DPT_MUST_USE enum dpt_status dpt_agent_create(const struct dpt_agent_options *options,
                                              struct dpt_agent **ret, struct dpt_err *err);
void dpt_agent_destroy(struct dpt_agent **agent);

/* Takes one event. Never blocks. DPT_ENOMEM is the only failure and leaves the machine unusable.
 * After ACTION_EXIT every event is ignored. */
DPT_MUST_USE enum dpt_status dpt_agent_step(struct dpt_agent *agent,
                                            const struct dpt_agent_event *event,
                                            struct dpt_agent_output *ret, struct dpt_err *err);

/* A completed step, as a rank told of it. */
struct dpt_agent_step {
    int64_t step;
    double loss, lr, grad_norm, tokens_per_s; /* 0: not known */
    uint32_t world_size;
    int64_t epoch; /* that it ends, from 1 on; 0: none */
    int64_t epoch_first_step;
    double epoch_avg_loss, epoch_seconds, epoch_samples_per_s;
};

/* As seen now, for the progress line and the simulator. */
struct dpt_agent_view {
    uint64_t incarnation, generation, epoch;
    Dpt__ServerPhase phase; /* last heard of this incarnation */
    char plan_digest[DPT_PROTO_DIGEST_BYTES];
    uint32_t world_size, n_nodes;
    int64_t step;             /* newest applied by a rank of this node; -1: none */
    float loss, tokens_per_s; /* the world's; 0 until a rank of this node has made a step */
    int64_t val_step;         /* of the newest evaluation; 0: none */
    double val_loss;
    int64_t val_right, val_samples; /* predicted labels, of so many samples; 0: without labels */
    /* Of the generation in force, once it trains; valid until the next step of the machine. */
    bool trains;
    const char *cause, *cause_kind; /* "" else */
    int64_t resume_step, steps_lost;
    int64_t still_ms; /* from the last sign of life of what was lost, or from the step boundary, to
                         GO */
    /* Where rank 0 is on this node, since it was: what it told. Valid as above. */
    bool is_first;
    const struct dpt_agent_step *steps; /* (n_steps) of its last message that had any, rising */
    size_t n_steps;
    int64_t saved_step;             /* newest checkpoint; 0: none */
    const Dpt__RunSummary *summary; /* NULL: the run has not ended */
    int64_t unsaved_steps;          /* that no checkpoint holds, as far as is known here */
    /* What SIGTERM would do with them if the server stays away: write them, write a part that is of
     * use only with those of other nodes, or lose them. */
    enum dpt_agent_rescue {
        DPT_AGENT_RESCUE_NONE,
        DPT_AGENT_RESCUE_PART,
        DPT_AGENT_RESCUE_WHOLE
    } rescue;
    bool computing; /* a rank here is in a generation that is not known to be broken */
    bool server_up, leaving, ending, ended;
    int64_t last_call_ms; /* SETTLING: how long it lasted when n_nodes were here first */
    char reason[DPT_PROTO_TEXT_BYTES]; /* why it lasts long; "" */
    int64_t write_until_ms;            /* ranks may write files until then */
    struct dpt_timing timing;
};
void dpt_agent_view(const struct dpt_agent *agent, struct dpt_agent_view *ret);

#endif
