/* Progress, and what ends it: lost ranks and nodes, stalls, nodes that cannot reach one another,
 * the restart budget. */
#ifndef DPT_RENDEZVOUS_CORE_LOSS_H
#define DPT_RENDEZVOUS_CORE_LOSS_H

#include "rendezvous/core/state.h"

/* ---- budget.c ---- */

/* A rank has reported its step. */
void dpt_rdzv_note_step(struct dpt_rdzv *core, struct run *run, const struct rank *rank);
/* Restarts are used; the run fails when there were too few. `what` is the error. */
void dpt_rdzv_count_crashes(struct dpt_rdzv *core, struct run *run, uint32_t crashes,
                            const char *what);
/* Members of the newest plan are lost, or it failed by itself: one restart for each plan, however
 * many members are lost. */
void dpt_rdzv_count_incident(struct dpt_rdzv *core, struct run *run, const char *what);

/* ---- loss.c ---- */

/* A member is lost or a data plane broke: the generation in force ends, or the one that is prepared
 * becomes hard. */
void dpt_rdzv_member_lost(struct dpt_rdzv *core, struct run *run, const struct cause *cause);
/* Removes the node. */
void dpt_rdzv_node_lost(struct dpt_rdzv *core, struct run *run, struct node *node, const char *why);
/* How long it took to notice the loss of a process last heard at `word_ms`: until now, or until the
 * generation ended because its peers had noticed. */
int64_t dpt_rdzv_detect_ms(const struct dpt_rdzv *core, const struct run *run, int64_t word_ms);
/* Judges stalls, leases, broken connections and quiesce deadlines; at a TICK without a backlog. */
void dpt_rdzv_judge_silence(struct dpt_rdzv *core, struct run *run);

/* ---- pairs.c ---- */

/* Excludes a node, for a time, that failed two formations in a row with the same peer. Before a
 * plan is made. */
void dpt_rdzv_judge_pairs(struct dpt_rdzv *core, struct run *run);

#endif
