/* What the files of the agent's machine share.
 *
 *   core.c         events, time, outputs      core_server.c  what the server says and is told
 *   core_rank.c    rank processes: started, judged, killed, commanded
 *   core_stage.c   the life of the agent: joining, leaving, expelled, ending
 *   core_rescue.c  steps that no checkpoint holds, while there is no server */
#ifndef DPT_WORKER_AGENT_CORE_INTERNAL_H
#define DPT_WORKER_AGENT_CORE_INTERNAL_H

#include "worker/agent/core.h"

enum {
    ACTIONS_MAX = 3 * DPT_PROTO_RANKS_MAX + 4,
    LOG_LINES_MAX = 2 * DPT_PROTO_RANKS_MAX + 16, /* in one step; further ones are dropped */
    LOG_TEXT_BYTES = 768,
    SENT_MAX = 64, /* messages whose times are kept; an echo of an older one confirms nothing */
    EXPULSIONS_MAX = 8,  /* in a row, without getting into a generation between: then give up */
    FORGIVEN_STEPS = 10, /* steps after which an overcome error is not the first error any more */
    STARTS_MAX = 10,     /* in a row that came to nothing: then a place stays empty */
};

/*  NONE ──spawn──► UP ──silence, EOF, no quiescence──► KILLED ──reaped──► DOWN ──pause──► UP (spawn
 * + 1) └──────────── reaped ─────────────────────────────────►┘            */
enum life { LIFE_NONE, LIFE_UP, LIFE_KILLED, LIFE_DOWN };

struct agent_rank {
    enum life life;
    uint32_t spawn;
    Dpt__RankState state; /* as the rank told; strings point into the buffers below */
    char shm_addr[DPT_PROTO_ADDR_BYTES], tcp_addr[DPT_PROTO_ADDR_BYTES];
    char text[DPT_PROTO_TEXT_BYTES], weights_hash[DPT_PROTO_DIGEST_BYTES];
    uint8_t *outcome; /* owned */
    Dpt__Shard shards[DPT_PROTO_SHARDS_MAX], *shard_list[DPT_PROTO_SHARDS_MAX];
    float tokens_per_s;
    int64_t val_step; /* of the newest evaluation; 0: none */
    double val_loss;
    int64_t val_right, val_samples;                   /* of it; 0: without labels */
    struct dpt_agent_step steps[DPT_PROTO_STEPS_MAX]; /* of its last message that had any */
    size_t n_steps;
    int64_t saved_step;
    bool has_summary;
    Dpt__RunSummary summary; /* its hash is in weights_hash */
    int64_t step_ms_median;
    int64_t word_ms;                 /* when it was last heard */
    int64_t heard_ms;                /* the same for judging it: own gaps are left out */
    int64_t respawn_at_ms, pause_ms; /* DOWN: when, and how long the last pause was */
    bool started;                    /* this process got as far as to stand by */
    int64_t kept_step;               /* by its process, beside its messages; 0: none */
    bool doomed;                     /* it has said a fatal error and writes nothing any more */
    uint32_t failed_starts;          /* in a row, of processes that did not */
    uint64_t asked_generation;       /* newest hard PREPARE told to this process ... */
    int64_t asked_ms;                /* ... and when */
    int32_t plan_rank;               /* in agent->plan; -1: no place */
    bool tell;                       /* something changed for it */
};

enum stage {
    STAGE_ASKING,    /* no config yet */
    STAGE_JOINING,   /* not counted in yet */
    STAGE_JOINED,    /* the server counts this incarnation in */
    STAGE_RESETTING, /* expelled: until the last old rank process is gone */
    STAGE_ENDING,    /* until the last rank process is gone */
    STAGE_ENDED
};

enum order { ORDER_NONE, ORDER_PREPARE_SOFT, ORDER_PREPARE, ORDER_PLAN, ORDER_GO };

struct dpt_agent {
    /* who */
    char run[DPT_PROTO_NAME_BYTES], node[DPT_PROTO_NAME_BYTES], software[DPT_PROTO_NAME_BYTES];
    uint64_t incarnation;
    /* facts; valid once configured */
    bool configured, configure_asked;
    Dpt__RunSpec spec; /* strings owned */
    uint32_t n_ranks;
    char fingerprint[DPT_PROTO_DIGEST_BYTES], host[DPT_PROTO_DIGEST_BYTES];
    char log_dir_id[DPT_PROTO_DIGEST_BYTES], checkpoint_dir_id[DPT_PROTO_DIGEST_BYTES];
    char data_digest[DPT_PROTO_DIGEST_BYTES], host_name[DPT_PROTO_NAME_BYTES];
    uint8_t secret[DPT_PROTO_SECRET_BYTES];
    struct dpt_timing timing;

