/* The order in which the tasks of a step's list are posted, and the tasks that follow the scatters
 * of a range (schedule.h). Pure but for memory while it works. */
#ifndef DPT_WORKER_PLAN_TASK_ORDER_H
#define DPT_WORKER_PLAN_TASK_ORDER_H

#include "worker/plan/schedule.h"

/* Brings the tasks of a list, made for a member with a slot in each of `n_waves` waves, into the
 * order of what they wait for, puts CROSS and SHARE between them, for which there is room, and
 * takes out what the member of `spec` has not. False: out of memory. */
bool dpt_task_order(struct dpt_step_list *list, const struct dpt_step_spec *spec, int n_waves);

#endif
