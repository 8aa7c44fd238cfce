/* Deterministic simulation of one server, many agents and their rank processes. The state machines
 * of server and agents are product code. Seeded events over a simulated network drive them. The
 * rank process is a model that obeys every AgentToRank message exactly.
 *
 * Messages are sent as bytes and decoded by the product's decoder. Time is simulated, in ms. All
 * random numbers come from one seed: `dpt_sim --seed N --verbose` replays a failure. */
#ifndef DPT_TESTS_SIM_SIM_H
#define DPT_TESTS_SIM_SIM_H

#include "base/shard.h"
#include "tests/rendezvous/core/view.h"
#include "tests/rendezvous/core/watch.h"
#include "tests/sim/agent_watch.h"
#include "worker/agent/core.h"

#include <stdio.h>

enum {
    MACHINES_MAX = 2048,
    LOCALS_MAX = 4,
    FAULTS_MAX = 64,
    GROUPS_MAX = 4096,
    RESCUE_PARTS_MAX = 4096,
    LINES_MAX = 32,
    EVENTS_MAX = 40 * 1000 * 1000 /* a simulation that needs more hangs */
};

/* ---- random numbers (splitmix64) ---- */

struct rng {
    uint64_t state;
};
uint64_t rng_next(struct rng *rng);
int64_t rng_range(struct rng *rng, int64_t low, int64_t high); /* both included */
bool rng_chance(struct rng *rng, int permille);

/* ---- events ---- */

enum event_kind {
    EV_SERVER_MESSAGE, /* conn, data */
    EV_SERVER_BROKEN,  /* conn */
    EV_SERVER_TICK,
    EV_SERVER_START,
    EV_SERVER_CONT,
    EV_SERVER_ROUND,  /* overloaded: reads one message */
    EV_AGENT_MESSAGE, /* machine, data */
    EV_AGENT_UP,
    EV_AGENT_DOWN,
    EV_AGENT_TICK,
    EV_AGENT_RANK_MESSAGE, /* machine, local, spawn, data */
    EV_AGENT_RANK_EOF,
    EV_AGENT_RANK_EXITED, /* number: exit code */
    EV_AGENT_SIGNAL,
    EV_RANK_MESSAGE, /* machine, local, spawn, data */
    EV_RANK_TIMER,   /* token */
    EV_RANK_BEAT,
    EV_RANK_BROKEN, /* token: generation; number: suspect */
    EV_MACHINE_START,
    EV_MACHINE_CONT,
    EV_RANK_CONT,
    EV_HEAL_NETWORK, /* machine */
    EV_OPERATOR,     /* number: index of a command */
    EV_FAULT         /* number: index */
};

struct event {
    int64_t at_ms;
    uint64_t order;
    enum event_kind kind;
    bool beside; /* belongs to the second run */
    int machine; /* index; -1: server */
    uint64_t
        life; /* of the machine's agent, or of the server; an event of an earlier life is void */
    uint32_t local, spawn;
    uint64_t conn, token;
    int64_t number;
    uint8_t *data; /* owned by the event */
    size_t bytes;
};

struct queue {
    struct event *heap;
    size_t n, max;
    uint64_t order;
};
/* With its own copy of the data. */
struct event event_copy(const struct event *event);
void queue_push(struct queue *queue, const struct event *event);
void queue_pop(struct queue *queue, struct event *ret);
void queue_fini(struct queue *queue);

/* ---- rank processes ---- */

enum rank_stage {
    RS_STARTING,
    RS_STANDBY,
    RS_QUIESCING, /* has received a hard PREPARE and stops soon */
    RS_QUIESCED,
    RS_BUILDING,
    RS_READY,
    RS_COMPUTING,
    RS_REDUCING,
    RS_APPLYING,
    RS_BOUNDARY, /* all ranks agreed to re-form; waits for the PREPARE */
    RS_SAVING,   /* writes a checkpoint before the whole world leaves */
    RS_BROKEN,   /* its data plane failed; waits for PREPARE */
    RS_FINISHING,
    RS_FINISHED,
    RS_RESCUING /* the node leaves without a server: writes its state as a rescue */
};

struct group;

enum { REBUILD_STEPS = 3 };

/* How the ranks of a simulated run share the state. */
enum sharding {
    SHARDING_NONE,   /* each rank holds all of it */
    SHARDING_FULL,   /* rank r of N holds {r, N} */
    SHARDING_SHADOW, /* ... and a shadow of the shard of a rank of another node */
    SHARDING_HYBRID, /* rank i of the h of its host holds {i, h} */
    SHARDING_COUNT
};

