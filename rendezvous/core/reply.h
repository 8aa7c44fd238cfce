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

/* Answer to a process that is not, or no longer, a node of the run. */
struct answer {
    Dpt__ServerPhase phase;
    const struct run *run; /* its number of nodes is sent; NULL: none */
    bool with_spec; /* send the run's config; without a run, the name of the server's only run */
    int64_t world_step; /* EXPELLED: step of the world that trains on with its steps; 0: none */
    const char *text;   /* NULL: none */
};
void dpt_rdzv_answer_outsider(const struct inquiry *from, const struct answer *answer);

/* Tells the node that it may go; the caller removes it. Reads last_holder and n_nodes of
 * `departed`. */
void dpt_rdzv_answer_released(const struct run *run, const struct node *node,
                              const struct departed *departed);
/* The same to a removed node that has not heard it. */
void dpt_rdzv_answer_released_again(const struct inquiry *from, const struct departed *departed);

#endif