    /* time */
    int64_t now_ms, deadline_ms, beat_ms; /* beat_ms: next heartbeat */
    int64_t contact_ms;                   /* when the server was last heard */
    bool server_up, heard_ever;

    /* what the server said; the order is what the ranks are told */
    uint64_t epoch; /* 0: not counted in by any server in this incarnation */
    uint64_t counter, counter_seen,
        server_counter;    /* last sent; newest echoed; newest of the server */
    uint64_t spec_counter; /* from this message on the spec was sent to this server; 0: not yet */
    bool spec_known;
    Dpt__ServerPhase phase;
    enum order order;
    uint64_t generation; /* the order's */
    Dpt__Plan *plan;     /* owned; while PLAN, GO or PREPARE(soft) */
    int64_t prepare_ms, plan_ms, grant_step;
    int64_t still_since_ms; /* the last rank here came to a stop; -1: some compute */
    int64_t still_ms;       /* of the generation in force */
    int32_t first_local;    /* local rank that is rank 0, or was in the last plan; -1: elsewhere */
    uint32_t n_nodes;
    int64_t saved_step; /* newest checkpoint that the server or a rank here has told of; 0: none */
    uint32_t last_call_nodes; /* SETTLING with so many ... */
    int64_t last_call_ms;     /* ... lasts so long yet */
    char reason[DPT_PROTO_TEXT_BYTES];

    /* writing */
    bool fenced;
    uint64_t fence_counter; /* lifted when the server echoes a later one */
    int64_t write_until_ms;
    int64_t sent_ms[SENT_MAX]; /* of message `counter`, at counter % SENT_MAX */
    int64_t confirmed_ms;      /* of the newest that was echoed to this incarnation ... */
    uint64_t confirming_epoch; /* ... by this server, which has had it in a generation */

    /* the life */
    enum stage stage;
    bool leaving, kill_sent, goodbye;
    bool told;           /* to leave, by a signal; `leaving` without it: the run has ended */
    bool last_holder;    /* released, and no other node has the state of this one */
    bool done;           /* the run's end is acknowledged: nothing is unsaved */
    bool unsaved_said;   /* what goes unsaved with this incarnation has been said */
    bool rescuing;       /* the server is heard no more; ranks write what they hold */
    int64_t rescue_step; /* newest that was held here when that began */
    int rescue_code;     /* what this node ends with when it is over; 0: as one that leaves */
    char rescue_text[DPT_PROTO_TEXT_BYTES * 2];
    int64_t drain_by_ms, kill_at_ms, give_up_ms;
    int end_code;
    char end_text[DPT_PROTO_TEXT_BYTES * 2];
    Dpt__RunSpec end_spec; /* strings owned */
    bool has_end_spec;
    uint32_t expulsions;
    uint32_t crashes;
    int64_t step_high; /* applied here since the last GO; 0: none */
    int64_t gone_step; /* newest held by a process that died since the last GO; 0: none */
    bool gone_copied;  /* other nodes of its generation, where there were some, hold the same */
    bool gone_told;    /* its death was told when it came */
    bool fatal;
    int fatal_code;
    uint64_t fatal_counter; /* the server has heard of it when it echoes a later one */
    int64_t fatal_by_ms;
    char first_error[DPT_PROTO_TEXT_BYTES];
    int64_t error_ms, error_step; /* when, and the step reached then */

    struct agent_rank ranks[DPT_PROTO_RANKS_MAX];

    /* outputs of the step */
    bool tell_server, no_memory;
    struct dpt_agent_action actions[ACTIONS_MAX];
    size_t n_actions;
    struct dpt_agent_log_line logs[LOG_LINES_MAX];
    char log_texts[LOG_LINES_MAX][LOG_TEXT_BYTES];
    size_t n_logs;
    Dpt__RunSpec configure_spec; /* strings owned; kept, as its action may come back as facts */
    bool has_configure_spec;
    Dpt__AgentToRank to_rank[DPT_PROTO_RANKS_MAX];
    struct dpt_agent_send sends[DPT_PROTO_RANKS_MAX];
    size_t n_sends;
    Dpt__AgentState to_server;
    Dpt__Stamp stamp;
    Dpt__RankState *to_server_ranks[DPT_PROTO_RANKS_MAX];
};

/* ---- core.c ---- */

void dpt_agent_act(struct dpt_agent *agent, const struct dpt_agent_action *action);
void dpt_agent_log(struct dpt_agent *agent, enum dpt_log_level level, const char *fmt, ...)
    DPT_PRINTF(3, 4);
void dpt_agent_tell_ranks(struct dpt_agent *agent);
void dpt_agent_copy_text(char *to, size_t to_bytes, const char *from);
/* Owned copies of the strings; false (and no_memory): nothing is held. */
bool dpt_agent_copy_spec(struct dpt_agent *agent, const Dpt__RunSpec *from, Dpt__RunSpec *to);

/* ---- core_server.c ---- */

