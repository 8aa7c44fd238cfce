/* Transitions that are due in a run, phase by phase. */
#ifndef DPT_RENDEZVOUS_CORE_ADVANCE_H
#define DPT_RENDEZVOUS_CORE_ADVANCE_H

#include "rendezvous/core/state.h"

/* ---- leave.c: the state of a node that leaves is saved first ---- */

/* Nodes leave, or the run ends for want of nodes, and all nodes together hold a state that no
 * checkpoint has: if too few nodes stay to train, they save it in a farewell. */
bool dpt_rdzv_farewell_is_due(struct dpt_rdzv *core, const struct run *run);
/* PREPARING soft: a node that leaves cannot wait for the end of the step. The step is given up and
 * runs again without the node. */
void dpt_rdzv_stop_step_for_leaving(struct dpt_rdzv *core, struct run *run);
/* Releases nodes that leave once their state is safe elsewhere, or most of their time is over. */
void dpt_rdzv_release_leaving(struct dpt_rdzv *core, struct run *run);

/* ---- advance.c ---- */

/* Carries out every transition that is due. Call after any change. */
void dpt_rdzv_advance(struct dpt_rdzv *core, struct run *run);
/* When something becomes due in the run without an event. */
int64_t dpt_rdzv_due_ms(const struct dpt_rdzv *core, struct run *run);

#endif
