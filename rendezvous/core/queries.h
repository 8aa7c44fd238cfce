/* Queries on several objects: silence, the training state that nodes hold together, the reasons to
 * wait. */
#ifndef DPT_RENDEZVOUS_CORE_QUERIES_H
#define DPT_RENDEZVOUS_CORE_QUERIES_H

#include "rendezvous/core/state.h"

/* ---- silence.c: leases, broken control connections, a server that hears no node ---- */

/* A message of a node is about to be taken. */
void dpt_rdzv_heard_node(struct run *run, struct node *node);
/* A message of a process that may be no node: it does not prove that the server hears the nodes. */
void dpt_rdzv_heard_outsider(struct dpt_rdzv *core);
void dpt_rdzv_connection_broke(struct dpt_rdzv *core, uint64_t conn);

/* The time in which the silence of nodes counts. It stops while the server hears no node of any run
 * for longer than the gap, because then its network is down or its reading thread starves. */
int64_t dpt_rdzv_listened_ms(const struct run *run);
/* How much longer the node may be silent before it is lost; < 0: it is lost. */
int64_t dpt_rdzv_lease_left_ms(const struct node *node);
/* The control connection of the node has been broken for longer than the grace. This is one sign of
 * its death; alone it costs only a node that is not in the newest plan. */
bool dpt_rdzv_is_suspect(const struct node *node);
/* The place in the newest plan, on another node, with which the rank reports a broken data
 * connection; NULL: none. */
const struct place *dpt_rdzv_accused_by(const struct rank *rank);
/* The second sign: the generation has failed, and a peer names the node. A run that has ended needs
 * no second sign. */
bool dpt_rdzv_is_loss_confirmed(const struct node *node);
/* All ranks of the node can be asked, or some can and the others have had a timeout to start. */
bool dpt_rdzv_node_is_ready(const struct node *node);
/* When the silence of a node is judged next; at most `latest_ms`. */
int64_t dpt_rdzv_silence_due_ms(struct run *run, int64_t latest_ms);

/* ---- held.c: the newest whole step, the holders of its parts, redundancy ---- */

/* Nodes by whether they stay; sets of groups are bit sets. */
enum group {
    GROUP_STAYING = 1,
    GROUP_EXCLUDED = 2, /* for a time, after failures with a peer */
    GROUP_LEAVING = 4,
    GROUP_ALL = 7
};
enum group dpt_rdzv_group_of(const struct node *node);
/* The next rank of these groups that has quiesced; NULL: there is none left. */
struct rank *dpt_rdzv_next_reported(const struct run *run, unsigned groups, struct rank_cursor *at);

/* Groups from which the plan is made. Excluded nodes take part where the minimum or a newer state
 * needs them, leaving nodes where they hold state that no other node and no checkpoint has. 0: too
 * few nodes. */
unsigned dpt_rdzv_admitted_groups(const struct run *run);

/* Newest step of which the nodes of `groups`, without node `without` (NULL: none left out), hold
 * the whole state; -1: none. */
int64_t dpt_rdzv_step_held(const struct run *run, unsigned groups, const struct node *without);
/* The newest whole state of all nodes when no checkpoint that they see is as new; -1: one is. */
int64_t dpt_rdzv_step_unsaved(const struct run *run);

/* The state from which a generation resumes. */
struct resume {
    int64_t step;                  /* completed steps; -1: no state */
    int64_t load_checkpoint;       /* >= 0: the checkpoint of `step` is loaded; -1: from memory */
    const struct rank *outcome_of; /* has the outcome of `step`; NULL: none */
    uint64_t state_generation;
    int64_t lost_step;        /* newer than `step`, and not whole; -1: none */
    struct dpt_shard missing; /* of lost_step, the lowest that no rank holds */
};
struct resume dpt_rdzv_choose_state(const struct run *run, unsigned groups);
/* The rank holds its part of the state, or the gradient of the last step, or loads the checkpoint.
 */
bool dpt_rdzv_has_state(const struct run *run, const struct resume *resume,
                        const struct rank *rank);
/* Shards of the state that the rank has in memory; returns their number. */
int dpt_rdzv_parts_of(const struct resume *resume, const struct rank *rank,
                      struct dpt_shard ret[DPT_PROTO_SHARDS_MAX]);
/* "shard 2 of 4 is lost with node c: going back to …"; "" when no step is lost. */
void dpt_rdzv_print_loss(const struct run *run, const struct resume *resume,
                         char ret[DPT_PROTO_TEXT_BYTES]);

/* Sets progress.redundant and .rebuilding from the reports of the ranks of the plan. */
void dpt_rdzv_update_redundancy(struct run *run);

/* ---- wait.c: the minimum of nodes, the last call, nodes that may come back ---- */

/* The run has waited for min nodes as long as its config allows. */
bool dpt_rdzv_wait_is_over(const struct run *run);

/* In its first lease a server may not have heard nodes that an earlier server knew. */
bool dpt_rdzv_is_young(const struct run *run);
/* SETTLING: when the first generation is formed although the run is not full. */
int64_t dpt_rdzv_last_call_until_ms(const struct run *run);
/* Why the last call is longer than usual; "": it is not. */
const char *dpt_rdzv_last_call_reason(const struct run *run);

/* A node that trains in a generation of an earlier server; NULL: none. A suspect node is left out,
 * as it cannot be told to stop. */
const struct node *dpt_rdzv_foreign_node(const struct run *run);

/* A node that was removed for silence has returned, and others that may hold the newest state have
 * not: for a lease no plan is made without them. */
bool dpt_rdzv_awaits_return(const struct run *run);
/* A node that was removed for silence may still return, or has returned: the shards of a node that
 * leaves may become a whole state with its shards. */
bool dpt_rdzv_is_return_possible(const struct run *run);
/* A generation runs: nodes that are not in it cannot return with their state. */
void dpt_rdzv_end_awaiting(struct run *run);

#endif
