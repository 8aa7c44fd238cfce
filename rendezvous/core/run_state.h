/* The state of the server's machine: runs, nodes, rank processes, plans; their creation and
 * removal; queries on one of them.
 *
 * Layers of this folder, lowest first. A file calls only files of lower layers, and files to its
 * left in its own layer, so there are no cycles:
 *
 *   outbox.h    outbox.c, record.c                        outputs of a step
 *   index.h     index.c                                   search by number
 *   outcomes.h  outcomes.c                                outcomes of steps, each kept once
 *   timing.h    timing.c                                  every period of a run
 *   run_state.h, tally.h, kept.h
 *               run_state.c, tally.c, kept.c, runs.c      runs, nodes, ranks, plans
 *   apply.h     apply.c, members.c                        durable state; runs and nodes that come
 *                                                         and go
 *   queries.h   silence.c, held.c, wait.c                 queries on several of them
 *   restart.h   restart.c                                 runs that the journal names
 *   rules.h     transition.c, budget.c, loss.c            how a generation ends
 *   reply.h     plan_message.c, reply.c, status.c         messages to agents
 *   advance.h   leave.c, put_plan.c, places.c, plan.c,    transitions of each phase
 *               advance.c
 *   join.h      join_claim.c, owner.c, unhealthy.c, join.c, report.c
 *                                                         messages of agents
 *   control.h, command.h
 *               control_info.c, control_nodes.c, control_refused.c, control.c
 *                                                         messages of an operator (orders.h)
 *   core.h      core.c                                    events, time, views */
#ifndef DPT_RENDEZVOUS_CORE_RUN_STATE_H
#define DPT_RENDEZVOUS_CORE_RUN_STATE_H

#include "base/shard.h"
#include "rendezvous/core/bounds.h"
#include "rendezvous/core/core.h"
#include "rendezvous/core/index.h"
#include "rendezvous/core/orders.h"
#include "rendezvous/core/outbox.h"
#include "rendezvous/core/outcomes.h"
#include "rendezvous/core/timing.h"
#include "rendezvous/core/unhealthy.h"

enum {
    DEPARTED_MAX = DPT_PROTO_NODES_MAX, /* removed incarnations that a run remembers */
    FORGOTTEN_MAX = 64,                 /* forgotten runs that are remembered by name */
    LOSSES_MAX = 16, /* lost ranks that are remembered to explain a missing shard */
    EPOCHS_MAX = 64, /* earlier servers of the journal that are remembered */
    NODE_TEXT_BYTES = 2 * DPT_PROTO_NAME_BYTES + 64
};

/* ---- ranks and nodes ---- */

/* One rank process: the last report of its agent, and this server's decisions about the process.
 * Every member but `place` concerns process `spawn`. The next process of this local rank starts
 * with zeroed members. */
struct rank {
    /* A plan's search reads these of all ranks: they share two cache lines. */
    struct node *node;
    uint32_t spawn;
    Dpt__RankPhase phase;
    uint64_t generation;  /* generation of `phase` */
    int64_t step_applied; /* at heard_ms, as all that the rank reports */
    int64_t outcome_step;
    struct outcome *outcome;  /* that of outcome_step, while QUIESCED; of run->outcomes */
    uint64_t asked;           /* newest PREPARE for which the server waits for a report */
    uint64_t plan_generation; /* newest plan with a place for it; 0: none */
    int32_t plan_rank;        /* its rank in that plan */
    int32_t place; /* its place in the newest plan, also of an earlier process; -1: none */
    uint64_t pending_generation, ran_generation, failed_generation;
    int32_t suspect;  /* rank of the plan whose data connection broke; -1: none */
    int32_t n_shards; /* 0: the rank holds the whole state */
    bool gradient, rebuilding, busy;
    bool pending[DPT_PROTO_SHARDS_MAX]; /* shards[i] was filled for pending_generation */
    struct dpt_shard shards[DPT_PROTO_SHARDS_MAX];
    /* ---- */
    char shm_addr[DPT_PROTO_ADDR_BYTES], tcp_addr[DPT_PROTO_ADDR_BYTES];
    int64_t checkpoint_step, grant_step, step_ms_median;
    int64_t heard_ms;      /* when its agent last heard the process */
    struct rank_work work; /* at heard_ms */
    int32_t reported_rank; /* its rank as its agent reports it, to adopt a plan */
};

