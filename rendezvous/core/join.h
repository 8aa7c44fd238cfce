/* Messages of agents: processes that ask to join, and the reports of nodes. */
#ifndef DPT_RENDEZVOUS_CORE_JOIN_H
#define DPT_RENDEZVOUS_CORE_JOIN_H

#include "rendezvous/core/reply.h"
#include "rendezvous/core/state.h"

/* ---- claim.c ---- */

/* The process knows the secret of this node. */
bool dpt_rdzv_is_own(const struct node *node, const Dpt__AgentState *message);
/* The removed incarnation that forbids this process to join; of several the newest; NULL: none. */
struct departed *dpt_rdzv_find_departed(struct run *run, const Dpt__AgentState *message);
/* Newest generation that a process of the message's node carried out; 0: none. */
uint64_t dpt_rdzv_newest_ran(const Dpt__AgentState *message);
/* The node was removed for silence alone, and no generation has run without it since. `run` is NULL
 * if it was forgotten. */
bool dpt_rdzv_may_return(const struct inquiry *from, const struct run *run,
                         const struct departed *departed);

struct refusal {
    char text[DPT_PROTO_TEXT_BYTES];
    bool show_spec; /* the answer contains the run's config: the process names the difference */
};
/* The process lacks a property that the run demands of each node. The message has a spec. */
bool dpt_rdzv_differs(const struct run *run, const Dpt__AgentState *message, struct refusal *ret);
enum claim {
    CLAIM_GRANTED,
    CLAIM_WAITS, /* the connection of the node that has the id is broken: it may be free soon */
    CLAIM_REFUSED
};
/* Whether the process may join. `former`: the node that has its id; NULL: none. */
enum claim dpt_rdzv_judge_claim(const struct run *run, const struct node *former,
                                const Dpt__AgentState *message, struct refusal *ret);

/* ---- admit.c ---- */

/* Admits the process as a node, which replaces `former` (NULL: none), and creates the run if
 * *run_at is NULL. Returns NULL after an answer if the process is not admitted; then `former` is
 * unchanged. */
struct node *dpt_rdzv_admit(const struct inquiry *from, struct run **run_at, struct node *former);
/* The node was removed for silence and has been taken in with its state. */
void dpt_rdzv_node_returned(struct run *run, struct node *node);

/* ---- report.c ---- */

/* Takes the message of a node that is a member of the run. The node may be removed by it: NULL is
 * returned then. */
struct node *dpt_rdzv_take_report(struct run *run, struct node *node, const struct inquiry *from);

#endif