struct parts {
    struct dpt_shard own, shadow;
};

struct proc {
    bool alive, stopped, wedged;
    int machine;
    uint64_t life;
    uint32_t local, spawn;
    uint64_t incarnation;
    enum rank_stage stage;
    uint64_t generation; /* to which `stage` belongs */
    uint64_t prepare_generation;
    bool prepare_soft;
    int64_t step, outcome_step, gradient_step, checkpoint_seen;
    uint64_t weights, outcome;
    struct parts held, pending; /* pending: for pending_generation, until its GO; 0: none */
    uint64_t pending_generation, ran_generation;
    uint64_t failed_generation;
    int suspect;
    struct group *group;
    /* Of the newest group it was in: its number and its run's life, because a later server may
     * adopt the group. */
    uint64_t group_number, group_life;
    int64_t applied_ms, step_ms;
    int rank;
    int32_t checkpoint_slot;
    bool takes_state, writes_log, arrived, has_state;
    bool went_back; /* gave up its state for a plan that has not reached GO since */
    uint64_t timer; /* only the newest timer counts */
    int64_t lease_until_ms, grant_step, want_grant;
    bool leaving, save_then_quiesce;
    int64_t confirmed_ms; /* from the agent's message */
    struct log_line {
        const struct group *group;
        int64_t step, made_ms, made_clock_ms; /* made_clock_ms: by the machine's clock */
    } lines[LINES_MAX];                       /* of the log, that are not yet written */
    int n_lines;
    uint64_t log_end; /* number of lines of the log file that the process knows */
    bool log_stalled; /* lines have waited since the last one was appended */
    bool rescue_written;
    int64_t rescued_step;
    struct event *deferred; /* arrived while the process was stopped */
    size_t n_deferred, deferred_max;
};

/* One generation's data plane. */
struct group {
    uint64_t number; /* groups are counted from 1; a fresh server may use a generation again */
    uint64_t generation;
    uint64_t run_life; /* of the run that planned it */
    uint64_t server_life;
    uint8_t nonce[DPT_PROTO_NONCE_BYTES];
    char digest[DPT_PROTO_DIGEST_BYTES];
    uint32_t world, handover_ranks, arrived;
    struct parts wants[MACHINES_MAX * LOCALS_MAX];    /* by rank */
    struct dpt_shard late[MACHINES_MAX * LOCALS_MAX]; /* shadows that are copied during the steps */
    bool rebuilds;                                    /* `late` has some */
    struct proc *members[MACHINES_MAX * LOCALS_MAX];  /* by rank; NULL until it arrives */
    int64_t resume_step, load_checkpoint;
    uint32_t writers, parts;
    int64_t step; /* the ranks compute step + 1 */
    uint32_t contributed;
    bool contributions[MACHINES_MAX * LOCALS_MAX];
    bool reform, all_leaving; /* the flags of this step's commit */
    int64_t superseded_ms;    /* time of the GO of a newer group; 0: none */
    uint64_t superseded_life; /* of the server that formed the newer group */
    int culprit; /* broken: the rank that ended first; the others name it as their suspect */
    bool broken, went, agreed_reform, agreed_leaving, saved, finished;
    bool final_save; /* only saves, makes no step */
};

/* ---- machines ---- */

/* metrics.jsonl in one log.dir. */
struct log_file {
    uint64_t lines, newest; /* newest: number of the newest group with a line */
};

struct machine {
    char id[DPT_PROTO_NAME_BYTES];
    struct log_file log;       /* in its own folder; a shared folder's log is the first machine's */
    struct dpt_agent *agent;   /* NULL: not running */
    struct agent_watch *watch; /* checks each step of the agent */
    uint64_t life;             /* grows with each start and end of the agent */
    uint64_t incarnation;
    uint64_t conn; /* 0: not connected */
    bool stopped, partitioned;
    bool unheard, hears_nothing; /* what it sends to the server, or the server to it, is lost */
    /* Its monotonic clock is this much ahead of sim->now_ms; so is the time in its agent's events
     * and in its ranks' permissions. */
    int64_t clock_ms;
    bool hurt;          /* a fault hit it since its generation was noted as covered */
    int64_t refused_ms; /* since then its connection was refused for less than a lease; -1: never */
    bool was_hit;       /* another fault hit it, or a second refusal */
    bool was_stopped;   /* it, its agent or a rank was stopped or hung at some time */
    int64_t told_ms;    /* when it was last told to leave; -1: never */
    uint64_t told_life; /* the life of the program that was told */
    bool told_twice;    /* told again, so that it leaves at once and hands nothing over */
    bool rescues;       /* it leaves with a rescue, because no server answers */
    /* In this life: the newest checkpoint or rescue that the server or one of its processes
     * reported to it; 0: none. */
    int64_t known_saved;
    /* Of the last server message before it began to end, or of its start; by its own clock. */
    int64_t heard_ms;
    bool ending;         /* the agent starts no more ranks */
    int64_t held_at_end; /* newest step of its ranks when the agent began to end; -1: none */
    bool said_unsaved;   /* it has said NOT SAVED in this life */
    bool told_stop;      /* ... and was told that an operator's stop has ended the run */
    bool evicted;        /* an operator has evicted it at some time */
    int slow;            /* factor of computing times */
    uint32_t ranks;
    int64_t tick_ms;
    struct proc *procs[LOCALS_MAX]; /* newest process of each local rank */
    int exit_code;
    bool ended;
    char exit_text[DPT_PROTO_TEXT_BYTES];
    struct event *deferred;
    size_t n_deferred, deferred_max;
};

