/* What the files of the server's machine share: its state, and who does what.
 *
 *   core.c    events, time, views               join.c   what an agent's message changes
 *   meet.c    who is not counted in
 *   phase.c   the phases of a run               loss.c   who is lost, stalls, the restart budget
 *   plan.c    who and where                     reply.c  what a node is told
 *   state.c   from which state                  outbox.c  lists of one step's outputs
 *   claim.c   who may join, as which node         wait.c   how long it waits before it forms */
#ifndef DPT_RENDEZVOUS_CORE_INTERNAL_H
#define DPT_RENDEZVOUS_CORE_INTERNAL_H

#include "base/shard.h"
#include "rendezvous/core/core.h"
#include "rendezvous/core/timing.h"

enum {
    GRAVES_MAX = 1024,          /* expelled and released incarnations remembered in a run */
    FORGOTTEN_MAX = 64,         /* names of forgotten runs that are remembered one by one */
    SLOW_SHIFT_MAX = 4,         /* the time a formation is given doubles this often */
    PAIRS_MAX = 64,             /* pairs of nodes that failed in one formation */
    LOSSES_MAX = 16,            /* of what was held, remembered to say what is missing */
    STEPS_TRIED_MAX = 64,       /* different steps of which a whole state is looked for */
    REFILL_STEPS = 10,          /* steps that give one restart back */
    PARTINGS_MAX = 3,           /* times that a run which has waited too long tries to save */
    FREE_FAILED_FORMATIONS = 2, /* in a row without a step; each further one costs a restart */
    STRANGER_GAP_MS = 1000,     /* who is not counted in and speaks goes on speaking as often */
    FAILED_SHIFT_MAX = 6        /* pauses between failing formations double this often */
};

/* ---- outbox.c ---- */

struct chunk;
struct outbox {
    struct chunk *chunks; /* memory of the last step's outputs, reused */
    struct dpt_rdzv_send *sends;
    size_t n_sends, sends_max;
    struct dpt_rdzv_record *records;
    size_t n_records, records_max;
    struct dpt_rdzv_log_line *logs;
    size_t n_logs, logs_max;
    bool no_memory; /* sticky within a step */
};

void dpt_outbox_reset(struct outbox *out);
void dpt_outbox_fini(struct outbox *out);
/* Zeroed memory until the next reset; NULL (and no_memory) when there is none. */
void *dpt_outbox_alloc(struct outbox *out, size_t bytes);
char *dpt_outbox_text(struct outbox *out, const char *text);
void dpt_outbox_send(struct outbox *out, uint64_t conn, const Dpt__ServerState *message);
void dpt_outbox_record(struct outbox *out, const struct dpt_rdzv_record *record);
void dpt_outbox_log(struct outbox *out, enum dpt_log_level level, const char *run,
                    uint64_t generation, const char *fmt, ...) DPT_PRINTF(5, 6);

/* ---- state ---- */

/* One rank process, as its agent last told, and what this server decided about it. All of it is
 * about process `spawn`: a successor starts from zero. */
struct rank {
    uint32_t spawn;
    Dpt__RankPhase phase;
    uint64_t generation; /* what `phase` is about */
    char shm_addr[DPT_PROTO_ADDR_BYTES], tcp_addr[DPT_PROTO_ADDR_BYTES];
    int64_t step_applied, outcome_step, checkpoint_step, grant_step;
    uint8_t *outcome; /* owned; of outcome_step, while QUIESCED */
    size_t outcome_bytes;
    struct dpt_shard shards[DPT_PROTO_SHARDS_MAX];
    bool pending[DPT_PROTO_SHARDS_MAX]; /* each of `shards`: of pending_generation */
    int n_shards;                       /* 0: everything */
    bool gradient;
    uint64_t pending_generation, ran_generation;
    bool rebuilding;
    uint64_t failed_generation;
    int32_t suspect;
    bool busy;
    uint32_t work_done; /* while busy */
    int64_t step_ms_median;
    int64_t word_ms; /* when its agent last heard it */

