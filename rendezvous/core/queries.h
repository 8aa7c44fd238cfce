/* Queries on several objects: silence, the training state that nodes hold together, the reasons to
 * wait. */
#ifndef DPT_RENDEZVOUS_CORE_QUERIES_H
#define DPT_RENDEZVOUS_CORE_QUERIES_H

#include "rendezvous/core/run_state.h"

/* ---- silence.c: leases, broken control connections, a server that hears no node ---- */

/* To be called before the message of a node is taken. */
void dpt_rdzv_heard_node(struct run *run, struct node *node);
/* To be called for a message of a process that may not be a node. The message does not prove that
 * the server hears the nodes. */
void dpt_rdzv_heard_outsider(struct dpt_rdzv *core);
void dpt_rdzv_connection_broke(struct dpt_rdzv *core, uint64_t conn);

/* The pause between two messages of an agent of the run, if nothing happens. */
int64_t dpt_rdzv_beat_ms(const struct run *run);

/* The clock on which the silence of nodes is measured. It stops when the server has heard no node
 * of any run for gap_ms, because then the server's network is down or its reading thread
 * starves. */
int64_t dpt_rdzv_listened_ms(const struct run *run);
/* Since a node of the run was heard; -1: it has none. */
int64_t dpt_rdzv_heard_ms_ago(const struct run *run);
/* True: the run has not ended, has nodes, and none of them has been heard for a lease. */
bool dpt_rdzv_is_unheard(const struct run *run);
/* To be called at a TICK. Logs once that no node of any run is heard for the lease of this one. */
void dpt_rdzv_tell_unheard(const struct run *run);
/* How much longer the node may be silent before it is lost; < 0: it is lost. */
int64_t dpt_rdzv_lease_left_ms(const struct node *node);
/* True: the control connection of the node has been broken for longer than grace_ms. This is the
 * first of two signs of the node's death. Alone it does not remove the node, but the server does
 * not wait for a suspect node unless the node may hold the newest state. */
bool dpt_rdzv_is_suspect(const struct node *node);
/* True: the second sign of the node's death is there. The generation has failed, and a peer accuses
 * the node. A run that has ended needs no second sign. */
bool dpt_rdzv_is_loss_confirmed(const struct node *node);
/* True: a generation has failed, only nodes have still to report whose connections broke together
 * with it or later and that have been suspect for a grace, and the others are enough and hold the
 * newest step. Of nodes that die together peers may name only some. Looks at all ranks at most once
 * in a grace. */
bool dpt_rdzv_does_without_suspects(struct run *run);
/* True: the node is not suspect, and all its ranks are alive; or some are alive, and the others
 * have had timeout_ms to start. */
bool dpt_rdzv_node_is_ready(const struct node *node);
/* The number of ready nodes that do not leave. */
uint32_t dpt_rdzv_count_ready(const struct run *run);
/* True: a node that is not suspect is not ready. */
bool dpt_rdzv_is_any_unready(const struct run *run);
/* The time at which the silence of a node must be judged next; at most `latest_ms`. */
int64_t dpt_rdzv_silence_due_ms(const struct run *run, int64_t latest_ms);

/* ---- held.c: the newest whole step, the holders of its parts, redundancy ---- */

/* Groups of nodes. A set of groups is a bit set. */
enum group {
    GROUP_STAYING = 1,
    GROUP_EXCLUDED = 2, /* excluded for a time, because peers could not reach the node */
    GROUP_LEAVING = 4,
    GROUP_ALL = 7
};
enum group dpt_rdzv_group_of(const struct node *node);
/* The next rank of these groups that has quiesced; NULL: there is none left. */
struct rank *dpt_rdzv_next_reported(const struct run *run, unsigned groups, struct rank_cursor *at);

/* The groups from which the plan is made. Excluded nodes take part if the run needs them for its
 * minimum of nodes. If the nodes that take part do not hold the newest state, and no checkpoint has
 * it, leaving nodes take part; if these do not complete it, excluded nodes instead; else both. 0:
 * too few nodes. */
