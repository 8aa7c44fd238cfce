/* Transitions: the plan of a generation, leaving, and the phases. */
#ifndef DPT_RENDEZVOUS_CORE_ADVANCE_H
#define DPT_RENDEZVOUS_CORE_ADVANCE_H

#include "rendezvous/core/run_state.h"

/* ---- leave.c: a node that leaves stays until its state is safe elsewhere ---- */

/* True: nodes leave, or the run ends because it has too few nodes, and all nodes together hold a
 * state that no checkpoint has. If too few nodes then stay to train, the nodes save that state in a
 * final save. */
bool dpt_rdzv_final_save_is_due(struct run *run);
/* True: an operator holds the run, and nodes leave with a part of the newest state that neither the
 * others nor a checkpoint have and that cannot be saved. Enough nodes stay to take it over: those
 * that leave are handover ranks of a generation, which gets no GO. */
bool dpt_rdzv_handover_is_due(struct run *run);
/* True: an operator holds the run, and a leaving node has so little of the drain time left that it
 * is released now, with its part if no other node has it, so that it can still write a rescue. */
bool dpt_rdzv_is_release_due(const struct run *run);
/* PREPARING soft, when a leaving node cannot wait for the end of the step: gives the step up. The
 * step runs again without the node. */
void dpt_rdzv_stop_step_for_leaving(struct run *run);
/* Releases leaving nodes whose state is safe elsewhere, or whose time to leave is mostly over. */
void dpt_rdzv_release_leaving(struct run *run);

/* ---- places.c ---- */

/* Numbers hosts, nodes and positions, and appoints the writers. False: no memory. */
bool dpt_rdzv_arrange_places(struct dpt_rdzv *core, struct plan *plan);

/* ---- plan.c (docs/membership.md, "The plan") ---- */

/* Makes the plan of run->generation from the reports of ranks that have quiesced, and puts the plan
 * in force. The plan is made of the admitted nodes. If these are too few and a final save is due,
 * it is a final save of all nodes that hold state. While an operator holds the run, only a final
 * save or a handover is planned. False: no plan was made. */
bool dpt_rdzv_make_plan(struct run *run);

/* ---- put_plan.c ---- */

/* Puts the plan in force. Takes ownership of its places and its outcome. */
void dpt_rdzv_put_in_force(struct run *run, const struct plan *plan);
/* Records the plan in force: PLAN or ADOPTED. */
void dpt_rdzv_record_plan(struct run *run, enum dpt_rdzv_record_kind kind);
/* Puts in force the plan of formation.generation_high, which an earlier server made and which
 * `node` knows. False: a rank of the plan is missing or does not train. */
bool dpt_rdzv_adopt_plan(struct run *run, const struct node *node);

/* ---- advance.c ---- */

/* Carries out every transition that is due. To be called after any change. */
void dpt_rdzv_advance(struct run *run);
/* The time at which the next transition of the run becomes due without an event. */
int64_t dpt_rdzv_due_ms(struct run *run);

#endif