/* Lists of nodes of a run. Each event moves a node in constant time. */
enum node_list {
    LIST_QUIET,  /* all nodes; the node that was heard longest ago is first */
    LIST_BROKEN, /* nodes whose control connection is broken */
    LIST_DENIED, /* nodes with link.denied */
    LIST_COUNT
};
struct node_hook {
    struct node *before, *after;
};
struct node_ends {
    struct node *first, *last;
};

/* The control connection of a node. */
struct link {
    uint64_t conn;         /* 0: broken */
    uint64_t counter_seen; /* counter of the last message taken */
    int64_t heard_ms;
    int64_t answered_ms;       /* last message to it on this connection; < 0: none */
    int64_t broken_ms;         /* when the connection broke; < 0: not broken */
    int64_t spoken_ms;         /* time since the last PREPARE in which the node was heard */
    int64_t heard_listened_ms; /* heard_ms on the clock of dpt_rdzv_listened_ms */
    bool reported_broken;      /* the log says that the connection is broken */
    bool cut_off;              /* being removed for silence alone: it may return with its state */
    bool denied;               /* since heard_ms its key has no right any more */
};

/* How many of a node's ranks can join. */
enum readiness {
    READY_NONE, /* all of its ranks start, or it has none yet */
    READY_SOME, /* some are alive, others start */
    READY_LATE, /* some are alive, and the others have had their time to start */
    READY_ALL,
    READY_COUNT
};

/* Nodes with equal strings share memory. */
struct location {
    char rack[DPT_PROTO_NAME_BYTES]; /* "": none */
    char host[DPT_PROTO_DIGEST_BYTES];
};

/* Whether a node belongs to GROUP_EXCLUDED. */
struct exclusion {
    int64_t until_ms; /* peers could not reach it */
    bool assumed;     /* while a question about the others is answered */
};

struct node {
    struct run *run;
    struct node_hook hooks[LIST_COUNT];
    enum readiness readiness;
    uint32_t n_unreported; /* its part of membership.n_unreported */
    char id[DPT_PROTO_NAME_BYTES], host_name[DPT_PROTO_NAME_BYTES]; /* host_name: for messages */
    uint64_t id_hash;
    uint64_t incarnation;
    uint8_t secret[DPT_PROTO_SECRET_BYTES]; /* not all zeroes */
    uint8_t key[DPT_RDZV_KEY_BYTES];        /* of its machine; all zero: there are no keys */
    struct link link;
    uint64_t joined; /* order of joining */
    int64_t joined_ms;
    bool returned; /* it came back after its removal for silence; no generation has run since */
    bool expected; /* the journal names it: it was a member when an earlier server ended */
    int64_t ready_since_ms; /* since then some ranks can join and others still start; < 0: not so */
    struct exclusion exclusion;
    enum node_order order;
    bool leaving;
    int64_t leaving_ms;         /* when it began to leave */
    uint64_t generation;        /* newest generation that the node knows */
    uint64_t placed_generation; /* newest plan in which it has a place */
    uint32_t crashes, plan_world;
    struct location location;
    char log_dir_id[DPT_PROTO_DIGEST_BYTES];
    char checkpoint_dir_id[DPT_PROTO_DIGEST_BYTES], plan_digest[DPT_PROTO_DIGEST_BYTES];
    struct rank *ranks; /* (n_ranks) owned */
    uint32_t n_ranks;
};

/* ---- plans ---- */

struct place {         /* one rank of a plan */
    struct node *node; /* NULL once the node is removed */
    uint32_t local_rank, spawn;
    uint32_t position, rack, host, node_index;
    int32_t checkpoint_slot;
    bool takes_state, writes_log, only_hands_over;
    bool finished;       /* has reported FINISHED in this generation */
    uint32_t n_accusers; /* members whose report accuses the rank; see dpt_rdzv_accused_by */
    char shm_addr[DPT_PROTO_ADDR_BYTES], tcp_addr[DPT_PROTO_ADDR_BYTES];
};