    uint64_t asked;           /* newest PREPARE whose report is waited for */
    uint64_t plan_generation; /* newest plan it has a place in; 0: none */
    int32_t plan_rank;        /* its rank there */
    int32_t told_rank;        /* the same in its agent's words (adoption) */
};

struct node {
    char id[DPT_PROTO_NAME_BYTES], host_name[DPT_PROTO_NAME_BYTES]; /* of the host: for people */
    uint64_t id_hash;
    uint64_t incarnation;
    uint8_t secret[DPT_PROTO_SECRET_BYTES]; /* not all zeroes */
    uint64_t conn;                          /* 0: broken */
    uint64_t counter_seen;                  /* last taken from it */
    uint64_t joined;                        /* order of joining */
    int64_t joined_ms;
    int64_t heard_ms, broken_ms; /* broken_ms < 0: not broken */
    int64_t spoken_ms;           /* for so long it was heard since the last PREPARE */
    bool suspected;              /* its connection is broken, and the log says so */
    bool cut_off;                /* it is being lost for silence: it may come back */
    bool returned;               /* it did, and no generation has been sent off since */
    /* Since it was heard: its lease runs at least so long; how much of that was forgiven. */
    int64_t extended_until_ms, forgiven_ms;
    int64_t ready_since_ms; /* first rank free to join while others start; < 0: none */
    int64_t benched_until_ms;
    int64_t leaving_ms;  /* since when it is */
    uint64_t generation; /* newest it knows */
    uint32_t crashes, plan_world;
    bool leaving, answer; /* answer: has spoken in this step */
    char host[DPT_PROTO_DIGEST_BYTES], log_dir_id[DPT_PROTO_DIGEST_BYTES];
    char checkpoint_dir_id[DPT_PROTO_DIGEST_BYTES], plan_digest[DPT_PROTO_DIGEST_BYTES];
    struct rank *ranks; /* (n_ranks) owned */
    uint32_t n_ranks;
};

struct grave {
    uint64_t id_hash;
    uint64_t incarnation; /* this and all before are out, of those that know the secret */
    uint8_t secret[DPT_PROTO_SECRET_BYTES];
    bool released;         /* went by agreement */
    bool last_holder;      /* and was told that it alone had its state, of so many nodes that had */
    uint32_t n_nodes;      /* the same to save */
    bool cut_off;          /* was lost for silence or its connections alone: it may come back */
    bool awaited;          /* it may hold the newest state, no generation was sent off since */
    uint64_t counter_seen; /* of the incarnation */
};

struct place {         /* one rank of a plan */
    struct node *node; /* NULL once that node is gone */
    uint32_t local_rank, spawn;
    uint32_t position, host, node_index;
    int32_t checkpoint_slot;
    bool takes_state, writes_log, guest;
    bool finished; /* has said FINISHED in this generation, whatever became of it since */
    char shm_addr[DPT_PROTO_ADDR_BYTES], tcp_addr[DPT_PROTO_ADDR_BYTES];
};

struct plan {
    uint64_t generation; /* 0: none made */
    bool in_force;       /* its ranks may be computing: from PLAN until all have quiesced, or
                            PREPARE(hard) */
    bool from_seed;      /* nobody has a whole state, nor a checkpoint */
    bool adopted;        /* made by an earlier server: only digest and places are known */
    bool farewell;       /* too few stay: its ranks save what they hold, and make no step */
    uint8_t nonce[DPT_PROTO_NONCE_BYTES];
    uint32_t world_size, n_nodes, n_hosts, checkpoint_writers, guests;
    uint64_t state_generation;
    struct place *places; /* (world_size) by rank; owned */
    char digest[DPT_PROTO_DIGEST_BYTES];
    int64_t resume_step, load_checkpoint, steps_done_before;
    uint8_t *outcome; /* owned; NULL: nobody needs it */
    size_t outcome_bytes;
};

enum { WHO_BYTES = 2 * DPT_PROTO_NAME_BYTES + 64 };

