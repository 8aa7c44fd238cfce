/* A scripted server in the agent's process. It implements the functions of rendezvous/client, so
 * that a test links script_server.c instead of that folder. */
#ifndef DPT_TESTS_WORKER_AGENT_SCRIPT_SERVER_H
#define DPT_TESTS_WORKER_AGENT_SCRIPT_SERVER_H

#include "worker/agent/loop.h"

enum { QUEUE_MAX = 8, GENERATION = 1 };

struct world;
/* Answers a message of the agent, by script_reply or script_push. */
typedef void (*script_fn)(struct world *world, const Dpt__AgentState *said,
                          Dpt__ServerState *reply);

struct world {
    script_fn script;
    int event_fd;
    bool up_told, refuse_first; /* refuse_first: the queue is full at the first send */
    bool silent;
    const char *denials[2]; /* the causes of a denial, one after the other; NULL: none */
    int denied;             /* how often the denial was asked for */
    struct {
        uint8_t bytes[4096];
        size_t n;
    } queue[QUEUE_MAX];
    size_t queued;
    uint8_t current[4096];
    uint64_t counter;
    /* From the agent's messages. */
    uint64_t incarnation;
    uint32_t spawn, deaths;
    bool leaving;
    char first_error[DPT_PROTO_TEXT_BYTES];
    int turns; /* a counter for the script */
    /* The node. */
    char dir[64];
    struct dpt_node node;
    int configured;
    int timeout_ms;
    bool needs_run;
};

/* Puts a message, valid or not, into the agent's queue. */
void script_push(struct world *world, const void *bytes, size_t n);

/* The rank in the agent's message; NULL: it has none. */
Dpt__RankState *script_rank(const Dpt__AgentState *said);

/* Sends the reply with this phase; script_reply_plan adds a plan of one rank. */
void script_reply(struct world *world, Dpt__ServerState *reply, Dpt__ServerPhase phase,
                  uint64_t generation, const char *text);
void script_reply_plan(struct world *world, const Dpt__AgentState *said, Dpt__ServerState *reply,
                       Dpt__ServerPhase phase);

#endif