struct plan {
    uint64_t generation; /* 0: none made */
    bool in_force;   /* ranks may compute: from PLAN until all quiesced, or until a hard PREPARE */
    bool from_seed;  /* no whole state and no checkpoint exists */
    bool adopted;    /* made by an earlier server: this server knows only digest and places */
    bool final_save; /* too few nodes stay: its ranks save what they hold and make no step */
    uint8_t nonce[DPT_PROTO_NONCE_BYTES];
    uint32_t world_size, n_nodes, n_hosts, checkpoint_writers, handover_ranks;
    uint64_t state_generation;
    struct place *places;                         /* (world_size) by rank; owned */
    uint32_t n_finished;                          /* places whose rank has finished */
    int n_ready, n_running, n_busy, n_rebuilding; /* members in this state */
    char digest[DPT_PROTO_DIGEST_BYTES];
    int64_t resume_step, load_checkpoint, steps_done_before;
    uint8_t *outcome; /* owned; NULL: no rank needs it */
    size_t outcome_bytes;
    /* The places as PlanRank of dpt.proto for nodes of other hosts, encoded when the first node
     * needs them: place i is wire[wire_at[i]] … wire[wire_at[i + 1] - 1]. Owned; NULL: not yet. */
    uint8_t *wire;
    size_t *wire_at;   /* (world_size + 1) */
    uint32_t *rank_at; /* (world_size) ranks by position */
};

/* Why a generation is formed. During a formation, a kind further down replaces a kind further
 * up. */
enum cause_kind {
    CAUSE_START,
    CAUSE_JOINED,
    CAUSE_LEFT,
    CAUSE_SERVER_RESTART,
    CAUSE_COMM_ERROR,
    CAUSE_STALLED,
    CAUSE_RANK_LOST,
    CAUSE_NODE_LOST,
    CAUSE_COUNT
};

struct cause {
    enum cause_kind kind;
    int64_t detect_ms;
    char text[DPT_PROTO_TEXT_BYTES];
};

/* ---- durable state ---- */

/* A node that was admitted and not removed. It has a struct node, unless the server was restarted
 * and has not heard it yet. */
struct kept_node {
    struct kept_node *before, *after; /* in order of joining */
    char id[DPT_PROTO_NAME_BYTES];
    uint64_t id_hash, incarnation;
    uint8_t secret[DPT_PROTO_SECRET_BYTES], key[DPT_RDZV_KEY_BYTES]; /* as of struct node */
    uint64_t placed_generation; /* newest plan in which it has a place; 0: none */
    struct dpt_health health;   /* when it was admitted */
};

/* The durable state of a run is this struct and: name, spec, fingerprint, data_digest,
 * checkpoint_dir_id, generation and end_text of struct run; formation.generation_floor and
 * .ran_before; membership.departed; budget.used, .incident_generation and .first_error;
 * progress.saved_step. Only dpt_rdzv_apply changes it (apply.h), but for the cache `missing`. */
struct kept {
    struct kept_node *first, *last; /* list of n_nodes nodes, owned */
    size_t n_nodes;
    struct kept_node *missing;                /* not back at the last question; NULL: not known */
    struct index ids;                         /* nodes by id_hash */
    uint64_t planned;                         /* generation of the newest plan; 0: none */
    char plan_digest[DPT_PROTO_DIGEST_BYTES]; /* its digest */
    uint64_t ran;                             /* newest generation that has run; 0: none */
    uint64_t granted_generation;              /* newest with a grant; 0: none */
    int64_t granted_step;
    struct cause cause; /* of `generation`, as the newest GENERATION or PLAN record says */
    uint8_t definer[DPT_RDZV_KEY_BYTES]; /* key that brought the config; all zero: no keys */
    bool ended, failed, paused, stopped; /* the last two: an operator wants it */
};

/* ---- runs ---- */

