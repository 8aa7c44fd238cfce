/* The state of the agent's core, and the functions that its files share. The files are layers; each
 * calls only files above it in this list:
 *
 *   core_state    the state: structs, text, outputs, questions
 *   core_steps    the steps that no checkpoint has: held here, or lost with a process
 *   core_rank     rank processes: started, killed, judged, their reports
 *   core_message  the messages to the server and to the ranks
 *   core_end      the end of this node, with a rescue before it
 *   core_stage    the stages of this node: signals, expulsion, deadlines
 *   core_server   the messages of the server
 *   core          events and outputs; core_view: the view for the terminal and the simulator */
#ifndef DPT_WORKER_AGENT_CORE_STATE_H
#define DPT_WORKER_AGENT_CORE_STATE_H

#include "worker/agent/core.h"
#include "worker/agent/rank_protocol.h"

enum {
    ACTIONS_MAX = 3 * DPT_PROTO_RANKS_MAX + 4,
    /* Log lines of one event; further lines are dropped. */
    LOG_LINES_MAX = 2 * DPT_PROTO_RANKS_MAX + 16,
    LOG_TEXT_BYTES = 768,
    /* Messages whose sending time is kept. The echo of an older message confirms nothing. */
    SENT_MAX = 64,
    /* Expulsions in a row, with no generation between them, after which the node ends. */
    EXPULSIONS_MAX = 8,
    /* After this number of steps an error is no longer the first error. */
    FORGIVEN_STEPS = 10,
    /* Least time to the first report of a process. */
    FIRST_REPORT_MS = 5000,
    /* Failed starts in a row after which a local rank stays empty. */
    STARTS_MAX = 10,
    END_TEXT_BYTES = 2 * DPT_PROTO_TEXT_BYTES
};

/*  NONE --spawn--> UP --kill: silence, end of file, no quiescence--> KILLED --reaped--> DOWN
 *                   |                                                                    ^ |
 *                   +---------------------------- reaped --------------------------------+ |
 *                   ^                                                                      |
 *                   +------------------------ pause, spawn + 1 ----------------------------+ */
enum life { LIFE_NONE, LIFE_UP, LIFE_KILLED, LIFE_DOWN };

/* A local rank and its newest process. */
struct agent_rank {
    enum life life;
    uint32_t spawn;
    /* The newest report. Its phase becomes RANK_DEAD when the process is lost. */
    struct dpt_report report;
    int64_t kept_step; /* newest step in the process's memfd; 0: none */
    int64_t report_ms; /* time of the newest report */
    /* report_ms, moved forward by the gaps of this agent's own loop. */
    int64_t judged_ms;
    /* With DOWN: time of the next start, and length of the last pause. */
    int64_t respawn_at_ms, pause_ms;
    bool reported;          /* a report of this process has come */
    bool started;           /* this process has reached RANK_STANDBY */
    bool doomed;            /* the process has reported a fatal error and writes nothing more */
    uint32_t failed_starts; /* failed starts in a row */
    /* Generation of the newest hard PREPARE sent to this process, and the sending time. */
    uint64_t asked_generation;
    int64_t asked_ms;
    int32_t plan_rank; /* rank in the plan; -1: no place */
    bool has_news;     /* a message is due */
};

enum stage {
    STAGE_ASKING,    /* no config yet */
    STAGE_JOINING,   /* no server has counted this incarnation in */
    STAGE_JOINED,    /* a server counts this incarnation in */
    STAGE_RESETTING, /* expelled; waits until the last rank process is reaped */
    STAGE_ENDING,    /* ends; waits until the last rank process is reaped */
    STAGE_ENDED
};

enum order { ORDER_NONE, ORDER_PREPARE_SOFT, ORDER_PREPARE, ORDER_PLAN, ORDER_GO };

/* This node. The options fill it; the facts complete it when the node is configured. */
struct agent_node {
    char run[DPT_PROTO_NAME_BYTES], id[DPT_PROTO_NAME_BYTES], software[DPT_PROTO_NAME_BYTES];
    uint64_t incarnation;
    Dpt__RunSpec *spec; /* owned; NULL: there is no config yet */
    struct dpt_agent_facts facts;
};

