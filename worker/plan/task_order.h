/* The order in which the tasks of a step's list are posted, and the tasks that follow the scatters
 * of a range (schedule.h). Pure but for memory while it works. */
#ifndef DPT_WORKER_PLAN_TASK_ORDER_H
#define DPT_WORKER_PLAN_TASK_ORDER_H

#include "worker/plan/schedule.h"

/* Sorts the tasks of a list, made for a member with a slot in each of `n_waves` waves, by the
 * number of actions that they wait for, puts CROSS and SHARE between them (there is room), and
 * takes out the actions and tasks that the member of `spec` lacks. False: out of memory. */
bool dpt_task_order(struct dpt_step_list *list, const struct dpt_step_spec *spec, int n_waves);

#endif