/* Removed nodes, and counters over the nodes of the run. */
struct membership {
    uint64_t joins;
    struct departed *departed; /* ring of n_departed_room, owned; unused entries are zero */
    size_t n_departed_room;    /* grows up to DEPARTED_MAX before an entry is written over */
    size_t n_departed;         /* number ever added to the ring */
    uint32_t n_awaited;        /* entries that may return with the newest state */
    uint32_t n_leaving;
    int n_outside, n_foreign; /* ranks without a place in the newest plan that are alive; RUNNING */
    int64_t listened_ms;      /* dpt_rdzv_listened_ms at hearing.heard_ms */
    int64_t empty_ms;         /* since then there is no node; < 0: there are nodes */
    struct node_ends lists[LIST_COUNT];
    uint32_t n_ready[READY_COUNT]; /* nodes by readiness */
    int64_t some_since_ms;         /* no node with READY_SOME has been so since before */
    int64_t leaving_since_ms;      /* no leaving node began to leave before */
    uint32_t n_unreported;         /* living ranks that PREPARE waits for */
    uint32_t n_stopped;     /* ranks that may have stopped in the generation of an earlier server */
    int n_outside_tried;    /* n_outside at the last search for a node that can join */
    int64_t outside_due_ms; /* the time of the next such search, unless n_outside changes before */
};

/* The state of formations. */
struct formation {
    uint64_t generation_high;  /* newest that an agent knows; an earlier server may have made it */
    uint64_t generation_floor; /* highest that earlier runs of this name may have used */
    uint64_t run_generation;   /* newest that has run since the server started */
    uint64_t ran_before;       /* newest that has run in earlier runs of this name on this server */
    struct cause cause;        /* cause of the newest generation */
    bool soft;                 /* PREPARING at the next step boundary */
    bool after_failure;        /* PREPARING because a generation has just failed */
    int64_t waits_since_ms;    /* since then too few nodes are here; < 0: enough are here */
    int64_t weighed_ms;        /* when suspect nodes that nobody accuses were last weighed */
    int64_t plan_after_ms;     /* no plan before: a pause after failures, or nodes may come back */
    int64_t adopt_until_ms;    /* until then wait for nodes of an earlier server; < 0: no wait */
    uint32_t adopt_world;      /* ranks of the plan of generation_high; 0: unknown */
    int64_t regather_until_ms; /* no plan before while removed nodes may return; < 0: none may */
    int64_t members_until_ms; /* until then members that the journal names may come; < 0: no wait */
    bool outdated;            /* a node has heard another server since the journal was written */
    uint32_t failed;          /* formations in a row that failed with no step and no loss */
    uint32_t slow;            /* formations in a row in which not all ranks were READY in time */
};

/* The shards of a lost rank. They are kept until a generation runs. */
struct loss {
    char node[DPT_PROTO_NAME_BYTES];
    struct dpt_shard shards[DPT_PROTO_SHARDS_MAX];
    int n_shards;
};

/* Steps, checkpoints and copies of the state. A step is a number of completed steps; -1: none. */
struct progress {
    int64_t step;       /* newest step since the last plan was made */
    int64_t steps_done; /* highest since a generation last ran; a plan's lost steps count from it */
    int64_t step_best;  /* newest step ever */
    int64_t step_ms;    /* when `step` last grew, on the clock of dpt_rdzv_listened_ms */
    int64_t step_ms_median; /* last reported by a rank; 0: no step yet */
    int64_t final_step;     /* last step of a rank that has finished; -1: none has */
    bool stepped;           /* a step was made since GO */
    int64_t saved_step;     /* newest checkpoint that a rank reported */
    char saved_node[DPT_PROTO_NAME_BYTES], saved_host[DPT_PROTO_NAME_BYTES]; /* the rank's */
    int64_t final_save_step; /* step that a final save had to save and had the time to save */
    struct unsaved unsaved;  /* the newest failure of a rank to save */
    bool redundant;       /* every part of the state of plan.generation is on at least two nodes */
    bool rebuilding;      /* ranks still make copies for that */
    int64_t unsaved_step; /* dpt_rdzv_step_unsaved of the present reports, while unsaved_known */
    bool unsaved_known;
    struct loss losses[LOSSES_MAX];
    size_t n_losses; /* further losses are not remembered */
};

/* Restarts. */
struct budget {
    uint32_t used;
    uint64_t incident_generation; /* newest plan that has cost a restart for lost members */
    int64_t refill_steps;         /* steps towards the next restart that is given back */
    int64_t error_ms;             /* time of first_error; < 0: none */
    char first_error[DPT_PROTO_TEXT_BYTES];
};