/* The conversation with the server. */
struct agent_server {
    bool up, heard_ever;
    uint32_t round_trip_us; /* as the newest SERVER_UP said */
    /* Time of the server's newest message, moved forward by the gaps of this agent's loop. */
    int64_t contact_ms;
    uint64_t epoch;        /* 0: no server counts this incarnation in */
    uint64_t counter;      /* number of the newest message to the server */
    uint64_t seen;         /* newest counter that the server has echoed */
    uint64_t its_counter;  /* counter of the server's newest message */
    uint64_t spec_counter; /* counter of the first message with the spec; 0: none */
    /* The pause between two messages while nothing happens, as the server wants it, and the time of
     * the next message. 0: a message with each heartbeat. */
    int64_t pause_ms, beat_ms;
    bool configure_asked;
    Dpt__ServerPhase phase;
    uint32_t n_nodes;
    /* Step of the newest checkpoint that the server or a local rank has reported; 0: none. */
    int64_t saved_step;
    /* The operator wants a checkpoint of this step or a later one; 0: none. */
    int64_t save_from;
    uint64_t dump; /* number of the newest request for the stacks of the ranks; 0: none */
    /* The operator has paused the run, or stopped it: then DONE comes before all steps are done. */
    bool paused;
    /* SETTLING: number of nodes, and the remaining length of the last call when that number last
     * changed. */
    uint32_t last_call_nodes;
    int64_t last_call_ms;
    char reason[DPT_PROTO_TEXT_BYTES]; /* why the last call is long */
    char denial[DPT_PROTO_TEXT_BYTES]; /* why the server does not take this machine's keys; "" */
    int64_t denied_ms;                 /* since then */
};

/* The server's newest order to the ranks. */
struct agent_generation {
    enum order order;
    uint64_t number;
    Dpt__Plan *plan; /* owned; set with PLAN, GO and PREPARE_SOFT */
    int64_t prepare_ms, plan_ms, grant_step;
    /* Time at which the last local rank stopped computing; -1: a local rank computes. */
    int64_t still_since_ms;
    /* Duration of the standstill of training before this generation. */
    int64_t still_ms;
    /* Local rank that is rank 0, kept after its plan ended; -1: rank 0 is on another node. */
    int32_t first_local;
};

/* Permission to write files. */
struct agent_lease {
    bool fenced;
    /* The fence ends when the server echoes a message with a higher counter. */
    uint64_t fence_counter;
    int64_t write_until_ms;
    int64_t sent_ms[SENT_MAX]; /* sending time of message n at [n % SENT_MAX] */
    int64_t confirmed_ms;      /* sending time of the newest confirmed message */
    /* Epoch of the server that has had this incarnation in a generation. */
    uint64_t confirming_epoch;
};

/* Errors of rank processes. */
struct agent_errors {
    uint32_t crashes;
    char first[DPT_PROTO_TEXT_BYTES]; /* first error since the last recovery; "": none */
    int64_t first_ms, first_step;     /* its time, and the step reached at that time */
    bool fatal;                       /* the first error ends this node */
    int fatal_code;
    /* The server knows of the fatal error when it echoes a message with a higher counter. */
    uint64_t fatal_counter;
    int64_t fatal_by_ms;
};

/* The newest step of the processes that died since the last GO. */
struct agent_gone {
    int64_t step; /* 0: none */
    /* Other nodes of that generation, if there are any, hold the same step. */
    bool is_copied;
    bool is_logged; /* the log has a line about the loss */
};

/* Leaving, and the end. */
struct agent_end {
    bool leaving; /* ranks and server know that this node leaves */
    /* This node leaves because of a signal. `leaving` without `signalled`: the run has ended. */
    bool signalled;
    /* The server has released this node, and no node that stays has its state. */
    bool last_holder;
    /* The log has a line about the steps lost with this incarnation. */
    bool unsaved_told;
    bool rescuing; /* the ranks write a rescue; the server's orders are ignored */
    int64_t rescue_step;
    /* Exit code after the rescue; 0: the code of a node that leaves. */
    int rescue_code;
    char rescue_text[END_TEXT_BYTES];
    int64_t drain_by_ms, kill_at_ms, give_up_ms;
    bool goodbye; /* a last message to the server is due */
    int code;
    char text[END_TEXT_BYTES];
    /* Config of the run that has refused this config; owned, NULL: none. */
    Dpt__RunSpec *spec;
};

/* The outputs of one event. */
struct agent_outputs {
    bool server_due, no_memory; /* a message to the server is due */
    struct dpt_agent_action actions[ACTIONS_MAX];
    size_t n_actions;
    struct dpt_agent_log_line logs[LOG_LINES_MAX];
    char log_texts[LOG_LINES_MAX][LOG_TEXT_BYTES];
    size_t n_logs;
    Dpt__RunSpec *configure_spec; /* for CONFIGURE; owned, NULL: none */
    Dpt__AgentToRank to_rank[DPT_PROTO_RANKS_MAX];
    struct dpt_agent_send sends[DPT_PROTO_RANKS_MAX];
    size_t n_sends;
    Dpt__AgentState to_server;
    Dpt__Stamp stamp;
    Dpt__NodeHealth health;
    Dpt__RankState *to_server_ranks[DPT_PROTO_RANKS_MAX];
    Dpt__RankState without_repetition[DPT_PROTO_RANKS_MAX]; /* copies of reports */
    char no_text[1];                                        /* "" */
};

