/* Agents whose messages a test sets, to drive the server's machine by hand. Each keeps the last
 * answer. */
#ifndef DPT_TESTS_RENDEZVOUS_CORE_FAKE_AGENT_H
#define DPT_TESTS_RENDEZVOUS_CORE_FAKE_AGENT_H

#include "rendezvous/core/timing.h"
#include "tests/rendezvous/core/view.h"
#include "tests/rendezvous/core/watch.h"

enum { FAKES_MAX = 16, FAKE_RANKS = 2 };

struct fake {
    char id[DPT_PROTO_NAME_BYTES];
    uint64_t conn, counter, epoch;
    Dpt__Stamp stamp;
    Dpt__RunSpec spec;
    Dpt__RankState ranks[FAKE_RANKS];
    Dpt__RankState *rank_list[FAKE_RANKS];
    Dpt__Shard shards[FAKE_RANKS][DPT_PROTO_SHARDS_MAX];
    Dpt__Shard *shard_list[FAKE_RANKS][DPT_PROTO_SHARDS_MAX];
    Dpt__AgentState state;
    bool cannot_save; /* its ranks write no checkpoint in a farewell */
    char plan_digest[DPT_PROTO_DIGEST_BYTES];
    /* told last; plan is kept when a message brought one */
    bool told;
    Dpt__ServerPhase phase;
    bool soft, has_spec, last_holder;
    unsigned unknown_fields; /* of the spec */
    uint32_t n_nodes;
    uint64_t generation, counter_seen;
    int64_t grant_step, last_call_ms, world_step;
    char text[DPT_PROTO_TEXT_BYTES], only_run[DPT_PROTO_NAME_BYTES];
    Dpt__Plan *plan; /* owned */
};

struct stage {
    struct dpt_rdzv *core;
    struct watch *watch; /* looks at every step */
    bool fresh;          /* so is the next server */
    int64_t now_ms, deadline_ms;
    struct fake *fakes[FAKES_MAX];
    size_t n_fakes, n_sends;
    uint64_t n_steps;              /* each event's random bytes */
    struct dpt_rdzv_run_view view; /* of run 0 after the last step; zeroed when there is none */
    unsigned records[DPT_RDZV_RECORD_COUNT];
};

/* A server that has been up for long, so that no last call waits for nodes of an earlier one. */
void stage_open(struct stage *stage);
void stage_close(struct stage *stage);
/* Another server takes over, of this epoch and just started; it knows of no run. */
void stage_restart(struct stage *stage, uint64_t epoch);
void stage_step(struct stage *stage, struct dpt_rdzv_event event);
void stage_tick(struct stage *stage, int64_t after_ms);
/* A TICK while messages that have arrived are unread. */
void stage_backlog(struct stage *stage, int64_t after_ms);
/* Ticks at each deadline; no fake sends. */
void stage_pass(struct stage *stage, int64_t ms);
/* Ticks at each deadline; every fake of the list sends after each tick. */
void stage_pass_speaking(struct stage *stage, struct fake *const *fakes, size_t n, int64_t ms);

/* min 1, max 4 nodes, 5 s, one rank in STANDBY. */
void fake_init(struct fake *fake, struct stage *stage, const char *id);
void fake_fini(struct fake *fake);
/* As after fake_init, but on no stage. A fake that is on a stage stays there. */
void fake_reset(struct fake *fake, const char *id);
/* Its next message is in `state`: counter, epoch and plan are filled in. */
void fake_prepare(struct fake *fake);
void fake_say(struct fake *fake, struct stage *stage);
/* The same, and the server must answer REFUSED with a text that contains `why`. */
void fake_refused(struct fake *fake, struct stage *stage, const char *why);
void fake_phase(struct fake *fake, Dpt__RankPhase phase, uint64_t generation);

/* Rank 0 holds one more shard of the state; fake_no_parts removes all shards. */
void fake_part(struct fake *fake, uint32_t index, uint32_t of, bool pending);
void fake_no_parts(struct fake *fake);

/* The data connection of its rank 0 to `peer` ends; its next message reports that. */
void fake_loses(struct fake *fake, const struct fake *peer);
/* Its node dies: its control connection breaks, and the data connections of its peer `seen_by`. */
void fake_dies(struct fake *fake, struct fake *seen_by, struct stage *stage);

/* Its ranks carry out its last answer: quiesce, build, run, save. */
void fake_obey(struct fake *fake);
/* Each sends and acts as a rank would (quiesces, builds, runs) until nothing changes. */
void fakes_settle(struct stage *stage, struct fake *const *fakes, size_t n);
/* They join, last call passes, and they settle: now the run is RUNNING. */
void fakes_start(struct stage *stage, struct fake *const *fakes, size_t n);
/* Its rank in its newest plan; -1: none. */
const Dpt__PlanRank *fake_place(const struct fake *fake);

#endif
