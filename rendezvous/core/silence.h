/* What silence means: leases, broken control connections, a server that hears nobody. */
#ifndef DPT_RENDEZVOUS_CORE_SILENCE_H
#define DPT_RENDEZVOUS_CORE_SILENCE_H

#include "rendezvous/core/state.h"

/* ---- events ---- */

/* A message of a node is about to be taken. If the server was deaf, all nodes get time to be heard
 * again. */
void dpt_rdzv_heard_node(struct dpt_rdzv *core, const struct run *run, struct node *node);
/* A process speaks that may not be a node: that does not show that the server hears the nodes. */
void dpt_rdzv_heard_outsider(struct dpt_rdzv *core);
/* A connection broke. A message that came over it, perhaps read only now, does not show that the
 * server hears the other nodes. */
void dpt_rdzv_connection_broke(struct dpt_rdzv *core, uint64_t conn);

/* ---- queries ---- */

/* No node of any run was heard for longer than the gap: the server's network is down, or its
 * reading thread starves. No node is lost then. */
bool dpt_rdzv_is_deaf(const struct dpt_rdzv *core, const struct run *run);
/* The node is lost after it. */
int64_t dpt_rdzv_lease_end_ms(const struct dpt_rdzv *core, const struct run *run,
                              const struct node *node);
/* The control connection of the node has been broken for longer than the grace. This is one sign of
 * its death; alone it costs only a node that is not in the newest plan. */
bool dpt_rdzv_is_suspect(const struct dpt_rdzv *core, const struct run *run,
                         const struct node *node);
/* The second sign: the generation failed, and a peer names the node as the one whose data
 * connection ended. A run that has ended needs no second sign. */
bool dpt_rdzv_is_named_by_peer(const struct run *run, const struct node *node);
/* All ranks of the node can be asked, or some can and the others have had a timeout to start. */
bool dpt_rdzv_node_is_ready(const struct dpt_rdzv *core, const struct run *run, struct node *node);
/* When the silence of a node is judged next; capped at `latest_ms`. */
int64_t dpt_rdzv_silence_due_ms(const struct dpt_rdzv *core, struct run *run, int64_t latest_ms);

#endif