struct dpt_agent {
    int64_t now_ms, deadline_ms, beat_ms; /* beat_ms: next heartbeat */
    struct dpt_timing timing;
    enum stage stage;
    uint32_t expulsions;
    int64_t step_high; /* highest step completed on this node since the last GO; 0: none */
    struct agent_node node;
    struct agent_server server;
    struct agent_generation gen;
    struct agent_lease lease;
    struct agent_errors errors;
    struct agent_gone gone;
    struct agent_end end;
    struct agent_outputs out;
    uint32_t n_ranks;
    struct agent_rank ranks[DPT_PROTO_RANKS_MAX];
};

/* ---- core_state.c: outputs ---- */

void dpt_agent_act(struct dpt_agent *agent, const struct dpt_agent_action *action);
void dpt_agent_log(struct dpt_agent *agent, enum dpt_log_level level, const char *fmt, ...)
    DPT_PRINTF(3, 4);
/* Marks a message to each rank as due. */
void dpt_agent_tell_ranks(struct dpt_agent *agent);
void dpt_agent_copy_text(char *to, size_t to_bytes, const char *from);
/* Returns an owned message of the same type; NULL, and no_memory is set: out of memory. */
void *dpt_agent_copy_message(struct dpt_agent *agent, const ProtobufCMessage *from);
/* Frees the plan. The ranks lose their places in it, and its grant ends. */
void dpt_agent_drop_plan(struct dpt_agent *agent);
/* Ranks write no files until the server has answered a later message. */
void dpt_agent_fence(struct dpt_agent *agent);

/* ---- core_state.c: questions ---- */

/* Whether the local rank has a process that has not been reaped. */
bool dpt_agent_has_process(const struct agent_rank *rank);
bool dpt_agent_has_processes(const struct dpt_agent *agent);
/* Whether a local rank is in phase RANK_RUNNING. */
bool dpt_agent_is_computing(const struct dpt_agent *agent);
/* Whether the rank makes steps: it is RUNNING in a generation that is not known to be broken. */
bool dpt_agent_makes_steps(const struct agent_rank *rank);
/* The newest step that the process has reported or kept in its memfd; -1: none. */
int64_t dpt_agent_newest_of(const struct agent_rank *rank);
/* The newest step of a living local process; -1: none. */
int64_t dpt_agent_step_of(const struct dpt_agent *agent);
/* Whether the server has echoed a message with the spec. */
bool dpt_agent_spec_is_known(const struct dpt_agent *agent);
/* Whether the server has many nodes, and so wants a longer pause than the heartbeat. */
bool dpt_agent_has_long_pauses(const struct dpt_agent *agent);
/* Whether the server waits for more nodes or ready ranks. */
bool dpt_agent_is_waiting(const struct dpt_agent *agent);
/* Whether the server has been silent for a lease, or for a quarter of the drain time if that is
 * shorter. A server that has just been started takes over first and grants nothing soon. */
bool dpt_agent_lacks_server(const struct dpt_agent *agent);

/* ---- core_steps.c: the steps that no checkpoint has ---- */

/* The newest checkpoint or rescue that a rank here or the server has reported; 0: none. */
int64_t dpt_agent_saved_step(const struct dpt_agent *agent);
/* Whether living local processes hold steps that no checkpoint has, as far as this node knows. */
bool dpt_agent_holds_unsaved(const struct dpt_agent *agent);
/* Whether the rank's process lives, holds exactly `step` and can write it. */
bool dpt_agent_holds_step(const struct agent_rank *rank, int64_t step);

/* Notes the step of a process that has died, or is about to be killed. */
void dpt_agent_note_gone(struct dpt_agent *agent, const struct agent_rank *rank);
/* The newest step that is saved, or of which a living local process holds parts that all have a
 * second holder. */
