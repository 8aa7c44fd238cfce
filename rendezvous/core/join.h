/* Handles the messages of agents: requests to join, and the reports of nodes. */
#ifndef DPT_RENDEZVOUS_CORE_JOIN_H
#define DPT_RENDEZVOUS_CORE_JOIN_H

#include "rendezvous/core/reply.h"
#include "rendezvous/core/run_state.h"

/* ---- join_claim.c ---- */

/* True: the process knows the secret of this node. */
bool dpt_rdzv_is_own(const struct node *node, const Dpt__AgentState *message);
/* The newest removed incarnation because of which this process may not join; NULL: none. */
struct departed *dpt_rdzv_find_departed(struct run *run, const Dpt__AgentState *message);
/* The newest generation that a process of the message's node carried out; 0: none. */
uint64_t dpt_rdzv_newest_ran(const Dpt__AgentState *message);
/* True: the node was removed for silence alone, and no generation has run without the node since.
 * `run` is NULL if the server has forgotten the run. */
bool dpt_rdzv_may_return(const struct inquiry *from, const struct run *run,
                         const struct departed *departed);

struct refusal {
    char text[DPT_PROTO_TEXT_BYTES];
    bool show_spec; /* the answer has the run's config, and the process names the difference */
};
/* True: the process lacks a property that the run demands of each node; *ret says which. The
 * message must have a spec. */
bool dpt_rdzv_differs(const struct run *run, const Dpt__AgentState *message, struct refusal *ret);
enum claim {
    CLAIM_GRANTED,
    CLAIM_WAITS, /* the node that has the id has a broken connection: the id may be free soon */
    CLAIM_REFUSED
};
/* Whether the process may join. `former`: the node that has its id; NULL: none. */
enum claim dpt_rdzv_judge_claim(const struct run *run, const struct node *former,
                                const Dpt__AgentState *message, struct refusal *ret);

/* ---- unhealthy.c ---- */

/* If the message has a fault of its sender's machine: refuses the process, records that, and
 * returns true. The message must have a spec. */
bool dpt_rdzv_answer_unhealthy(const struct inquiry *from);

/* ---- owner.c ---- */

/* The key of the node that speaks over the connection has no right any more. The node keeps its
 * lease, because its machine may be let in again, but its loss then says why. */
void dpt_rdzv_note_denied(struct dpt_rdzv *core, uint64_t conn);
/* Refuses a process whose node id belongs to another key. `node`: the node with this id; NULL:
 * none. False: the id is free, or the process's own; there is no answer. */
bool dpt_rdzv_answer_other_key(const struct inquiry *from, const struct run *run,
                               const struct node *node);
/* Refuses a process whose key is for another run. False: it is for this one, or for every run. */
bool dpt_rdzv_answer_other_run(const struct inquiry *from);
/* Answers a process that may not define a run, and whose run does not exist. False: it may. */
bool dpt_rdzv_answer_no_definer(const struct inquiry *from);
/* Whether the machine may give this command of an operator, which names its run if the machine may
 * take part in one only. False: *ret_why says which machine may. */
bool dpt_rdzv_may_command(const struct inquiry *from, const Dpt__Control *control,
                          char ret_why[DPT_PROTO_TEXT_BYTES]);
void dpt_rdzv_log_definer(const struct run *run);

/* ---- join.c ---- */

/* Admits the process as a node, which replaces `former` (NULL: none), and creates the run if
 * *run_at is NULL. Returns NULL if the process is not admitted: it has been answered, and `former`
 * is unchanged. */
struct node *dpt_rdzv_admit(const struct inquiry *from, struct run **run_at, struct node *former);
/* PREPARING: the next plan waits for the reports of this node, which came after PREPARE. */
void dpt_rdzv_ask_node(const struct run *run, struct node *node);
/* To be called when a node that was removed for silence has been admitted with its state. */
void dpt_rdzv_node_returned(struct run *run, struct node *node);

/* ---- report.c ---- */

/* Takes the message of a node of the run. Returns NULL if the message made the server remove the
 * node. */
struct node *dpt_rdzv_take_report(struct run *run, struct node *node, const struct inquiry *from);
/* The step of the world that goes on without this member and keeps the steps that the member made;
 * 0: the world does not keep them. */
int64_t dpt_rdzv_step_kept_by_others(const struct run *run, const struct node *node);

#endif
