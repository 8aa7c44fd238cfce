/* Durable state (struct kept of run_state.h lists it) and the one function that changes it, so that
 * the records of a server give its durable state again (tests/sim/journal.c checks that after every
 * step); and runs and nodes that come and go. */
#ifndef DPT_RENDEZVOUS_CORE_APPLY_H
#define DPT_RENDEZVOUS_CORE_APPLY_H

#include "rendezvous/core/run_state.h"

/* ---- apply.c ---- */

/* Changes the durable state as the record says. Reads nothing but the record and the durable state.
 * DPT_ECORRUPT: the record contradicts the state, and nothing has changed. DPT_ENOMEM. */
DPT_MUST_USE enum dpt_status
dpt_rdzv_apply(struct dpt_rdzv *core, const struct dpt_rdzv_record *record, struct dpt_err *err);

/* Decides: puts the record into the output of the step and applies it. The caller leaves at_ms
 * out; dpt_rdzv_record sets `run`, too. */
void dpt_rdzv_decide(struct dpt_rdzv *core, struct dpt_rdzv_record record);
void dpt_rdzv_record(const struct run *run, struct dpt_rdzv_record record);

/* ---- members.c ---- */

/* NULL: no memory. `key` (DPT_RDZV_KEY_BYTES): of the sender. */
struct run *dpt_rdzv_run_create(struct dpt_rdzv *core, const Dpt__AgentState *message,
                                const uint8_t *key);
/* True: every node of the run was released or lost with what it had, and the last one released, so
 * none comes back. */
bool dpt_rdzv_was_left(const struct run *run);
/* The highest generation that the run has used, or that one of its nodes has told. */
uint64_t dpt_rdzv_highest_number(const struct run *run);
/* Remembers the end and the generations of the run for later processes and runs of its name, and
 * destroys it. */
void dpt_rdzv_forget_run(struct dpt_rdzv *core, size_t i);
/* Creates a node without ranks. dpt_rdzv_take_report takes the ranks from the message afterwards.
 * NULL: no memory. */
struct node *dpt_rdzv_node_create(struct run *run, const Dpt__AgentState *message,
                                  const uint8_t *key);

/* The reason of a removal. */
struct removal {
    const char *why;
    bool released, last_holder; /* it left; no node that stays holds its steps */
    uint32_t n_nodes;           /* released: nodes of a final save that could not save; 0: none */
};
/* Takes the node out of the run and frees it. */
void dpt_rdzv_remove_node(struct run *run, struct node *node, const struct removal *removal);
/* Removes a member that did not come back after a restart of the server. */
void dpt_rdzv_remove_kept(struct run *run, const struct kept_node *node, bool cut_off,
                          const char *why);
/* Remembers the shards of a lost rank. */
void dpt_rdzv_note_loss(const struct rank *rank);

#endif