int64_t dpt_agent_whole_step(const struct dpt_agent *agent);
/* The newest step that died with a local process and is beyond dpt_agent_whole_step; 0: none. */
int64_t dpt_agent_gone_step(const struct dpt_agent *agent);
/* Whether another node has the newest step that died on this node, as far as this node knows. */
bool dpt_agent_gone_is_elsewhere(const struct dpt_agent *agent);
/* Number of steps that no checkpoint has and that died with rank processes here, if other nodes
 * keep them; else 0. These nodes wait for a server without limit, and may need this node then. */
int64_t dpt_agent_steps_elsewhere(const struct dpt_agent *agent);

/* Whether the rank writes the rescue, or a part of it. */
bool dpt_agent_is_rescuer(const struct dpt_agent *agent, uint32_t local_rank);
/* Which part of the unsaved state a signal saves if no server answers. */
enum dpt_agent_rescue dpt_agent_rescue_of(const struct dpt_agent *agent);

/* ---- core_rank.c: the rank processes ---- */

/* Resets the local rank to the state of one that has no process. */
void dpt_agent_rank_reset(struct agent_rank *rank, uint32_t local_rank);

/* The events of core.h. An event of an earlier spawn changes nothing. */
void dpt_agent_on_rank(struct dpt_agent *agent, const struct dpt_agent_event *event);
void dpt_agent_on_rank_eof(struct dpt_agent *agent, const struct dpt_agent_event *event);
void dpt_agent_on_rank_waits(struct dpt_agent *agent, const struct dpt_agent_event *event);
void dpt_agent_on_rank_exited(struct dpt_agent *agent, const struct dpt_agent_event *event);
/* `step`: newest step in the process's memfd. */
void dpt_agent_on_rank_step(struct dpt_agent *agent, uint32_t local_rank, int64_t step);

/* At TICK: starts processes whose pause is over, kills those that are silent or do not quiesce. */
void dpt_agent_check_ranks(struct dpt_agent *agent);
/* Starts a process in every empty local rank. */
void dpt_agent_spawn_ranks(struct dpt_agent *agent);
/* SIGKILL to every process; not counted as a crash. */
void dpt_agent_kill_ranks(struct dpt_agent *agent);
/* Whether the local rank is DOWN and a process starts in it after its pause. */
bool dpt_agent_will_respawn(const struct dpt_agent *agent, uint32_t local_rank);

/* ---- core_message.c: the messages of this node ---- */

/* Adds the message for a rank process to the outputs. */
void dpt_agent_send_to_rank(struct dpt_agent *agent, uint32_t local_rank);
/* Makes the next message to the server; valid until the next event. */
const Dpt__AgentState *dpt_agent_make_state(struct dpt_agent *agent);

/* ---- core_end.c: the end of this node ---- */

/* END_IN_ORDER: the ranks are told to exit, and are killed after exit_ms. END_AT_ONCE: the ranks
 * are killed now. */
enum end_kind { END_IN_ORDER, END_AT_ONCE };

/* Begins the end of this node, with exit code `code` and one line for a person. Logs the steps that
 * are lost with this node. If a checkpoint should have them, DPT_EXIT_DONE and a refusal's
 * DPT_EXIT_CONFIG become DPT_EXIT_EXPELLED. */
void dpt_agent_end(struct dpt_agent *agent, enum end_kind kind, int code, const char *fmt, ...)
    DPT_PRINTF(4, 5);
/* Ends this node after an event that leaves no other node to save its steps. If the ranks can, they
 * first write the steps as a rescue. */
void dpt_agent_end_saved(struct dpt_agent *agent, int code, const char *text);
/* At TICK and after a signal. A node that leaves without a server begins the rescue, and ends when
 * the rescue is complete or cannot be completed. */
void dpt_agent_check_rescue(struct dpt_agent *agent);
/* Adds ACTION_EXIT, the last action. */
void dpt_agent_finish(struct dpt_agent *agent);

/* ---- core_stage.c: the stages of this node ---- */

/* The server has expelled this incarnation. world_step: step of the world that runs without this
 * node; 0: there is no such world, or its step is unknown. */
void dpt_agent_on_expelled(struct dpt_agent *agent, int64_t world_step, const char *text);
void dpt_agent_on_signal(struct dpt_agent *agent);
/* An operator wants this node to leave: as the first signal, which may still come. */
void dpt_agent_on_drain(struct dpt_agent *agent);
/* At TICK: the deadlines of this node. */
void dpt_agent_check_stage(struct dpt_agent *agent);
/* After every event: continues the reset or the end when the last process has been reaped. */
void dpt_agent_settle_stage(struct dpt_agent *agent);

/* ---- core_server.c: the messages of the server ---- */

void dpt_agent_on_server(struct dpt_agent *agent, const Dpt__ServerState *message);

#endif
