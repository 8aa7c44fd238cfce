/* What the files of the sharded strategies share (sharded.c: the vtable; sharded_state.c: masters,
 * moments and weights; sharded_tasks.c: what goes between ranks).
 *
 * One strategy with three questions, which a policy answers: what state a rank holds, when it has
 * which weights, and how gradients are summed. Gradients are scattered in waves
 * (worker/plan/waves.h): the owner of a piece folds what the ranks send it, slot after slot. Or,
 * with lanes, a rank adds its own slots and only sums of lanes go to the owners, once a step
 * (lane_sums.h). */
#ifndef DPT_WORKER_STRATEGY_SHARDED_H
#define DPT_WORKER_STRATEGY_SHARDED_H

#include "worker/strategy/lane_sums.h"
#include "worker/strategy/strategy.h"
#include "worker/strategy/walk.h"

enum {
    SHARDED_SUMS_MAX = DPT_TREE_DEPTH_MAX + 2,
    SHARDED_WEIGHTS_MAX = DPT_UNITS_MAX + 1,
    SHARDED_GRADIENTS_MAX = 4,
    SHARDED_TURNS = 2 /* scatters under way that need staging */
};

struct sharded_policy {
    bool whole_state; /* each rank holds and applies everything, as ddp does; else its shard */
    bool group;       /* the ranks of a host share a state among them: a replica; else all do */
    bool shadow;      /* a rank of another host keeps each shard too, and applies the same step */
    enum dpt_weights_plan weights;
    bool lanes; /* gradients by lanes instead of waves */
};

struct sharded {
    struct dpt_strategy base;
    struct dpt_strategy_env env;
    struct sharded_policy policy;
    const struct dpt_ops *ops;
    enum dpt_dtype dtype;
    size_t width; /* bytes of an element of the weights */
    int n_units, tied;
    int borrows[DPT_UNITS_MAX];
    int64_t flat_numel;

    /* State. `whole`: the weights of all units in the compute dtype, at their places (unless they
     * are gathered unit by unit); with f32 it holds the masters too. `copy`: this rank's shard of
     * them, compact, where they are gathered unit by unit and are not the masters. */
    struct dpt_strategy_state held, wanted;
    bool moves; /* `wanted` is not what is held */
    struct dpt_comm_mem *whole, *copy;
    bool stale; /* other ranks' pieces of `whole` */
    const void *weights[DPT_UNITS_MAX];
    void *gathered[SHARDED_WEIGHTS_MAX]; /* the places that units are gathered to */
    size_t gathered_bytes[SHARDED_WEIGHTS_MAX];
    int n_gathered;

    /* Gradients: a slot's, unit by unit, and the sums of the own piece; sum 0 is the reduced one.
     */
    float *grads[DPT_UNITS_MAX];
    struct dpt_comm_mem *gradient[SHARDED_GRADIENTS_MAX];
    int n_gradients;
    struct dpt_comm_mem *sum0;     /* compact; the whole flat vector where all apply everything */
    struct dpt_comm_mem *applied;  /* the reduced gradient of a replica's shard; NULL: sum 0 */
    struct dpt_comm_mem *shadowed; /* that of the shadow */
    void *sums[SHARDED_SUMS_MAX];
    size_t sum_bytes; /* of each but sum 0 */
    int n_sums;
    struct dpt_shard piece;      /* that this rank folds */
    struct dpt_lane_sums *lanes; /* instead of all these; NULL: waves */
    double *block_sums;

    /* The generation. */
    const struct dpt_world *world;
    int rank, host, position;
    int group_first, group_size; /* positions whose shards are a whole state */
    int buddy,
        ward; /* position that keeps a shadow of this rank's shard, whose this one keeps; -1 */
    struct dpt_waves waves;
    struct dpt_fold *folds;
    int *first_fold; /* [waves + 1] */
    int parts[DPT_UNITS_MAX];
    struct dpt_step_list list, eval_list;
    struct dpt_walk *walk;
    const float **contributions; /* [world size], by position */
    void *staging;
    size_t staging_bytes; /* of one part of one rank; 0: all are of this host */
    int n_staged;         /* ranks of other hosts */

    /* The step. */
    const struct dpt_step_list *present; /* list or eval_list; NULL: nothing is gone through */
    int64_t step, reduced_step;          /* -1: none */
};

/* sharded_state.c */
DPT_MUST_USE enum dpt_status sharded_state_create(struct sharded *s, struct dpt_err *err);
void sharded_state_destroy(struct sharded *s);
/* For this world: what is wanted, room for weights. */
DPT_MUST_USE enum dpt_status sharded_state_begin(struct sharded *s, struct dpt_err *err);
void sharded_state_changed(struct sharded *s);
DPT_MUST_USE enum dpt_status sharded_apply(struct sharded *s, const struct dpt_optim_step *step,
                                           struct dpt_err *err);
DPT_MUST_USE enum dpt_status sharded_norm(struct sharded *s, struct dpt_accum *ret,
                                          struct dpt_err *err);
/* Where the weights of unit `unit` are sent from: this rank's piece of them. */
struct dpt_comm_mem *sharded_weights_mem(const struct sharded *s, int unit, size_t *ret_offset);
/* What rank `rank` folds of a unit. */
struct dpt_interval sharded_piece(const struct sharded *s, int rank, int unit);
/* What the rank at a position holds of the state. */
struct dpt_shard sharded_shard(const struct sharded *s, int position);
/* Who shares with whom, and who covers for whom, in this world. */
void sharded_find_group(struct sharded *s);
/* The reduced gradient of what this rank applies of unit `unit`: of its own part, of the shadow. */
float *sharded_own_gradient(const struct sharded *s, int unit);
float *sharded_shadow_gradient(const struct sharded *s, int unit);
/* The own piece's sum `sum` of unit `unit`. */
float *sharded_sum(const struct sharded *s, int sum, int unit);
/* How the weights are had in this world. */
enum dpt_weights_plan sharded_weights_plan(const struct sharded *s);
/* Registered memory in place of *mem, kept when it has the size. */
DPT_MUST_USE enum dpt_status sharded_mem(struct sharded *s, struct dpt_comm_mem **mem, size_t bytes,
                                         struct dpt_err *err);

/* sharded_tasks.c: gradients' memory, lists and the walk over them. */
DPT_MUST_USE enum dpt_status sharded_tasks_begin(struct sharded *s, struct dpt_err *err);
void sharded_tasks_end(struct sharded *s);
void sharded_tasks_destroy(struct sharded *s);
/* Bytes that this rank sends in a step. */
int64_t sharded_bytes_sent(const struct sharded *s);

#endif
