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
    LOG_LINES_MAX = 2 * DPT_PROTO_RANKS_MAX + 16, /* of one event; further lines are dropped */
    LOG_TEXT_BYTES = 768,
    SENT_MAX = 64,       /* messages with a known time; the echo of an older one confirms nothing */
    EXPULSIONS_MAX = 8,  /* in a row without a generation between them; then the node ends */
    FORGIVEN_STEPS = 10, /* steps after which an error is no longer the first error */
    STARTS_MAX = 10,     /* failed starts in a row; then a local rank stays empty */
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
    struct dpt_report report;        /* the newest; phase RANK_DEAD once the process is lost */
    int64_t kept_step;               /* newest step in the process's memfd; 0: none */
    int64_t report_ms;               /* time of the newest report */
    int64_t judged_ms;               /* the same without gaps of this agent's own loop */
    int64_t respawn_at_ms, pause_ms; /* DOWN: time of the next start; length of the last pause */
    bool started;                    /* this process has reached RANK_STANDBY */
    bool doomed;                     /* it has reported a fatal error and writes nothing more */
    uint32_t failed_starts;          /* in a row */
    uint64_t asked_generation;       /* newest hard PREPARE sent to this process, and its time */
    int64_t asked_ms;
    int32_t plan_rank; /* in the plan; -1: no place */
    bool has_news;     /* a message is due */
};

enum stage {
    STAGE_ASKING,    /* no config yet */
    STAGE_JOINING,   /* no server counts this incarnation in */
    STAGE_JOINED,    /* a server counts this incarnation in */
    STAGE_RESETTING, /* expelled: waits for the last old rank process */
    STAGE_ENDING,    /* waits for the last rank process */
    STAGE_ENDED
};

enum order { ORDER_NONE, ORDER_PREPARE_SOFT, ORDER_PREPARE, ORDER_PLAN, ORDER_GO };

/* This node: from the options, and once configured from the facts. */
struct agent_node {
    char run[DPT_PROTO_NAME_BYTES], id[DPT_PROTO_NAME_BYTES], software[DPT_PROTO_NAME_BYTES];
    uint64_t incarnation;
    Dpt__RunSpec *spec; /* owned; NULL: there is no config yet */
    struct dpt_agent_facts facts;
};

/* The conversation with the server. */
struct agent_server {
    bool up, heard_ever;
    int64_t contact_ms;    /* time of its newest message, gaps of this agent's loop left out */
    uint64_t epoch;        /* 0: no server counts this incarnation in */
    uint64_t counter;      /* of the newest message to it */
    uint64_t seen;         /* newest counter that it has echoed */
    uint64_t its_counter;  /* of its newest message */
    uint64_t spec_counter; /* first message that brought it the spec; 0: none */
    bool configure_asked;
    Dpt__ServerPhase phase;
    uint32_t n_nodes;
    int64_t saved_step;       /* newest checkpoint that it or a rank here has reported; 0: none */
    uint32_t last_call_nodes; /* SETTLING: number of nodes, and the rest of the last call then */
    int64_t last_call_ms;
    char reason[DPT_PROTO_TEXT_BYTES]; /* of a long last call */
};

/* The server's newest order to the ranks. */
struct agent_generation {
    enum order order;
    uint64_t number;
    Dpt__Plan *plan; /* owned; with PLAN, GO and PREPARE_SOFT */
    int64_t prepare_ms, plan_ms, grant_step;
    int64_t still_since_ms; /* time at which the last rank here stopped; -1: some compute */
    int64_t still_ms;       /* how long training stopped before this generation */
    int32_t first_local;    /* local rank of rank 0, also after its plan ended; -1: elsewhere */
};

/* Permission to write files. */
struct agent_lease {
    bool fenced;
    uint64_t fence_counter; /* the fence ends when the server echoes a later message */
    int64_t write_until_ms;
    int64_t sent_ms[SENT_MAX]; /* of message `counter`, at counter % SENT_MAX */
    int64_t confirmed_ms;      /* sending time of the newest confirmed message */
    uint64_t confirming_epoch; /* server that has had this incarnation in a generation */
};

/* Errors of rank processes. */
struct agent_errors {
    uint32_t crashes;
    char first[DPT_PROTO_TEXT_BYTES]; /* first error since the last recovery; "": none */
    int64_t first_ms, first_step;     /* its time, and the step reached then */
    bool fatal;                       /* the first error ends this node */
    int fatal_code;
    uint64_t fatal_counter; /* the server knows of it when it echoes a later message */
    int64_t fatal_by_ms;
};

