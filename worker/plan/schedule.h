/* What a rank does in a step, as a list of (action, unit, slot) that the trainer carries out in
 * order. Strategies differ in their lists, not in the loop. Pure. */
#ifndef DPT_WORKER_PLAN_SCHEDULE_H
#define DPT_WORKER_PLAN_SCHEDULE_H

#include "worker/plan/lanes.h"

enum dpt_action_kind {
    DPT_ACTION_BEGIN_SLOT, /* fetch the micro-batch, choose where gradients go */
    DPT_ACTION_FORWARD,    /* of `unit` */
    DPT_ACTION_BACKWARD,   /* of `unit` */
    DPT_ACTION_END_SLOT,   /* the slot's loss is known */
    DPT_ACTION_COUNT
};

struct dpt_action {
    enum dpt_action_kind kind;
    int unit; /* -1 where it has none */
    int slot;
};

/* The list of a data-parallel rank that holds all units: each of its slots forward through units 0
 * … n-1 and back. Returns the number of actions, (2 + 2 n_units) for each slot; `ret` NULL only
 * counts. */
int dpt_schedule_data_parallel(struct dpt_range slots, int n_units, struct dpt_action *ret);

#endif