/* Why the current generation is formed. A stronger kind replaces a weaker one while forming. */
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

/* What is gone since a generation was last sent off. */
struct loss {
    char node[DPT_PROTO_NAME_BYTES];
    struct dpt_shard shards[DPT_PROTO_SHARDS_MAX];
    int n_shards;
};

struct pair {
    uint64_t a, b; /* id hashes, a < b */
};

struct run {
    char name[DPT_PROTO_NAME_BYTES];
    Dpt__RunSpec spec; /* strings owned */
    char fingerprint[DPT_PROTO_DIGEST_BYTES], data_digest[DPT_PROTO_DIGEST_BYTES];
    char checkpoint_dir_id[DPT_PROTO_DIGEST_BYTES]; /* of its first node */
    struct dpt_timing timing;
    enum dpt_rdzv_phase phase;
    uint64_t generation;       /* newest used here */
    uint64_t generation_high;  /* newest any agent knows: more after an earlier server */
    uint64_t generation_floor; /* highest that earlier runs of this name may have used */
    bool soft;                 /* PREPARING at the next step boundary */
    bool parted;               /* PREPARING: a generation has just failed by a loss or an error */
    bool changed;              /* tell every node in this step */
    int64_t phase_ms;          /* since when in `phase` */
    int64_t waits_since_ms;    /* for min nodes; < 0: they are here */
    uint32_t partings;         /* farewells since that took too long */
    int64_t plan_after_ms;  /* no plan before: pause after failures, or nodes of an earlier server
                               may come */
    int64_t adopt_until_ms; /* < 0: not adopting */
    /* A node that was lost for silence is back: until then no plan is made while others are
     * awaited. < 0: none is back since a generation was last sent off. */
    int64_t regather_until_ms;
    int64_t empty_ms;    /* since when without nodes; < 0: has some */
    struct node **nodes; /* (n_nodes) owned, by order of joining */
    size_t n_nodes, nodes_max;
    uint64_t joins;
    struct grave graves[GRAVES_MAX];
    size_t n_graves; /* ever; the ring keeps the last GRAVES_MAX */

    struct plan plan;
    struct cause cause;
    uint64_t run_generation; /* newest generation sent off */
    uint64_t ran_before;     /* the same of earlier runs of this name on this server */
    bool redundant;  /* of plan.generation, since its ranks are ready: every part is on two nodes */
    bool rebuilding; /* it was not when it was last sent off, and its ranks copy what is missing */
    struct loss losses[LOSSES_MAX];
    size_t n_losses;       /* further ones are not remembered */
    int64_t grant_step;    /* in plan.generation; -1: none */
    int64_t saved_step;    /* newest checkpoint that a rank told of; -1: none */
    int64_t farewell_step; /* its ranks were to save it, and had their time; -1: none */

    int64_t step;       /* newest applied since the last plan was made; -1: none */
    int64_t steps_done; /* highest applied since a generation was last sent off; what a plan goes
                           back behind it is lost */
    int64_t step_best;  /* newest ever */
    int64_t step_ms;    /* when `step` last grew */
    int64_t step_ms_median; /* as a rank told last; all step together. 0: none has stepped yet */
    int64_t final_step;     /* of a rank that has finished; -1: none yet */
    bool stepped;           /* since GO */

    uint32_t restarts_used;
    uint64_t incident_generation; /* newest plan of which the loss of members was counted */
    int64_t refill_steps;
    int64_t error_ms; /* of first_error; < 0: none */
    char first_error[DPT_PROTO_TEXT_BYTES];
    char end_text[DPT_PROTO_TEXT_BYTES];

    uint32_t failed_formations;   /* in a row, without a step: the data plane broke */
    uint32_t slow_formations;     /* in a row: not all were ready in time */
    struct pair pairs[PAIRS_MAX]; /* of the last failed formation */
    size_t n_pairs;
    uint64_t pairs_generation; /* formation `pairs` is about */
};

