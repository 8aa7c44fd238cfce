/* The order in which the tasks of a step's list are posted, and the tasks that follow the scatters
 * of a range (step_list.h). Pure, apart from temporary memory. */
#ifndef DPT_WORKER_PLAN_TASK_ORDER_H
#define DPT_WORKER_PLAN_TASK_ORDER_H

#include "worker/plan/step_list.h"

/* Sorts the tasks of a list by the number of actions that they wait for, and inserts the CROSS and
 * SHARE tasks; the list has room for them. The list was made for a member with a slot in each of
 * `n_waves` waves: the actions that the member of `spec` does not have are removed, and its tasks
 * there become idle. False: out of memory. */
bool dpt_task_order(struct dpt_step_list *list, const struct dpt_step_spec *spec, int n_waves);

#endif
