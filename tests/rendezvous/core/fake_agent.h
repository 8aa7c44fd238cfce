/* Fake agents for tests of the server's state machine: a test sets their messages, and each keeps
 * the server's last answer. */
#ifndef DPT_TESTS_RENDEZVOUS_CORE_FAKE_AGENT_H
#define DPT_TESTS_RENDEZVOUS_CORE_FAKE_AGENT_H

#include "rendezvous/core/timing.h"
#include "tests/rendezvous/core/kept_view.h"
#include "tests/rendezvous/core/view.h"
#include "tests/rendezvous/core/watch.h"

enum { FAKES_MAX = 16, FAKE_RANKS = 2 };

struct fake {
    char id[DPT_PROTO_NAME_BYTES];
    uint64_t conn, counter, epoch;
    uint8_t key[DPT_RDZV_KEY_BYTES]; /* of its machine; initially zero: no keys */
    bool join_only;
    const char *limited_to; /* the only run in which its key may take part; NULL: every one */
    Dpt__Stamp stamp;
    Dpt__RunSpec spec;
    Dpt__RankState ranks[FAKE_RANKS];
    Dpt__RankState *rank_list[FAKE_RANKS];
    Dpt__Shard shards[FAKE_RANKS][DPT_PROTO_SHARDS_MAX];
    Dpt__Shard *shard_list[FAKE_RANKS][DPT_PROTO_SHARDS_MAX];
    Dpt__AgentState state;
    bool cannot_save; /* in a final save its ranks write no checkpoint */
    char plan_digest[DPT_PROTO_DIGEST_BYTES];
    /* From the last answer. `plan` is the newest plan received. */
    bool told;
    Dpt__ServerPhase phase;
    bool soft, has_spec, last_holder, drain;
    unsigned unknown_fields; /* of the spec */
    uint32_t n_nodes, n_runs, heartbeat_ms;
    uint64_t generation, counter_seen;
    int64_t grant_step, last_call_ms, world_step, save_from, saved_step;
    char text[DPT_PROTO_TEXT_BYTES], only_run[DPT_PROTO_NAME_BYTES];
    Dpt__Plan *plan; /* owned */
};

struct stage {
    struct dpt_rdzv *core;
    struct watch *watch; /* checks every step */
    /* Options of the next server. */
    bool fresh;
    uint32_t nodes_max, world_max;
    int64_t now_ms, deadline_ms;
    struct fake *fakes[FAKES_MAX];
    size_t n_fakes, n_sends;
    size_t n_logs; /* lines of all steps */
    /* The newest of them, and the newest warning. */
    char log[DPT_PROTO_TEXT_BYTES], warning[DPT_PROTO_TEXT_BYTES];
    uint64_t n_steps;              /* each event's random bytes */
    struct dpt_rdzv_run_view view; /* of run 0 after the last step; zero if there is none */
    unsigned records[DPT_RDZV_RECORD_COUNT];
    void (*on_reply)(const Dpt__ServerState *message); /* an operator is answered; NULL: none is */
    struct kept_records *journal; /* records of all servers since the last stage_restart */
    struct dpt_rdzv *replica;     /* has their durable state, as the server must after each step */
};

/* Opens a server that has been up for so long that no last call waits for nodes of an earlier
 * server. */
void stage_open(struct stage *stage);
void stage_close(struct stage *stage);
/* A new server with this epoch takes over. It has just started and knows no run. */
void stage_restart(struct stage *stage, uint64_t epoch);
/* A new server with this epoch takes over, and has the journal of those before it. */
void stage_restart_with_journal(struct stage *stage, uint64_t epoch);
/* The same, with the first `n_records` records of that journal: an older copy of it. */
void stage_restart_with_older_journal(struct stage *stage, uint64_t epoch, size_t n_records);
void stage_step(struct stage *stage, struct dpt_rdzv_event event);
void stage_tick(struct stage *stage, int64_t after_ms);
/* A TICK while unread messages wait. */
void stage_backlog(struct stage *stage, int64_t after_ms);
/* Lets `ms` pass: ticks at each deadline; no fake sends. */
void stage_pass(struct stage *stage, int64_t ms);
/* The same; every fake of the list sends after each tick. */
void stage_pass_speaking(struct stage *stage, struct fake *const *fakes, size_t n, int64_t ms);

/* A fake of a run with 1 to 4 nodes and a timeout of 5 s; it has one rank in STANDBY. */
void fake_init(struct fake *fake, struct stage *stage, const char *id);
void fake_fini(struct fake *fake);
/* As fake_init, but puts the fake on no stage. A fake that is on a stage stays there. */
void fake_reset(struct fake *fake, const char *id);
/* Completes `state` to the fake's next message: fills in counter, epoch and plan. */
void fake_prepare(struct fake *fake);
void fake_say(struct fake *fake, struct stage *stage);
/* The same, and the server must answer REFUSED with a text that contains `why`. */
void fake_refused(struct fake *fake, struct stage *stage, const char *why);
void fake_phase(struct fake *fake, Dpt__RankPhase phase, uint64_t generation);

/* Adds a shard to those that rank 0 holds; fake_no_parts removes all shards. */
void fake_part(struct fake *fake, uint32_t index, uint32_t of, bool pending);
void fake_no_parts(struct fake *fake);

/* The data connection from its rank 0 to `peer` ends; its next message reports that. */
void fake_loses(struct fake *fake, const struct fake *peer);
/* The data plane of the fake's generation breaks, and it says so. */
void fake_breaks_off(struct fake *fake, struct stage *stage);
/* The fake's node dies: its control connection breaks, and so do the data connections that its
 * peer `seen_by` has to it. */
void fake_dies(struct fake *fake, struct fake *seen_by, struct stage *stage);

/* The fake's ranks carry out the server's last answer: quiesce, build, run, save. */
void fake_obey(struct fake *fake);
/* Every fake of the list quiesces as commanded and reports, and does no more. */
void fakes_report(struct stage *stage, struct fake *const *fakes, size_t n);
/* All fakes obey and send in turn, until nothing changes any more. */
void fakes_settle(struct stage *stage, struct fake *const *fakes, size_t n);
/* The fakes join, the last call passes, and they settle. The run is then RUNNING. */
void fakes_start(struct stage *stage, struct fake *const *fakes, size_t n);
/* The place of the fake's rank in its newest plan; NULL: none. */
const Dpt__PlanRank *fake_place(const struct fake *fake);

#endif