/* The newest step of the processes that died since the last GO. */
struct agent_gone {
    int64_t step;   /* 0: none */
    bool is_copied; /* other nodes of its generation, if any, hold the same */
    bool is_logged; /* the log has a line of its death */
};

/* Leaving, and the end. */
struct agent_end {
    bool leaving;      /* ranks and server know that this node leaves */
    bool signalled;    /* by a signal; `leaving` without it: the run has ended */
    bool last_holder;  /* released, and no other node has the state of this one */
    bool unsaved_told; /* the log has a line of the steps lost with this incarnation */
    bool rescuing;     /* the ranks write a rescue; the server's orders are ignored */
    int64_t rescue_step;
    int rescue_code; /* exit code after the rescue; 0: that of a node that leaves */
    char rescue_text[END_TEXT_BYTES];
    int64_t drain_by_ms, kill_at_ms, give_up_ms;
    bool goodbye; /* a last message to the server is due */
    int code;
    char text[END_TEXT_BYTES];
    Dpt__RunSpec *spec; /* of the run that has refused this config; owned, NULL: none */
};

/* The outputs of one event. */
struct agent_outputs {
    bool server_due, no_memory; /* a message to the server is due */
    struct dpt_agent_action actions[ACTIONS_MAX];
    size_t n_actions;
    struct dpt_agent_log_line logs[LOG_LINES_MAX];
    char log_texts[LOG_LINES_MAX][LOG_TEXT_BYTES];
    size_t n_logs;
    Dpt__RunSpec *configure_spec; /* of CONFIGURE; owned, NULL: none */
    Dpt__AgentToRank to_rank[DPT_PROTO_RANKS_MAX];
    struct dpt_agent_send sends[DPT_PROTO_RANKS_MAX];
    size_t n_sends;
    Dpt__AgentState to_server;
    Dpt__Stamp stamp;
    Dpt__RankState *to_server_ranks[DPT_PROTO_RANKS_MAX];
};