unsigned dpt_rdzv_admitted_groups(const struct run *run);

/* The newest step whose whole state the nodes of `groups` hold; -1: none. */
int64_t dpt_rdzv_step_held(const struct run *run, unsigned groups);
/* The step of the newest whole state of all nodes, if it is newer than every checkpoint that they
 * see; else -1. Walks over all ranks once after each change of what they report. */
int64_t dpt_rdzv_step_unsaved(struct run *run);

/* The state from which a generation resumes. */
struct resume {
    int64_t step;                  /* completed steps; -1: no state */
    int64_t load_checkpoint;       /* >= 0: the checkpoint of `step` is loaded; -1: from memory */
    const struct rank *outcome_of; /* a rank that has the outcome of `step`; NULL: none */
    uint64_t state_generation;
    int64_t lost_step;        /* a step newer than `step` whose state is not whole; -1: none */
    struct dpt_shard missing; /* the lowest shard of lost_step that no rank holds */
};
struct resume dpt_rdzv_choose_state(const struct run *run, unsigned groups);
/* True: the rank holds its part of the state, or the gradient of the last step, or loads the
 * checkpoint. */
bool dpt_rdzv_has_state(const struct run *run, const struct resume *resume,
                        const struct rank *rank);
/* Fills `ret` with the shards of the state that the rank has in memory. Returns their number. */
int dpt_rdzv_parts_of(const struct resume *resume, const struct rank *rank,
                      struct dpt_shard ret[DPT_PROTO_SHARDS_MAX]);
/* "shard 2 of 4 is lost with node c: going back to …"; "" when no step is lost. */
void dpt_rdzv_print_loss(const struct run *run, const struct resume *resume,
                         char ret[DPT_PROTO_TEXT_BYTES]);

/* Sets progress.redundant and .rebuilding from the reports of the ranks of the plan. */
void dpt_rdzv_update_redundancy(struct run *run);

/* ---- wait.c: the minimum of nodes, the last call, nodes that may come back ---- */

/* The newest step that no checkpoint has, as far as the server knows; 0: none. */
int64_t dpt_rdzv_step_without_checkpoint(const struct run *run);
/* True: an operator's PAUSE or STOP is in force, so no generation is formed that trains. */
bool dpt_rdzv_is_held(const struct run *run);
/* An operator wants a checkpoint of this step or a later one; 0: no request is open. */
int64_t dpt_rdzv_save_wanted(const struct run *run);
/* The number of the DUMP that an operator wants now; 0: none. */
uint64_t dpt_rdzv_dump_wanted(const struct run *run);
/* True: the run has waited for min nodes as long as its config allows. */
bool dpt_rdzv_wait_is_over(const struct run *run);

/* True: the server is in its first lease. It may not have heard all nodes that an earlier server
 * knew. */
bool dpt_rdzv_is_young(const struct run *run);
/* SETTLING: the time at which the first generation is formed even if the run is not full. */
int64_t dpt_rdzv_last_call_until_ms(const struct run *run);
/* The reason why the last call is longer than usual; "": it is not longer. */
const char *dpt_rdzv_last_call_reason(const struct run *run);

/* A node that trains in a generation of an earlier server; NULL: none. A suspect node does not
 * count, because the server cannot tell it to stop. */
const struct node *dpt_rdzv_foreign_node(const struct run *run);

/* True: a node that was removed for silence has returned, and other such nodes, which may hold the
 * newest state, have not. For a lease the server makes no plan without these nodes. */
bool dpt_rdzv_awaits_return(const struct run *run);
/* True: a node that was removed for silence has returned or may still return. Its shards and the
 * shards of a leaving node may become a whole state. */
bool dpt_rdzv_is_return_possible(const struct run *run);
/* To be called when a generation runs: nodes outside of it can no longer return with their
 * state. The RUNS record has the same effect on removed nodes. */
void dpt_rdzv_end_awaiting(struct run *run);

#endif
