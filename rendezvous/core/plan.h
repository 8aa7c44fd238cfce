/* The plan of a generation: its ranks and where each one is (docs/membership.md, "The plan"). */
#ifndef DPT_RENDEZVOUS_CORE_PLAN_H
#define DPT_RENDEZVOUS_CORE_PLAN_H

#include "rendezvous/core/state.h"

/* Makes the plan of run->generation from the reports of ranks that have quiesced, and puts it in
 * force: of the admitted nodes, or, if these are too few and `farewell` is set, a farewell of all
 * that hold state. False: no plan. */
bool dpt_rdzv_make_plan(struct dpt_rdzv *core, struct run *run, bool farewell);

/* Puts the plan of formation.generation_high in force, which an earlier server made and `node`
 * knows. False: a rank of it is not here or does not train. */
bool dpt_rdzv_adopt_plan(struct dpt_rdzv *core, struct run *run, const struct node *node);

#endif