struct forgotten_run {
    uint64_t name_hash;
    uint64_t generation;     /* highest it may have used */
    uint64_t run_generation; /* newest that was sent off */
    bool ended, failed;      /* stragglers are told so */
};

struct dpt_rdzv {
    uint64_t epoch;
    const uint8_t *random; /* (DPT_PROTO_NONCE_BYTES) of the event that is being taken */
    int64_t start_ms, now_ms, deadline_ms;
    int64_t heard_ms; /* any node that is counted in and whose connection stands */
    /* Others have been heard since then, and last; they alone since heard_ms. < 0: nobody. */
    int64_t strangers_since_ms, stranger_ms;
    uint64_t counter; /* of the last message to a node that is counted in */
    bool stopped, fresh;
    struct run *runs[DPT_RDZV_RUNS_MAX];
    size_t n_runs;
    struct forgotten_run forgotten[FORGOTTEN_MAX]; /* ring */
    size_t n_forgotten;
    uint64_t generation_floor; /* highest of those that have fallen out of the ring */
    struct outbox out;
};

/* ---- core.c ---- */

/* NULL: no run of that name has been forgotten lately. */
struct forgotten_run *dpt_rdzv_find_forgotten(struct dpt_rdzv *core, const char *name);

/* ---- join.c ---- */

void dpt_rdzv_on_message(struct dpt_rdzv *core, uint64_t conn, const Dpt__AgentState *message);
void dpt_rdzv_run_destroy(struct run **run);

/* Takes `node` out of the run and frees it. `released`: by agreement. */
struct grave *dpt_rdzv_remove(struct run *run, struct node *node, bool released);

struct run *dpt_rdzv_run_create(struct dpt_rdzv *core, const Dpt__AgentState *message);
/* The node is in the run; its ranks are taken from the message afterwards. */
struct node *dpt_rdzv_node_create(struct dpt_rdzv *core, struct run *run,
                                  const Dpt__AgentState *message);

/* ---- meet.c ---- */

/* A process that the run (NULL: none of its name) does not count in: refused, expelled, told the
 * end, or taken in (then its node is returned). `former` is the node of its id that is counted in,
 * or NULL: nothing changes for that one unless the newcomer takes its place. */
struct node *dpt_rdzv_meet(struct dpt_rdzv *core, uint64_t conn, struct run **run_at,
                           struct node *former, const Dpt__AgentState *message);
/* A node that was lost has been taken back with its state: it takes part in what is formed. */
void dpt_rdzv_came_back(struct dpt_rdzv *core, struct run *run, struct node *node);

/* ---- claim.c ---- */

/* What the message brings; zeroes: nothing. */
void dpt_rdzv_secret_of(const Dpt__AgentState *message, uint8_t ret[DPT_PROTO_SECRET_BYTES]);
/* The message comes from a process of this node: it knows its secret. */
bool dpt_rdzv_is_own(const struct node *node, const Dpt__AgentState *message);
/* The incarnation that speaks is out; NULL: it is not, as far as is remembered. Of several the one
 * of the newest incarnation. */
struct grave *dpt_rdzv_find_grave(struct run *run, const Dpt__AgentState *message);
/* The newest generation that a process of the message's node carried out; 0: none. */
uint64_t dpt_rdzv_newest_ran(const Dpt__AgentState *message);
/* The node that speaks was lost for its silence alone, and no generation was sent off without it
 * since: it has lost nothing, and nobody went on. `run` is NULL when that was forgotten. */
bool dpt_rdzv_may_return(struct dpt_rdzv *core, const struct run *run, const struct grave *grave,
                         const Dpt__AgentState *message);
struct refusal {
    char text[DPT_PROTO_TEXT_BYTES];
    bool show_spec; /* the run's config is told, to name what differs */
};
/* What a run asks of each of its nodes and this one (its spec is there) does not have; false: it
 * has all. */
bool dpt_rdzv_differs(const struct run *run, const Dpt__AgentState *message, struct refusal *ret);
/* `former` has the id, and its connection is broken: it may be dead, and its id free soon. */
bool dpt_rdzv_waits_for_id(const struct run *run, const struct node *former,
                           const Dpt__AgentState *message);