/* ---- the whole ---- */

struct profile {
    int machines, ranks, min_nodes, max_nodes;
    int64_t timeout_ms, steps, checkpoint_every;
    uint32_t max_world, max_restarts, server_max_world; /* --max-ranks of every second server */
    int loss, duplicate, reorder;                       /* permille */
    int64_t delay_min_ms, delay_max_ms;
    int64_t compute_min_ms, compute_max_ms;
    int64_t start_min_ms, start_max_ms; /* time a rank process takes to be ready */
    int64_t faults_from_ms, faults_until_ms;
    int n_faults;
    int64_t spread_ms; /* machines start within this time */
    int64_t late_ms;   /* when the last machine starts; 0: with the others */
    bool shared_folder;
    enum sharding sharding;
    int n_end_faults;  /* faults of the first writer while it saves the last checkpoint */
    int64_t outage_ms; /* length of the one outage of the server, in which faults occur; 0: none */
    int64_t wait_ms, first_step_ms, drain_ms; /* config keys; 0: the default */
    int bad_pair_a, bad_pair_b;               /* machines that cannot reach each other; -1: none */
    int racks;                                /* 0: no machine says its rack */
    bool has_journal, has_older_copies, crash_before_persist; /* see struct sim */
    uint64_t crash_at_record;
    int n_commands;   /* of an operator */
    int n_net_faults; /* faults of kinds that come after FAULT_COUNT; clocks differ if it is not 0
                       */
};

struct fault {
    int64_t at_ms;
    int kind;
    int machine;
    uint32_t local;
    int64_t length_ms;
};

/* ---- an operator ---- */

enum { COMMANDS_MAX = 16 };

struct sim_command {
    Dpt__ControlVerb verb;
    int machine;
    int64_t length_ms;        /* PAUSE, EVICT: from its end to RESUME or ALLOW */
    int64_t step;             /* of the last reply; -1: none came */
    uint64_t number, answers; /* of the last reply; to its questions */
    uint64_t stops_answered;  /* own_stops when the command was first answered */
    bool done;
};

struct operator
{
    struct rng rng;
    struct sim_command commands[2 * COMMANDS_MAX]; /* drawn ones, and those that follow them */
    int n_followed;
    bool held; /* after the last step of the server, and the newest step when that began */
    int64_t held_at;
    uint64_t pauses, drains, evictions; /* that were done */
    uint64_t stops;                     /* runs that ended by one, of all that share the server */
    uint64_t own_stops;                 /* ... of this name */
};

/* One run and its machines. Two runs may share one server: the first is then the other's host and
 * owns the queue and the server. Their other common values (time, the server's state) are equal in
 * both structs. */