struct dpt_agent {
    int64_t now_ms, deadline_ms, beat_ms; /* beat_ms: next heartbeat */
    struct dpt_timing timing;
    enum stage stage;
    uint32_t expulsions;
    int64_t step_high; /* highest step completed here since the last GO; 0: none */
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
/* A message to each rank is due. */
void dpt_agent_tell_ranks(struct dpt_agent *agent);
void dpt_agent_copy_text(char *to, size_t to_bytes, const char *from);
/* Returns an owned message of the same type; NULL, and no_memory is set: out of memory. */
void *dpt_agent_copy_message(struct dpt_agent *agent, const ProtobufCMessage *from);
/* Frees the plan; its places and its grant end. */
void dpt_agent_drop_plan(struct dpt_agent *agent);
/* Ranks write no files until the server has answered a later message. */
void dpt_agent_fence(struct dpt_agent *agent);

/* ---- core_state.c: questions ---- */

/* A process that has not been reaped. */
bool dpt_agent_has_process(const struct agent_rank *rank);
bool dpt_agent_has_processes(const struct dpt_agent *agent);
/* A rank here is in phase RANK_RUNNING. */
bool dpt_agent_is_computing(const struct dpt_agent *agent);
/* The rank makes steps: RUNNING in a generation that is not known to be broken. */
bool dpt_agent_makes_steps(const struct agent_rank *rank);
/* The newest step that the process has reported or kept in its memfd; -1: none. */
int64_t dpt_agent_newest_of(const struct agent_rank *rank);
/* The newest step of a living process here; -1: none. */
int64_t dpt_agent_step_of(const struct dpt_agent *agent);
/* The server has echoed a message with the spec. */
bool dpt_agent_spec_is_known(const struct dpt_agent *agent);
/* The server waits for more nodes or ready ranks. */
bool dpt_agent_is_waiting(const struct dpt_agent *agent);
/* The server has been silent for a lease, or for a quarter of a drain if that is shorter: it takes
 * over and grants nothing soon. */
bool dpt_agent_lacks_server(const struct dpt_agent *agent);

/* ---- core_steps.c: the steps that no checkpoint has ---- */

/* The newest checkpoint or rescue that a rank here or the server has reported; 0: none. */
int64_t dpt_agent_saved_step(const struct dpt_agent *agent);
/* Living processes here hold steps that no checkpoint has, as far as this node knows. */
bool dpt_agent_holds_unsaved(const struct dpt_agent *agent);
/* A living process holds exactly `step` and can write it. */
bool dpt_agent_holds_step(const struct agent_rank *rank, int64_t step);

/* Notes the step of a process that has died, or is about to be killed. */
void dpt_agent_note_gone(struct dpt_agent *agent, const struct agent_rank *rank);
/* The newest step that is saved, or that a living process here holds with a second holder for each
 * part. */
int64_t dpt_agent_whole_step(const struct dpt_agent *agent);
/* The newest step that died with a process here and is beyond dpt_agent_whole_step; 0: none. */
int64_t dpt_agent_gone_step(const struct dpt_agent *agent);
/* Another node has the newest step that died here, as far as this node knows. */
bool dpt_agent_gone_is_elsewhere(const struct dpt_agent *agent);

/* The rank writes the rescue, or its part of the rescue. */
bool dpt_agent_is_rescuer(const struct dpt_agent *agent, uint32_t local_rank);
/* The steps that a signal would save without a server. */
enum dpt_agent_rescue dpt_agent_rescue_of(const struct dpt_agent *agent);

/* ---- core_rank.c: the rank processes ---- */

/* Empties the local rank: it has no process. */
void dpt_agent_rank_reset(struct agent_rank *rank, uint32_t local_rank);

/* The events of core.h. An event of an earlier spawn changes nothing. */
void dpt_agent_on_rank(struct dpt_agent *agent, const struct dpt_agent_event *event);
void dpt_agent_on_rank_eof(struct dpt_agent *agent, const struct dpt_agent_event *event);
void dpt_agent_on_rank_waits(struct dpt_agent *agent, const struct dpt_agent_event *event);
void dpt_agent_on_rank_exited(struct dpt_agent *agent, const struct dpt_agent_event *event);
/* `step`: of the process's memfd. */
void dpt_agent_on_rank_step(struct dpt_agent *agent, uint32_t local_rank, int64_t step);

/* At TICK: starts processes whose pause is over, kills those that are silent or do not quiesce. */
void dpt_agent_check_ranks(struct dpt_agent *agent);
/* Starts a process in every empty local rank. */
void dpt_agent_spawn_ranks(struct dpt_agent *agent);
/* SIGKILL to every process; not counted as a crash. */
void dpt_agent_kill_ranks(struct dpt_agent *agent);
/* The local rank is DOWN, and a process starts in it after its pause. */
bool dpt_agent_will_respawn(const struct dpt_agent *agent, uint32_t local_rank);

/* ---- core_message.c: the messages of this node ---- */

/* Adds the message for a rank process to the outputs. */
void dpt_agent_send_to_rank(struct dpt_agent *agent, uint32_t local_rank);
/* Makes the next message to the server; valid until the next event. */
const Dpt__AgentState *dpt_agent_make_state(struct dpt_agent *agent);

/* ---- core_end.c: the end of this node ---- */

/* IN_ORDER: ranks are told to exit, and killed after exit_ms. AT_ONCE: ranks are killed now. */
enum end_kind { END_IN_ORDER, END_AT_ONCE };

/* Begins the end with `code` and a line for a person. Steps that are lost with this node are
 * logged; if a checkpoint should have them, DPT_EXIT_DONE becomes DPT_EXIT_EXPELLED. */
void dpt_agent_end(struct dpt_agent *agent, enum end_kind kind, int code, const char *fmt, ...)
    DPT_PRINTF(4, 5);
/* The end by an event after which no other node saves the steps here: the ranks first write them as
 * a rescue if they can. */
void dpt_agent_end_saved(struct dpt_agent *agent, int code, const char *text);
/* At TICK and after a signal. A node that leaves without a server begins the rescue, and ends when
 * the rescue is whole or cannot become whole. */
void dpt_agent_check_rescue(struct dpt_agent *agent);
/* ACTION_EXIT: the last action. */
void dpt_agent_finish(struct dpt_agent *agent);

/* ---- core_stage.c: the stages of this node ---- */

/* The server has expelled this incarnation. world_step: of the world that runs without this node;
 * 0: no world does, or unknown. */
void dpt_agent_on_expelled(struct dpt_agent *agent, int64_t world_step, const char *text);
void dpt_agent_on_signal(struct dpt_agent *agent);
/* At TICK: the deadlines of this node. */
void dpt_agent_check_stage(struct dpt_agent *agent);
/* After every event: goes on when the last process has been reaped. */
void dpt_agent_settle_stage(struct dpt_agent *agent);

/* ---- core_server.c: the messages of the server ---- */

void dpt_agent_on_server(struct dpt_agent *agent, const Dpt__ServerState *message);

#endif