void dpt_agent_on_server(struct dpt_agent *agent, const Dpt__ServerState *message);
void dpt_agent_drop_plan(struct dpt_agent *agent);
const Dpt__AgentState *dpt_agent_make_state(struct dpt_agent *agent);

/* ---- core_rank.c ---- */

void dpt_agent_on_rank(struct dpt_agent *agent, uint32_t local_rank, uint32_t spawn,
                       const Dpt__RankToAgent *message);
void dpt_agent_on_rank_eof(struct dpt_agent *agent, uint32_t local_rank, uint32_t spawn,
                           int64_t step);
/* What it has kept, beside its messages. */
void dpt_agent_on_rank_step(struct dpt_agent *agent, uint32_t local_rank, int64_t step);
void dpt_agent_on_rank_waits(struct dpt_agent *agent, uint32_t local_rank, uint32_t spawn);
void dpt_agent_on_rank_exited(struct dpt_agent *agent, const struct dpt_agent_event *event);
void dpt_agent_rank_init(struct agent_rank *rank, uint32_t local_rank);
void dpt_agent_rank_fini(struct agent_rank *rank);
/* Starts what is to be started, kills what is silent or does not quiesce. At TICK. */
void dpt_agent_check_ranks(struct dpt_agent *agent);
void dpt_agent_spawn_ranks(struct dpt_agent *agent);
/* SIGKILL for every process there is; no crash. */
void dpt_agent_kill_ranks(struct dpt_agent *agent);
bool dpt_agent_has_processes(const struct dpt_agent *agent);
/* It is DOWN, and another process is started in its place when its pause is over. */
bool dpt_agent_will_respawn(const struct dpt_agent *agent, uint32_t local_rank);
bool dpt_agent_is_computing(const struct dpt_agent *agent);
/* The newest step that a process has told of, or kept beside its messages. */
int64_t dpt_agent_newest_of(const struct agent_rank *rank);
/* Of the processes that live. */
int64_t dpt_agent_step_of(const struct dpt_agent *agent);
void dpt_agent_tell_rank(struct dpt_agent *agent, uint32_t local_rank);

/* ---- core_rescue.c ---- */

/* The newest checkpoint or rescue that a rank here or the server has told of; 0: none. */
int64_t dpt_agent_saved_step(const struct dpt_agent *agent);
/* Ranks here hold steps that no checkpoint contains, as far as is known here. */
bool dpt_agent_holds_unsaved(const struct dpt_agent *agent);
/* Newest step that died with a process here: no checkpoint has it, nor does a process that lives
 * here; 0: none. */
int64_t dpt_agent_gone_step(const struct dpt_agent *agent);
/* The newest step that is saved, or that a process which lives here holds, of which each part has a
 * second holder. */
int64_t dpt_agent_whole_step(const struct dpt_agent *agent);
/* As far as is known here another node has it. */
bool dpt_agent_gone_is_elsewhere(const struct dpt_agent *agent);
/* A process has died, or is about to be killed. */
void dpt_agent_note_gone(struct dpt_agent *agent, const struct agent_rank *rank);
/* The server has been silent for so long that nobody will take over, or grant, anything soon. */
bool dpt_agent_lacks_server(const struct dpt_agent *agent);
enum dpt_agent_rescue dpt_agent_rescue_of(const struct dpt_agent *agent);
/* The rank process writes (its part of) the rescue. */
bool dpt_agent_is_rescuer(const struct dpt_agent *agent, uint32_t local_rank);
/* This node is about to end with `code`, and nobody else saves what its ranks hold: they write it
 * first. False: there is nothing to write, nobody who can, or nowhere. */
bool dpt_agent_end_by_rescue(struct dpt_agent *agent, int code, const char *text);
/* Leaving without a server: begins a rescue, and ends when it is whole or cannot become so. At TICK
 * and after a signal. */
void dpt_agent_check_rescue(struct dpt_agent *agent);

/* ---- core_stage.c ---- */

/* Too few are here, or the last call has not ended. */
bool dpt_agent_is_waiting(const struct dpt_agent *agent);
/* Ends the program: politely (ranks are told to exit, and killed when they do not) or at once. */
void dpt_agent_end(struct dpt_agent *agent, int code, bool politely, const Dpt__RunSpec *spec,
                   const char *fmt, ...) DPT_PRINTF(5, 6);
/* world_step: of the world that has gone on without this node; 0: none has, or not known. */
void dpt_agent_expelled(struct dpt_agent *agent, int64_t world_step, const char *text);
void dpt_agent_on_signal(struct dpt_agent *agent);
/* Deadlines of the agent's own life, at TICK. */
void dpt_agent_check_stage(struct dpt_agent *agent);
/* What becomes possible when the last process is gone. After every event. */
void dpt_agent_settle_stage(struct dpt_agent *agent);

#endif