struct disk;
struct sim {
    uint64_t seed;
    const char *run;
    struct sim *host;   /* itself, or the run whose server it shares */
    struct sim *beside; /* the run that shares this one's server; NULL: none */
    struct rng rng;
    struct rng nonces; /* the server's random source; separate, so that it changes no other draw */
    struct profile profile;
    struct queue queue;
    int64_t now_ms;
    bool verbose;
    FILE *trace;                 /* golden timelines; NULL: none */
    char told[MACHINES_MAX][64]; /* each machine's last message in the trace */
    bool server_hurt;            /* a fault hit the server: nodes may not hear it */
    bool server_hit;             /* the server was down, stopped, cut off or overloaded */
    struct dpt_rdzv *core;       /* NULL: down */
    struct watch *watch;         /* checks each step of the core */
    struct disk *disk;           /* records of all servers, or without has_journal of this one */
    bool has_journal, has_older_copies; /* a later server gets all of them, or the first ones */
    uint64_t records;                   /* that all servers have made */
    uint64_t crash_at_record;           /* the server crashes in the step of this record; 0: none */
    bool crash_is_armed;                /* ... in the next step that has a record */
    bool crash_before_persist;          /* the records of that step are lost, too */
    uint64_t crashes_at_records, older_copies;
    uint64_t server_life, epoch;
    uint64_t run_life; /* grows whenever a server creates the run */
    bool server_stopped;
    int64_t server_tick_ms;
    struct rng clocks;                      /* for faults_net.c */
    int64_t server_clock_ms, server_due_ms; /* as clock_ms of a machine; its newest deadline */
    int split_at;              /* machines from this index on reach no others, nor these; 0: none */
    int64_t overload_until_ms; /* the server reads too slowly until then; 0: it is not overloaded */
    struct event *server_deferred;
    size_t n_server_deferred, server_deferred_max;
    uint64_t next_conn;
    struct machine machines[MACHINES_MAX];
    struct group *groups[GROUPS_MAX];
    size_t n_groups;
    struct proc **procs; /* all processes of all time */
    size_t n_procs, procs_max;
    struct fault faults[FAULTS_MAX];
    struct operator operator;
    int64_t checkpoint; /* newest complete checkpoint in the shared folder; -1: none */
    int64_t rescue;     /* newest complete rescue there; -1: none */
    struct {
        int64_t step;
        struct dpt_shard shard;
    } rescue_parts[RESCUE_PARTS_MAX];
    int n_rescue_parts;
    int64_t outage_until_ms; /* no server starts before this time */
    int64_t down_ms;         /* when the server ended */
    uint64_t newest_went;    /* number of the newest group that reached GO */
    int64_t furthest;        /* highest step ever applied */
    /* is_covered: the newest generation that ran can lose any one node. Its ranks, by `in`. */
    bool is_covered;
    struct {
        bool in;
        uint64_t incarnation;
        uint32_t spawn;
    } covered[MACHINES_MAX * LOCALS_MAX];
    uint64_t noted_generation; /* generation and redundancy at the last check of is_covered */
    enum dpt_rdzv_redundancy noted_redundancy;
    bool done_seen; /* the server said DONE */
    int64_t ran_ms; /* a generation, other than a final save, last ran; earlier by clock jumps */
    bool failed;    /* the server said FAILED after it had waited as long as it must */
    /* Counts for the summary; a test checks that the faults have effects. */
    uint64_t events, formations, applied, healed, handed, loaded, fenced_writes, expulsions, saved;
    uint64_t foreign_logs;      /* log writers whose lines waited while another world wrote */
    uint64_t lines, held_lines; /* log lines written; steps at which lines had to wait */
    uint64_t outages, rescued,
        unsaved;        /* rescued: complete rescues; unsaved: leaves with NOT SAVED */
    uint64_t rebuilt;   /* shadows that became whole while training went on */
    uint64_t strangers; /* refused processes with the id of a member node */
    /* moved, dropped: new layouts of the state that were used, given up. hosted, final_saves:
     * generations with handover ranks, generations that only save. */
    uint64_t moved, dropped, hosted, final_saves;
    char failure[512]; /* first broken invariant; "": none */
};

/* sim.c */
struct sim *sim_create(uint64_t seed, const struct profile *profile, bool verbose, FILE *trace);
/* Adds a second run on the server of `host`, which owns the run. */
void sim_add(struct sim *host, uint64_t seed, const struct profile *profile);
void sim_destroy(struct sim **sim);
/* Runs until every agent has ended, an invariant is broken, or the time is until_ms. */
void sim_run(struct sim *sim, int64_t until_ms);
void sim_say(struct sim *sim, const char *fmt, ...) DPT_PRINTF(2, 3);
void sim_fail(struct sim *sim, const char *fmt, ...) DPT_PRINTF(2, 3);
void sim_push(struct sim *sim, struct event event); /* at_ms is absolute */
/* Encodes a message as the data of an event. */
void sim_pack(struct sim *sim, const ProtobufCMessage *message, struct event *event);
int64_t sim_delay(struct sim *sim, int64_t low_ms, int64_t high_ms);
void defer(struct event **list, size_t *n, size_t *max, const struct event *event);

/* The newest step that a restart finds on disk. */
int64_t sim_saved_step(const struct sim *sim);

/* journal.c: the server's journal */
void disk_wipe(struct sim *sim); /* an empty journal */
void disk_destroy(struct disk **disk);
/* Gives the records to the new core and its watch. */
void disk_restore(struct sim *sim);
/* Makes the records of a step durable. Returns whether the server crashes before its messages
 * leave. */
