/* A bench for one agent's state machine: a test sends the events, and the bench collects the
 * actions. */
#ifndef DPT_TESTS_SIM_AGENT_BENCH_H
#define DPT_TESTS_SIM_AGENT_BENCH_H

#include "tests/sim/agent_watch.h"
#include "worker/agent/core.h"

enum { RANKS = 2 };

#define SERVER(name)  DPT__SERVER_PHASE__SERVER_##name
#define RANK(name)    DPT__RANK_PHASE__RANK_##name
#define COMMAND(name) DPT__RANK_COMMAND__COMMAND_##name

struct bench {
    struct dpt_agent *agent;
    struct agent_watch *watch; /* checks every step */
    struct dpt_agent_output out;
    int64_t now_ms;
    uint64_t incarnation, server_counter, agent_counter;
    Dpt__Stamp stamp;
    Dpt__ServerState server;
    Dpt__RankState rank;
    float tokens_per_s;  /* that the ranks report */
    int64_t kept_step;   /* that a rank has kept beside its messages; reported with its end */
    bool no_checkpoints; /* the config names no folder for checkpoints */
    /* Collected over the steps since the last clear. */
    uint32_t spawns[RANKS], kills[RANKS];
    bool ended, asked_config, exit_has_spec, config_given;
    int exit_code;
    char exit_text[DPT_PROTO_TEXT_BYTES];
    Dpt__RankCommand command[RANKS];
    int64_t lease_ms[RANKS], confirmed_ms[RANKS];
    uint64_t generation[RANKS];
    bool said;                   /* the last step sent a message to the server */
    Dpt__RankPhase phase[RANKS]; /* as reported to the server */
    int64_t silent_ms[RANKS], step_high;
    char text[RANKS][DPT_PROTO_TEXT_BYTES];
    uint32_t crashes;
    bool leaving, fatal, has_spec;
    uint64_t said_epoch, said_generation;
    unsigned unsaved;                   /* warnings of steps that are not saved */
    unsigned lines;                     /* warnings and errors of the log ... */
    char warning[DPT_PROTO_TEXT_BYTES]; /* ... and the newest */
    char first_error[DPT_PROTO_TEXT_BYTES];
};

/* Setup and teardown of cmocka: *state is the bench, with node a in incarnation 5 at time 5 s. */
int bench_open(void **state);
int bench_close(void **state);

Dpt__RunSpec bench_spec(void);
void bench_configure(struct bench *b);

void bench_step(struct bench *b, struct dpt_agent_event event);
void bench_signal(struct bench *b);
/* Lets `ms` pass, with a step at each deadline, as the loop does. */
void bench_pass(struct bench *b, int64_t ms);
/* The connection to the server ends. */
void bench_server_goes(struct bench *b);
/* `ms` pass, and the ranks go on saying that they are in this phase. */
void bench_wait_in(struct bench *b, Dpt__RankPhase phase, uint64_t generation, int64_t ms);
void bench_server(struct bench *b, Dpt__ServerPhase phase, uint64_t generation);
void bench_rank(struct bench *b, uint32_t local, Dpt__RankPhase phase, uint64_t generation);
void bench_ranks(struct bench *b, Dpt__RankPhase phase, uint64_t generation);
/* The last message and text of the first process of a rank. */
void bench_last_words(struct bench *b, uint32_t local, char *text, Dpt__RankToAgent *message);
void bench_rank_exits(struct bench *b, uint32_t local, int code);
/* All ranks exit, as commanded, and so the agent ends. */
void bench_ranks_are_gone(struct bench *b);
/* The first rank has written step 3 as a rescue, and all ranks end. */
void bench_rescues(struct bench *b);

/* The agent has joined, and both ranks are in STANDBY. */
void bench_join(struct bench *b);
/* Sends a plan whose world is both ranks; bench_plan: of generation 1 and the first processes. */
void bench_plan_of(struct bench *b, uint64_t generation, uint32_t spawn);
void bench_plan(struct bench *b);
/* The agent has joined and trains in generation 1 at step 3. */
void bench_run(struct bench *b);
/* As bench_run, but no checkpoint has step 3, and then too few nodes are left. */
void bench_wait_with_steps(struct bench *b);

#endif