/* Why the process may not join, where `former` (NULL: none) is counted in under its id. False: it
 * may, in that one's place. */
bool dpt_rdzv_refuses(const struct dpt_rdzv *core, const struct run *run, const struct node *former,
                      const Dpt__AgentState *message, struct refusal *ret);

/* ---- phase.c ---- */

/* Carries every transition that is due. Call after anything has changed. */
void dpt_rdzv_advance(struct dpt_rdzv *core, struct run *run);

/* Ends the generation in force: a new one is prepared (or the one being prepared becomes hard). */
void dpt_rdzv_prepare(struct dpt_rdzv *core, struct run *run, bool soft, const struct cause *cause);
void dpt_rdzv_fail(struct dpt_rdzv *core, struct run *run, const char *text);

/* A node as people know it: "node b (host gpu7, rank 1)", without a rank when it has none in the
 * newest plan. */
void dpt_rdzv_who(const struct run *run, const struct node *node, char ret[WHO_BYTES]);
struct cause dpt_rdzv_cause(enum cause_kind kind, int64_t detect_ms, const char *fmt, ...)
    DPT_PRINTF(3, 4);
const char *dpt_rdzv_cause_name(enum cause_kind kind);

/* Started and not gone: can be asked to quiesce and report. */
bool dpt_rdzv_rank_is_alive(const struct rank *rank);
/* Has a place in the newest plan. */
bool dpt_rdzv_rank_is_member(const struct run *run, const struct rank *rank);
/* All of its ranks can be asked, or some can and the others have had their time to start. */
bool dpt_rdzv_node_is_ready(const struct dpt_rdzv *core, const struct run *run, struct node *node);
bool dpt_rdzv_node_is_member(const struct run *run, const struct node *node);
/* A member of the newest plan, or of the one that was last sent off; also one that came back, and
 * before this server's first generation a node of an earlier server. */
bool dpt_rdzv_may_hold_newest(const struct run *run, const struct node *node);
/* Has a place in the newest plan and has said FINISHED there: its loss costs nothing more. */
bool dpt_rdzv_has_finished(const struct run *run, const struct rank *rank);
bool dpt_rdzv_has_quiesced(const struct run *run, const struct rank *rank);
bool dpt_rdzv_is_benched(const struct dpt_rdzv *core, const struct node *node);

/* Nodes needed to form: min_nodes, or one when all steps are done. */
uint32_t dpt_rdzv_min_nodes(const struct run *run);

/* When something is due in this run by itself. */
int64_t dpt_rdzv_due_ms(const struct dpt_rdzv *core, const struct run *run);

/* ---- wait.c ---- */

/* A node with a rank that computes in a generation which is not in force: it comes from an earlier
 * server and was not there when this one formed its first. A suspect node is left out, as it cannot
 * be told to stop. NULL: none. */
const struct node *dpt_rdzv_foreigner(const struct dpt_rdzv *core, const struct run *run);
/* The run has waited for min nodes as long as its config lets it. */
bool dpt_rdzv_wait_is_over(const struct dpt_rdzv *core, const struct run *run);
/* The run ends for that, with `ready` nodes. */
void dpt_rdzv_fail_waiting(struct dpt_rdzv *core, struct run *run, uint32_t ready);

/* In its first lease a server may not have heard yet of nodes that an earlier one knew. */
bool dpt_rdzv_is_young(const struct dpt_rdzv *core, const struct run *run);

/* SETTLING: when the first generation is formed even if the run is not full. */
int64_t dpt_rdzv_last_call_until_ms(const struct dpt_rdzv *core, const struct run *run);
/* Why it waits longer than for nodes that are on their way; "": it does not. */
const char *dpt_rdzv_last_call_reason(const struct dpt_rdzv *core, const struct run *run);

/* One that was lost for silence is back, and others that may hold the newest state are not: for a
 * lease no plan is made without them. */
