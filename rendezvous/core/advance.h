/* Transitions: the plan of a generation, leaving, and the phases. */
#ifndef DPT_RENDEZVOUS_CORE_ADVANCE_H
#define DPT_RENDEZVOUS_CORE_ADVANCE_H

#include "rendezvous/core/state.h"

/* ---- plan.c (docs/membership.md, "The plan") ---- */

/* Makes the plan of run->generation from the reports of ranks that have quiesced, and puts it in
 * force: of the admitted nodes, or, if these are too few and `farewell` is set, a farewell of all
 * that hold state. False: no plan. */
bool dpt_rdzv_make_plan(struct run *run, bool farewell);

/* Puts the plan of formation.generation_high in force, which an earlier server made and `node`
 * knows. False: a rank of it is missing or does not train. */
bool dpt_rdzv_adopt_plan(struct run *run, const struct node *node);

/* ---- leave.c: the state of a node that leaves is saved first ---- */

/* Nodes leave, or the run ends for want of nodes, and all nodes together hold a state that no
 * checkpoint has: if too few nodes stay to train, they save it in a farewell. */
bool dpt_rdzv_farewell_is_due(const struct run *run);
/* PREPARING soft: a node that leaves cannot wait for the end of the step. The step is given up and
 * runs again without the node. */
void dpt_rdzv_stop_step_for_leaving(struct run *run);
/* Releases nodes that leave once their state is safe elsewhere, or most of their time is over. */
void dpt_rdzv_release_leaving(struct run *run);

/* ---- advance.c ---- */

/* Carries out every transition that is due. Call after any change. */
void dpt_rdzv_advance(struct run *run);
/* When something becomes due in the run without an event. */
int64_t dpt_rdzv_due_ms(struct run *run);

#endif