struct run {
    struct dpt_rdzv *core;
    char name[DPT_PROTO_NAME_BYTES];
    Dpt__RunSpec spec; /* strings owned */
    char fingerprint[DPT_PROTO_DIGEST_BYTES], data_digest[DPT_PROTO_DIGEST_BYTES];
    char checkpoint_dir_id[DPT_PROTO_DIGEST_BYTES]; /* that of its first node */
    struct dpt_timing timing;
    enum dpt_rdzv_phase phase;
    int64_t phase_ms;     /* when the phase began */
    uint64_t generation;  /* newest that this server has used for the run */
    bool changed;         /* this step answers every node */
    struct node *speaker; /* this step answers this node; NULL: none */
    struct node **nodes;  /* (n_nodes) owned, as each node is; in order of joining */
    size_t n_nodes, nodes_max;
    struct index ids; /* nodes by id_hash */
    struct membership membership;
    struct plan plan; /* newest plan */
    struct outcomes outcomes;
    struct formation formation;
    struct progress progress;
    struct budget budget;
    struct kept kept;
    struct operator_requests requests;
    char end_text[DPT_PROTO_TEXT_BYTES];
};

struct forgotten_run {
    uint64_t name_hash;
    uint64_t generation;     /* highest that the run may have used */
    uint64_t run_generation; /* newest that has run in it */
    int64_t saved_step;      /* of the newest checkpoint; -1: none */
    char saved_node[DPT_PROTO_NAME_BYTES], saved_host[DPT_PROTO_NAME_BYTES];
    bool ended, failed, stopped; /* the server tells late agents */
    bool left;                   /* ... and nodes that have not heard that they may go */
};

/* Times at which processes were last heard. */
struct hearing {
    int64_t heard_ms; /* a node of any run over a standing connection */
    bool told_none;   /* the log says that no node has been heard since heard_ms */
    int64_t outsiders_since_ms, outsider_ms; /* first, last time since then of others; < 0: none */
};

/* The pause between two messages of an agent. It grows while messages come faster than the server
 * reads them. */
struct pace {
    unsigned overload; /* doublings */
    int64_t since_ms;  /* time of the last change of `overload` */
};

struct dpt_rdzv {
    uint64_t epoch;
    const uint8_t *random; /* (DPT_PROTO_NONCE_BYTES) of the event in progress */
    int64_t start_ms, now_ms, deadline_ms;
    struct hearing hearing;
    uint64_t counter; /* counter of the last message to a node */
    bool fresh;
    struct run *runs[DPT_RDZV_RUNS_MAX];
    size_t n_runs;
    struct forgotten_run forgotten[FORGOTTEN_MAX]; /* ring; unused entries are zero */
    size_t n_forgotten;                            /* number ever added to the ring */
    uint64_t generation_floor;   /* highest generation of runs that have left the ring */
    uint64_t epochs[EPOCHS_MAX]; /* of the servers of the journal, this one included: ring */
    size_t n_epochs;             /* number ever added to the ring */
    bool started;                /* the first step is made */
    struct status_answers status_answers;
    struct refused_lines refused_lines;
    struct index conns;            /* nodes by the number of their connection */
    uint32_t nodes_max, world_max; /* of a run; dpt_rdzv_options */
    uint32_t n_nodes;              /* of all runs */
    struct pace pace;
    struct deny_list denied;
    struct refused_questions refused_questions;
    struct unhealthy_list unhealthy;
    struct outbox out;
};

/* ---- run_state.c: queries ---- */

/* True: there are no keys, or it is not known. `key`: (DPT_RDZV_KEY_BYTES). */
bool dpt_rdzv_is_no_key(const uint8_t *key);

