/* What a run waits for before it forms a generation: its minimum of nodes, the last call, nodes of
 * an earlier server, nodes that may return. */
#ifndef DPT_RENDEZVOUS_CORE_WAIT_H
#define DPT_RENDEZVOUS_CORE_WAIT_H

#include "rendezvous/core/state.h"

/* The run has waited for min nodes as long as its config allows. */
bool dpt_rdzv_wait_is_over(const struct dpt_rdzv *core, const struct run *run);

/* In its first lease a server may not have heard nodes that an earlier server knew. */
bool dpt_rdzv_is_young(const struct dpt_rdzv *core, const struct run *run);
/* SETTLING: when the first generation is formed although the run is not full. */
int64_t dpt_rdzv_last_call_until_ms(const struct dpt_rdzv *core, const struct run *run);
/* Why the last call is longer than usual; "": it is not. */
const char *dpt_rdzv_last_call_reason(const struct dpt_rdzv *core, const struct run *run);

/* A node that trains in a generation of an earlier server; NULL: none. A suspect node is left out,
 * as it cannot be told to stop. */
const struct node *dpt_rdzv_foreign_node(const struct dpt_rdzv *core, const struct run *run);

/* A node that was removed for silence has returned, and others that may hold the newest state have
 * not: for a lease no plan is made without them. */
bool dpt_rdzv_awaits_return(const struct dpt_rdzv *core, const struct run *run);
/* A node that was removed for silence may still return, or has returned: the shards of a node that
 * leaves may become a whole state with its shards. */
bool dpt_rdzv_is_return_possible(const struct run *run);
/* A generation runs: nodes that are not in it cannot return with their state. */
void dpt_rdzv_await_nobody(struct run *run);

#endif
