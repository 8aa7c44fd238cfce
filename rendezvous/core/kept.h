/* Members in the durable state: nodes that were admitted and not removed, with or without a struct
 * node; and removed incarnations. */
#ifndef DPT_RENDEZVOUS_CORE_KEPT_H
#define DPT_RENDEZVOUS_CORE_KEPT_H

#include "rendezvous/core/run_state.h"

/* An incarnation that was removed from the run: lost, expelled or released. */
struct departed {
    uint64_t id_hash;
    uint64_t incarnation; /* this one and earlier ones stay out if they know the secret */
    uint8_t secret[DPT_PROTO_SECRET_BYTES], key[DPT_RDZV_KEY_BYTES];
    bool released;
    bool last_holder; /* released: no node that stays holds its steps */
    uint32_t n_nodes; /* released: nodes of a final save that could not save; 0: there was none */
    bool cut_off;     /* removed for silence alone: it may return with its state */
    bool awaited;     /* it may hold the newest state, and no generation has run since */
    uint64_t counter_seen;
};

/* The node with this id; NULL: none. */
const struct kept_node *dpt_rdzv_find_kept(const struct run *run, const char *id);
/* The node that is this process: it has its id, incarnation and secret; NULL: none. */
const struct kept_node *dpt_rdzv_kept_as(const struct run *run, const Dpt__AgentState *message);
/* True: the node had a place in the newest plan that ran, or in a later one. */
bool dpt_rdzv_kept_may_hold_newest(const struct run *run, const struct kept_node *node);
/* The newest removed incarnation of a node, this one or a later one, that knows the secret; NULL:
 * none. */
struct departed *dpt_rdzv_departed_as(struct run *run, uint64_t id_hash, uint64_t incarnation,
                                      const uint8_t secret[DPT_PROTO_SECRET_BYTES]);
/* The incarnation that was removed last; NULL: none was. */
const struct departed *dpt_rdzv_departed_newest(const struct membership *membership);

/* ---- for apply.c, which alone changes durable state, and for the end of a run ---- */

/* Adds a node behind the others; NULL: no memory. */
struct kept_node *dpt_rdzv_kept_add(struct kept *kept, const char *id);
/* Takes the node out of the list and frees it. */
void dpt_rdzv_kept_drop(struct kept *kept, struct kept_node *node);
void dpt_rdzv_kept_fini(struct kept *kept);
/* Copies a removed incarnation into the ring. False: no memory. */
bool dpt_rdzv_departed_add(struct membership *membership, const struct departed *each);
void dpt_rdzv_departed_drop(struct membership *membership, struct departed *each);
/* No removed incarnation may return with the newest state any more. */
void dpt_rdzv_departed_await_none(struct membership *membership);

#endif