bool dpt_rdzv_awaits_return(const struct dpt_rdzv *core, const struct run *run);
/* How long a node that leaves is kept in WAITING: what it holds may become a whole state with the
 * parts of nodes that come back. 0: not at all. */
int64_t dpt_rdzv_hold_leaving_ms(const struct run *run);
/* A generation is sent off: it has the newest state, and nodes that are not in it cannot come back.
 */
void dpt_rdzv_await_nobody(struct run *run);

/* ---- loss.c ---- */

void dpt_rdzv_node_lost(struct dpt_rdzv *core, struct run *run, struct node *node, const char *why);
/* When the loss of one last heard at `word_ms` showed: now, or when the generation ended by what
 * its peers saw. */
int64_t dpt_rdzv_noticed_ms(const struct dpt_rdzv *core, const struct run *run, int64_t word_ms);
/* A member process is gone or its data plane broke: ends or hardens the generation where needed. */
void dpt_rdzv_member_lost(struct dpt_rdzv *core, struct run *run, const struct cause *cause);
void dpt_rdzv_count_crashes(struct dpt_rdzv *core, struct run *run, uint32_t crashes,
                            const char *what);
/* Members of the newest plan are lost, or it failed by itself: one restart, however many they are
 * and whenever it shows until the next plan is made. */
void dpt_rdzv_count_incident(struct dpt_rdzv *core, struct run *run, const char *what);
/* A rank has told its step: progress, or not. */
void dpt_rdzv_note_step(struct dpt_rdzv *core, struct run *run, const struct rank *rank);
/* Leases, graces, quiesce deadlines and stalls, at a TICK without a backlog. */
void dpt_rdzv_check_leases(struct dpt_rdzv *core, struct run *run);
/* A node that is counted in speaks: what was not heard while nobody was, is forgiven. Before the
 * message is taken. */
void dpt_rdzv_hear(struct dpt_rdzv *core);
/* A process speaks that may not be counted in: that ends no silence of the nodes. */
void dpt_rdzv_hear_stranger(struct dpt_rdzv *core);
/* The node speaks again since heard_ms. Before that is set. */
void dpt_rdzv_count_spoken(const struct dpt_rdzv *core, const struct run *run, struct node *node);
/* A connection broke: what came over it last, perhaps read only now, shows nothing of the others.
 */
void dpt_rdzv_unhear(struct dpt_rdzv *core);
/* Beyond it a node is lost. */
int64_t dpt_rdzv_lease_end_ms(const struct dpt_rdzv *core, const struct run *run,
                              const struct node *node);
/* Its control connection has been broken for longer than the grace: it may be dead. Where it has no
 * place in the newest plan nobody waits for it; else it is lost when a peer reports the end of its
 * data connection, or with its lease. */
bool dpt_rdzv_is_suspect(const struct dpt_rdzv *core, const struct run *run,
                         const struct node *node);
/* When that is to be looked at next. */
int64_t dpt_rdzv_suspect_due_ms(const struct dpt_rdzv *core, const struct run *run,
                                const struct node *node);
/* It speaks again. */
void dpt_rdzv_unsuspect(struct dpt_rdzv *core, const struct run *run, struct node *node);
/* Pairs of nodes that failed two formations running: benches one of them. At plan time. */
void dpt_rdzv_judge_pairs(struct dpt_rdzv *core, struct run *run);

/* ---- state.c ---- */

/* Of whom a plan is made. The benched and the leaving come in again when only they hold what the
 * others lack; the latter as guests. */
enum group { GROUP_STAYING, GROUP_BENCHED, GROUP_LEAVING, GROUP_COUNT };
enum group dpt_rdzv_group_of(const struct dpt_rdzv *core, const struct node *node);

struct source {
    int64_t step;                  /* of the state; -1: nobody holds any */
    int64_t load_checkpoint;       /* >= 0: that is the state (and == step) */
    const struct rank *outcome_of; /* who has the outcome of `step`; NULL: nobody told it */
    uint64_t state_generation;
    int64_t lost_step;        /* a step that was applied and cannot be put together; -1: none */
    struct dpt_shard missing; /* of it, the lowest that nobody holds */
};