/* The newer of two generations. */
static inline uint64_t dpt_rdzv_newer(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Position of a walk over all ranks of a run, node by node; begins zeroed. */
struct rank_cursor {
    size_t node;
    uint32_t rank;
};
/* The next rank; NULL: there is none left. */
struct rank *dpt_rdzv_next_rank(const struct run *run, struct rank_cursor *at);
size_t dpt_rdzv_count_ranks(const struct run *run);
/* The process that a place of the plan names; NULL: it is gone. */
const struct rank *dpt_rdzv_rank_at(const struct place *place);
/* True: the rank can quiesce and report, because its process has started and not ended. */
bool dpt_rdzv_rank_is_alive(const struct rank *rank);
/* True: the rank has a place in the newest plan. */
bool dpt_rdzv_rank_is_member(const struct rank *rank);
/* True: the rank is a member that has reported FINISHED. Its loss costs nothing any more. */
bool dpt_rdzv_has_finished(const struct rank *rank);
/* True: the rank has quiesced for the newest generation. */
bool dpt_rdzv_has_quiesced(const struct rank *rank);
bool dpt_rdzv_node_is_member(const struct node *node);
/* True for a member of the newest plan or of the newest plan that ran, for a node that returned,
 * and, before the first generation of this server, for a node of an earlier server. */
bool dpt_rdzv_may_hold_newest(const struct node *node);
/* "node b (host gpu7, rank 1)"; without a rank when it has no place in the plan. */
void dpt_rdzv_print_node(const struct plan *plan, const struct node *node,
                         char ret[NODE_TEXT_BYTES]);

/* DONE or FAILED. */
bool dpt_rdzv_has_ended(const struct run *run);
/* Nodes needed to form: min_nodes, or one when all steps are done. */
uint32_t dpt_rdzv_min_nodes(const struct run *run);
uint32_t dpt_rdzv_restarts_left(const struct run *run);
/* Ranks of the largest world that the run's config and this server allow. */
uint32_t dpt_rdzv_world_max(const struct run *run);
/* The newest plan's generation may commit the checkpoint of this step; -1: none. */
int64_t dpt_rdzv_granted_step(const struct run *run);
/* The newest generation that has run, as far as the journal, this server or a rank knows. */
uint64_t dpt_rdzv_state_generation(const struct run *run);
/* True: the pending shards of the rank count, because their generation has run. They have replaced
 * the shards before them. */
bool dpt_rdzv_pending_counts(const struct rank *rank, uint64_t state_generation);
/* Fills `ret` with the shards of `rank` that count. Returns their number. */
int dpt_rdzv_shards_of(const struct rank *rank, uint64_t state_generation,
                       struct dpt_shard ret[DPT_PROTO_SHARDS_MAX]);

const char *dpt_rdzv_cause_name(enum cause_kind kind);
struct cause dpt_rdzv_cause(enum cause_kind kind, int64_t detect_ms, const char *fmt, ...)
    DPT_PRINTF(3, 4);
/* Adds a log line about `run`. */
void dpt_rdzv_log(const struct run *run, enum dpt_log_level level, const char *fmt, ...)
    DPT_PRINTF(3, 4);

/* ---- identity, accusations ---- */

uint64_t dpt_rdzv_id_hash(const char *id);
/* Bytes of the message's secret; zeroes: it has none. */
void dpt_rdzv_secret_of(const Dpt__AgentState *message, uint8_t ret[DPT_PROTO_SECRET_BYTES]);
/* True: a server of this journal, or this one, has sent this epoch. */
bool dpt_rdzv_is_own_epoch(const struct dpt_rdzv *core, uint64_t epoch);
/* The place in the newest plan to which the rank reports a broken data connection, if it is on
 * another node; NULL: none. */
struct place *dpt_rdzv_accused_by(const struct rank *rank);

/* ---- runs.c: runs and nodes are found, made and freed ---- */

struct run *dpt_rdzv_find_run(const struct dpt_rdzv *core, const char *name);
struct node *dpt_rdzv_find_node(const struct run *run, const char *id);
/* NULL: no run of that name is remembered. */
struct forgotten_run *dpt_rdzv_find_forgotten(struct dpt_rdzv *core, const char *name);

/* Makes a run without nodes, of a RUN record. False: no memory. */
bool dpt_rdzv_run_add(struct dpt_rdzv *core, const struct dpt_rdzv_record *record);
/* Frees run `i` and takes it out of the list. */
void dpt_rdzv_run_drop(struct dpt_rdzv *core, size_t i);
void dpt_rdzv_run_destroy(struct run **run);
void dpt_rdzv_node_destroy(struct node *node);
void dpt_rdzv_plan_fini(struct plan *plan);

#endif
