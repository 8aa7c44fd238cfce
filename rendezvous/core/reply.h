/* Messages to agents. Each contains the whole state of the run as far as it concerns the agent. */
#ifndef DPT_RENDEZVOUS_CORE_REPLY_H
#define DPT_RENDEZVOUS_CORE_REPLY_H

#include "rendezvous/core/state.h"

/* Answers the node that spoke in this step, or all nodes if the run has changed. */
void dpt_rdzv_answer_nodes(struct run *run);

/* A message and the connection it came over. */
struct inquiry {
    struct dpt_rdzv *core;
    uint64_t conn;
    const Dpt__AgentState *message;
};

/* What a process is told that is no node of the run (any more). */
struct answer {
    Dpt__ServerPhase phase;
    const struct run *run; /* whose size, and spec, is told; NULL: none */
    bool with_spec;        /* with the run's config; without a run, the name of the only one here */
    int64_t
        world_step;   /* EXPELLED: step of the world that goes on with all that it held; 0: none */
    const char *text; /* NULL: none */
};
void dpt_rdzv_answer_outsider(const struct inquiry *from, const struct answer *answer);

/* The node may go; it is removed afterwards. Of `departed` only what it is told is filled in. */
void dpt_rdzv_answer_released(const struct run *run, const struct node *node,
                              const struct departed *departed);
/* The same for a node that did not hear it and was removed. */
void dpt_rdzv_answer_released_again(const struct inquiry *from, const struct departed *departed);

#endif