/* Which groups are admitted; false: too few nodes. */
bool dpt_rdzv_admit(struct dpt_rdzv *core, const struct run *run, bool ret_in[GROUP_COUNT]);
/* Whether all that are here, some of whom leave, hold together what no checkpoint has: where too
 * few stay they save it first. */
bool dpt_rdzv_farewell_is_due(struct dpt_rdzv *core, const struct run *run);
/* The newest step of which those who have quiesced hold a whole state; `without` (or NULL): but for
 * that node. -1: none. */
int64_t dpt_rdzv_step_held(struct dpt_rdzv *core, const struct run *run,
                           const struct node *without);
/* The same of the nodes that do not leave. */
int64_t dpt_rdzv_step_staying(struct dpt_rdzv *core, const struct run *run);
/* The newest state that those of the groups `in` hold together, or a checkpoint if it is newer. */
struct source dpt_rdzv_choose_state(struct dpt_rdzv *core, const struct run *run,
                                    const bool in[GROUP_COUNT]);
/* It has (its part of) that state, or what it takes to apply the last step, or loads it. */
bool dpt_rdzv_has_state(const struct run *run, const struct source *source,
                        const struct rank *rank);
/* The shards of that state which such a rank holds in memory; returns their number: 0 where the
 * state is loaded or begun. */
int dpt_rdzv_parts_of(const struct source *source, const struct rank *rank,
                      struct dpt_shard ret[DPT_PROTO_SHARDS_MAX]);
/* All of the plan's ranks are ready: whether every part of the state is on two nodes at least. */
bool dpt_rdzv_is_redundant(struct dpt_rdzv *core, const struct run *run);
/* A rank of the plan says that copies are still being made. */
bool dpt_rdzv_is_rebuilding(const struct run *run);
/* Remembers what goes with a rank. */
void dpt_rdzv_note_loss(struct run *run, const struct node *node, const struct rank *rank);
/* "shard 2 of 4 of step 57 is gone with node c: going back …"; "" when nothing is lost. */
void dpt_rdzv_tell_loss(const struct run *run, const struct source *source,
                        char ret[DPT_PROTO_TEXT_BYTES]);

/* ---- plan.c ---- */

/* Makes the plan of run->generation from the reports. False: not enough nodes have reported. */
bool dpt_rdzv_make_plan(struct dpt_rdzv *core, struct run *run);
void dpt_rdzv_plan_fini(struct plan *plan);
/* Rebuilds the places of a generation that an earlier server formed. */
bool dpt_rdzv_adopt_plan(struct dpt_rdzv *core, struct run *run, uint64_t generation,
                         const char *digest, uint32_t world_size);

/* ---- reply.c ---- */

void dpt_rdzv_answer_nodes(struct dpt_rdzv *core, struct run *run);
/* Tells a leaving node that it may go, and takes it out of the run. */
void dpt_rdzv_release(struct dpt_rdzv *core, struct run *run, struct node *node);
/* The same to one that did not hear it. */
void dpt_rdzv_release_again(struct dpt_rdzv *core, uint64_t conn, const Dpt__Stamp *to,
                            const struct grave *grave);
/* For an agent that is not counted in (any more); run may be NULL. */
void dpt_rdzv_answer_stranger(struct dpt_rdzv *core, uint64_t conn, const Dpt__Stamp *to,
                              Dpt__ServerPhase phase, const struct run *run, bool with_spec,
                              const char *text);

/* Tells an incarnation that it is out. world_step: of the world that goes on without it and has all
 * that it held; 0: none does, or it is not known. `run` may be NULL. */
void dpt_rdzv_expel(struct dpt_rdzv *core, uint64_t conn, const Dpt__Stamp *to,
                    const struct run *run, int64_t world_step, const char *text);

uint64_t dpt_rdzv_id_hash(const char *id);

#endif
