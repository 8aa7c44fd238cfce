/* Waves: the assignment and the sum of a step's slots where each slot's gradient is scattered as
 * soon as it is complete (sharded gradients, and `accumulate: reduce` with any strategy).
 *
 * The slots of a run of lanes are assigned round-robin: in wave w member p of n computes slot w n +
 * p of the run; in the last wave some members may have no slot. The owner of a piece adds the
 * contributions of a wave in slot order: a lane's slots one after another, then complete lanes up
 * the tree of lanes.h. `accumulate: reduce`, a running sum over all slots, is the case of one lane.
 * Pure. */
#ifndef DPT_WORKER_PLAN_WAVES_H
#define DPT_WORKER_PLAN_WAVES_H

#include "worker/plan/lanes.h"

/* n slots: first, first + stride, … */
struct dpt_assignment {
    int first, stride, n;
};

/* One past the last slot; `first` if there is none. */
int dpt_assignment_end(const struct dpt_assignment *assignment);

struct dpt_waves {
    int slots, lanes;     /* of the step; lanes 1: a running sum over all slots */
    struct dpt_range run; /* the lanes that the members compute and add */
    int members;          /* >= 1 */
};

int dpt_waves_count(const struct dpt_waves *waves);
/* The number n of members with a slot in a wave: members 0 … n-1. */
int dpt_waves_active(const struct dpt_waves *waves, int wave);
struct dpt_assignment dpt_waves_assign(const struct dpt_waves *waves, int member);

/* The additions of the owner of a piece, in order. Sums are a stack. After the last wave sum i is
 * the sum of the i-th node of dpt_tree_cover(lanes, run); if the run has all lanes, sum 0 is the
 * only one. */
enum dpt_sum_kind {
    DPT_SUM_SET, /* sum[sum] = contribution of `member` */
    DPT_SUM_ADD, /* sum[sum] += contribution of `member` */
    DPT_SUM_JOIN /* sum[sum] += sum[sum + 1] */
};
struct dpt_sum_step {
    enum dpt_sum_kind kind;
    int sum;
    int member; /* JOIN: -1 */
};

/* Writes the sum steps of all waves, one after another: at most (slots + lanes) of them; wave w's
 * are [ret_first[w], ret_first[w + 1]), so `ret_first` holds waves + 1 numbers. Returns their
 * number.
 */
int dpt_waves_sum_steps(const struct dpt_waves *waves, struct dpt_sum_step *ret, int *ret_first);

/* The number of sums in use at once. */
int dpt_waves_sums(const struct dpt_waves *waves);

#endif