enum disk_crash {
    DISK_NO_CRASH,
    DISK_CRASH_KEPT, /* the records are durable */
    DISK_CRASH_LOST  /* they are not */
};
enum disk_crash disk_take(struct sim *sim, const struct dpt_rdzv_output *output);
/* The server crashes, and starts again after up to 8 s. */
void disk_crash(struct sim *sim);

/* server.c: the server and the network between it and the agents */
void server_start(struct sim *sim);
void server_crash(struct sim *sim);
void server_stop(struct sim *sim);
void server_overload(struct sim *sim, int64_t length_ms);
/* The server's view of this run; false: the server does not know it. */
bool server_view(const struct sim *sim, struct dpt_rdzv_run_view *ret);
/* The rank of a process in the plan in force; -1: none. */
int server_rank_of(const struct sim *sim, const struct proc *proc);
/* There is no server for length_ms. */
void server_outage(struct sim *sim, int64_t length_ms);
void server_event(struct sim *sim, const struct event *event);
void server_undefer(struct sim *sim);
/* A process sends a message in the name of a machine's node without knowing its secret. */
void server_meet_stranger(struct sim *sim, int machine);
void net_to_server(struct sim *sim, int machine, const Dpt__AgentState *message);
void net_connect(struct sim *sim, int machine, int64_t after_ms);
void net_break(struct sim *sim, int machine);

/* machine.c: agents and processes as the operating system sees them */
Dpt__RunSpec machine_spec(const struct sim *sim);
/* Racks have equal numbers of neighbouring machines. 0 also if no machine says its rack. */
int machine_rack(const struct sim *sim, int machine);
void machine_start(struct sim *sim, int machine);
void machine_kill(struct sim *sim, int machine);
void machine_event(struct sim *sim, const struct event *event);
void machine_undefer(struct sim *sim, int machine);
void proc_kill(struct sim *sim, struct proc *proc, int exit_code);
struct proc *proc_find(struct sim *sim, const struct event *event);
void proc_undefer(struct sim *sim, struct proc *proc);

/* model.c: the rank process */
void model_start(struct sim *sim, struct proc *proc);
void model_message(struct sim *sim, struct proc *proc, const Dpt__AgentToRank *message);
void model_timer(struct sim *sim, struct proc *proc);
void model_beat(struct sim *sim, struct proc *proc);
void model_broken(struct sim *sim, struct proc *proc, uint64_t generation, int suspect);
void model_gone(struct sim *sim, struct proc *proc); /* its peers will see it */
void model_report(struct sim *sim, struct proc *proc);
uint64_t model_weights(int64_t step);
uint64_t model_outcome(int64_t step);

/* model_group.c: what ranks do together */
/* Whether the members hold a whole state together. */
bool group_is_whole(const struct group *group);
void group_join(struct sim *sim, struct proc *proc, const Dpt__Plan *plan);
void group_contribute(struct sim *sim, struct proc *proc);
void group_leave(struct sim *sim, struct proc *proc);
void group_part_written(struct sim *sim, struct proc *proc);
void group_arrived(struct sim *sim, struct proc *proc);
void group_went(struct sim *sim, struct group *group);
/* Whether the data connections between two machines cannot be made. */
bool group_is_apart(const struct sim *sim, int a, int b);
/* Breaks the data planes of the groups whose members cannot reach one another any more. */
void group_split(struct sim *sim);
void model_set_timer(struct sim *sim, struct proc *proc, int64_t low_ms, int64_t high_ms);

/* check.c: invariants */
void check_after_server(struct sim *sim);
void check_plan_sent(struct sim *sim, const Dpt__ServerState *message);
/* The server tells a node that the run is DONE. */
void check_done(struct sim *sim, const Dpt__ServerState *message);
void check_end(struct sim *sim);
/* The program of an agent ends: it must not have the only copy of a step, or must have said so. */
void check_exit(struct sim *sim, const struct machine *machine);
/* Call it before the agent receives the message that it is expelled. */
void check_expelled(struct sim *sim, const struct machine *machine);
/* The machine has said NOT SAVED in this line. */
void check_unsaved(struct sim *sim, const struct machine *machine, const char *line);
/* A line of the server's log. */
void check_log(struct sim *sim, const char *text);
/* The run ends, for the reason `text` ("": it is done). Absent nodes may hear other words later. */
void check_failed(struct sim *sim, const char *text);
struct dpt_timing sim_timing(const struct sim *sim);

#endif
