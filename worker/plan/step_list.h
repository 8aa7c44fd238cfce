/* The work of a rank in a step: a list of actions that the trainer carries out in order on the main
 * thread, and a list of tasks that the communication thread carries out meanwhile. Strategies
 * differ in their lists, not in the loops. Pure apart from the memory of the lists.
 *
 * Gradients are reduced in ranges of the flat vector: by units, or by buckets of tensors where the
 * whole gradient is in one flat vector.
 *
 * All ranks make the same list of tasks and post them in its order, so that matching never depends
 * on the speed of a rank. (Where nodes add their own lanes, waves differ between nodes; CROSS and
 * SHARE, which go between nodes, are in one order on all ranks.) A task names the number of the
 * rank's own actions that must be done before it is posted; the last of these actions is a FREE or
 * a REDUCE. An action waits for the tasks that it names. Tasks are in the order of these numbers.
 * So no rank waits for a task that is posted after a task which waits for this rank: the lists
 * cannot deadlock. */
#ifndef DPT_WORKER_PLAN_STEP_LIST_H
#define DPT_WORKER_PLAN_STEP_LIST_H

#include "base/err.h"
#include "base/strategy_traits.h"
#include "worker/plan/waves.h"

enum dpt_action_kind {
    DPT_ACTION_BEGIN_SLOT, /* fetch the micro-batch, choose the gradient buffers */
    DPT_ACTION_GATHER,     /* wait until the weights of `unit` are in `buffer` */
    DPT_ACTION_FORWARD,    /* of `unit` */
    DPT_ACTION_BACKWARD,   /* of `unit` */
    DPT_ACTION_FREE,       /* the weights of `unit` have been used: their buffer may be reused */
    /* Wait until the gradient of `unit` may be written to `buffer`; unit -1: until the gradient of
     * all units may be written to the flat vector. */
    DPT_ACTION_RESERVE,
    /* The gradient of range `unit` is complete: reduce it. An announced bucket is already reduced
     * within the BACKWARD before. */
    DPT_ACTION_REDUCE,
    DPT_ACTION_END_SLOT, /* the slot's loss is known */
    DPT_ACTION_COUNT
};

struct dpt_action {
    enum dpt_action_kind kind;
    int unit; /* REDUCE: a range; -1 where it has none */
    int slot; /* of the step; -1 in an evaluation */
    int buffer;
    int first_task, n_tasks; /* tasks that GATHER, RESERVE or a waiting REDUCE waits for */
};

enum dpt_task_kind {
    DPT_TASK_GATHER, /* owners send their pieces of a unit's weights to the ranks that need them */
    /* Ranks send pieces of a slot's gradient of a range to the owners, which add them. */
    DPT_TASK_SCATTER,
    /* Nodes send their sums of a unit to the owners of the whole sum's pieces, which add them. */
    DPT_TASK_CROSS,
    /* Owners send the sums of a range's pieces to the other ranks that apply them. */
    DPT_TASK_SHARE,
    /* An owner sends vector `part` of its state of a unit to the holder of its shadow. */
    DPT_TASK_COPY,
    DPT_TASK_COUNT
};

struct dpt_task {
    enum dpt_task_kind kind;
    int unit, wave;    /* unit: SCATTER, SHARE: a range */
    int buffer;        /* buffer of weights or of gradients; -1: none */
    int part, n_parts; /* SCATTER, CROSS: which part of every piece; COPY: which vector */
    int active;        /* GATHER, SCATTER: members [0, active) compute; without waves all do */
    int actions;       /* number of this rank's actions that must be done before */
    int scatters;      /* number of SCATTER tasks whose parts must have been added before */
    int crosses;       /* number of CROSS tasks whose parts must have been added before */
    bool idle; /* this rank has no slot in the wave: it only sends weights and receives gradients */
};

struct dpt_step_list {
    struct dpt_action *actions;
    int n_actions;
    struct dpt_task *tasks;
    int n_tasks;
};

struct dpt_step_spec {
    int n_units;
    const int *borrows; /* [n_units] unit that it borrows a tensor from; -1: none */
    struct dpt_assignment assignment;
    bool forward_only; /* an evaluation's batch instead of a step */

    enum dpt_weights_plan weights;
    /* UNITS: number of buffers that units share. A borrowed unit has a separate buffer and stays in
     * it for the step. */
    int gathered_max;
    bool prefetch; /* gather a unit while others are computed; else when it is needed */
    bool overlap;  /* send gradients during backward; else wait for each unit's gradient */

    /* The waves in which gradients are scattered; `assignment` is then the waves' assignment. NULL:
     * no waves. */
    const struct dpt_waves *waves;
    const int *parts;       /* [n_ranges] number of parts of a scatter; >= 1 */
    const int *cross_parts; /* [n_units] number of parts of a CROSS; NULL: sums do not cross */
    bool share;
    int copies; /* number of state vectors that may be copied beside the first slot; 0: none */

    /* Ranges are buckets; without waves they are reduced in the last slot. 0: ranges are units. */
    int n_buckets;
    /* [n_buckets], ascending: the unit whose backward completes the bucket */
    const int *bucket_unit;
    struct dpt_bucket_traits buckets;
};

/* Makes the list. The caller frees it by dpt_step_list_fini, which also accepts an all-zero list.
 * DPT_ENOMEM. */
DPT_MUST_USE enum dpt_status dpt_step_list_init(struct dpt_step_list *list,
                                                const struct dpt_step_spec *spec,
                                                struct dpt_err *err);
void dpt_step_list_fini(struct dpt_step_list *list);

/* Number of gradient buffers that the lists name in waves: first one for each borrowed unit,
 * *ret_own in all, then two that the other units use in turn. Buffers of weights under UNITS are in
 * the same order: borrowed units', then gathered_max shared ones. */
int dpt_step_list_gradient_buffers(const struct dpt_step_spec *spec, int *ret_own);

#endif
