/* What the files of the sharded strategies share (sharded.c: the vtable; sharded_state.c: masters,
 * moments and weights; wave_buffers.c: what a generation needs beside them; sharded_tasks.c: what
 * goes between ranks; sharded_share.c: what follows the steps).
 *
 * One strategy with three questions, which a policy answers: what state a rank holds, when it has
 * which weights, and how gradients are summed. Gradients are scattered in waves
 * (worker/plan/waves.h): the owner of a piece sums what the ranks send it, slot after slot. Or,
 * with lanes, a rank adds its own slots and only sums of lanes go to the owners, once a step
 * (lane_sums.h).
 *
 * With a resident device (strategy.h) all of it is there: weights, gradients, sums, masters and
 * moments. What goes between ranks goes by NCCL from device to device, task by task, and into
 * memory of the receiver's alone: nothing is read where it lies in another's. The state's
 * registered memory has a copy, as ddp's has (ddp.c). A device has room for one state: while a
 * generation begins, what is held stays in registered memory alone. */
#ifndef DPT_WORKER_STRATEGY_SHARDED_H
#define DPT_WORKER_STRATEGY_SHARDED_H

#include "worker/strategy/buffer.h"
#include "worker/strategy/lane_sums.h"
#include "worker/strategy/strategy.h"
#include "worker/strategy/task_runner.h"

enum {
    SHARDED_SUMS_MAX = DPT_TREE_DEPTH_MAX + 2,
    SHARDED_WEIGHTS_MAX = DPT_UNITS_MAX + 1,
    SHARDED_GRADIENTS_MAX = 4,
    SHARDED_TURNS = 2,     /* scatters under way that need staging */
    SHARDED_NODE_GROUP = 1 /* of NCCL's, where nodes sum by themselves */
};

struct sharded_policy {
    bool whole_state; /* each rank holds and applies everything, as ddp does; else its shard */
    bool group;       /* the ranks of a node share a state among them: a replica; else all do */
    bool shadow;      /* a rank of another node keeps each shard too, and applies the same step */
    enum dpt_weights_plan weights;
    bool lanes;   /* gradients by lanes instead of waves */
    bool by_node; /* each node sums its own lanes, and sums go between nodes once a step */
};

struct sharded_cross; /* sharded_share.c */

struct sharded {
    struct dpt_strategy base;
    struct dpt_strategy_env env;
    struct sharded_policy policy;
    struct dpt_device *device;               /* that the state is worked on, */
    struct dpt_stream *stream, *comm_stream; /* the two threads' there, */
    const struct dpt_ops *ops;               /* and its ops */
    enum dpt_dtype dtype;
    size_t width;        /* bytes of an element of the weights */
    enum dpt_dtype wire; /* what gradients are rounded to (wire.h); DPT_F32: they are not */
    int n_units, tied;
    int borrows[DPT_UNITS_MAX];
    int64_t flat_numel;

    /* State. `whole`: the weights of all units in the compute dtype, at their places (unless they
     * are gathered unit by unit); with f32 it holds the masters too. `copy`: this rank's shard of
     * them, compact, where they are gathered unit by unit and are not the masters. */
    struct dpt_strategy_state held, wanted;
    bool moves; /* `wanted` is not what is held */
    /* Which counts: registered memory (nothing has been made of it yet), the device's, or both. */
    enum sharded_newest { SHARDED_BOTH, SHARDED_REGISTERED, SHARDED_RESIDENT } newest;
    /* A shadow that is being copied (sharded_rebuild.c). */
    struct dpt_state_part late; /* units below late_units are as their owner's; 0 of 0: none */
    int late_units, late_end;   /* what this step has copied ends before late_end */
    bool rebuilds, holder_late;
    struct dpt_buffer whole, copy;
    bool stale; /* other ranks' pieces of `whole` */
    const void *weights[DPT_UNITS_MAX];
    void *gathered[SHARDED_WEIGHTS_MAX]; /* the places that units are gathered to */
    size_t gathered_bytes[SHARDED_WEIGHTS_MAX];
    int n_gathered;

    /* Gradients: a slot's, unit by unit, and the sums of the own piece; sum 0 is the reduced one.
     */
    float *grads[DPT_UNITS_MAX];
    struct dpt_buffer gradient[SHARDED_GRADIENTS_MAX];
    /* The same, and the sums of the own piece, as other hosts get them; none: as they are. */
    struct dpt_buffer narrow_gradient[SHARDED_GRADIENTS_MAX], narrow_sum;
    int n_gradients;
    struct dpt_buffer sums[SHARDED_SUMS_MAX]; /* compact; sum 0: the whole flat vector where all
                                                 apply everything */
    int n_sums;
    struct dpt_buffer added;     /* by_node: of the nodes' sums, compact by sharded_added */
    struct dpt_buffer applied;   /* the reduced gradient of a replica's shard; none: sum 0 */
    struct dpt_buffer shadowed;  /* that of the shadow */
    struct dpt_shard piece;      /* that this rank sums */
    struct dpt_lane_sums *lanes; /* instead of all these; NULL: waves */
    double *block_sums;          /* [dpt_optim_squares_max] of the host, */
    double *resident_sums;       /* and of the resident device */

    /* The generation. */
    const struct dpt_world *world;
    int rank, host, position;
    int group_first, group_size;      /* positions whose shards are a whole state */
    int shadow_shift;                 /* worker/plan/world.h; 0: no shard has a shadow */
    bool told_of_slots;               /* … that zero1 sends for shadows; once is enough */
    int shadow_holder, shadow_source; /* positions: that keeps a shadow of this rank's shard; whose
                        this one keeps; -1 */
    struct dpt_range members;         /* positions that sum together: all, or by_node the node's */
    int largest;                      /* of them: that with the largest pieces */
    struct dpt_waves waves;
    struct sharded_cross *cross; /* by_node in a world of several; else NULL */
    struct dpt_sum_step *steps;
    int *first_step; /* [waves + 1] */
    int parts[DPT_UNITS_MAX];
    struct dpt_step_list list, eval_list;
    struct dpt_task_runner *runner;
    const void **contributions; /* [members] */
    bool *narrow_from;          /* [members], which of them come as `wire` */
    void *staging;
    size_t staging_bytes; /* of one part of one rank; 0: all are of this host */
    int n_staged;         /* members whose parts are staged (sharded_is_staged) */
    void *scratch;        /* resident: for what came in 16 bits; NULL: nothing does */
    size_t scratch_bytes;

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
/* Before a step or an evaluation: makes what is made of registered memory that was written. */
void sharded_state_refresh(struct sharded *s);
/* strategy.h, fetch_state. */
DPT_MUST_USE enum dpt_status sharded_state_fetch(struct sharded *s, struct dpt_err *err);
DPT_MUST_USE enum dpt_status sharded_apply(struct sharded *s, const struct dpt_optim_step *step,
                                           struct dpt_err *err);
DPT_MUST_USE enum dpt_status sharded_norm(struct sharded *s, struct dpt_accum *ret,
                                          struct dpt_err *err);
/* Where the weights of unit `unit` are sent from, this rank's piece of them: a view, not owned. */
struct dpt_buffer sharded_weights(const struct sharded *s, int unit, size_t *ret_offset);
/* A vector of a part where it is worked on, likewise; its piece of unit `unit` there. */
struct dpt_buffer sharded_vector(const struct sharded *s, const struct dpt_state_part *part,
                                 enum dpt_vector vector);
int64_t sharded_vector_offset(const struct sharded *s, const struct dpt_state_part *part,
                              enum dpt_vector vector, int unit);
float *sharded_vector_at(const struct sharded *s, const struct dpt_state_part *part,
                         enum dpt_vector vector, int unit);
/* What the rank at a position sums. */
struct dpt_shard sharded_summed(const struct sharded *s, int position);
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
/* Frees a part that was never held. */
void sharded_part_free(const struct sharded *s, bool own, struct dpt_state_part *part);

/* sharded_rebuild.c: strategy.h, defer_shadow, rebuild, rebuilding. */
struct dpt_shard sharded_defer_shadow(struct sharded *s);
void sharded_rebuild_begin(struct sharded *s, const bool *late);
/* At a step's beginning: what is copied beside it. */
void sharded_rebuild_step(struct sharded *s);
/* The step is applied: what it has copied counts. When all is there the shadow is held. */
void sharded_rebuild_applied(struct sharded *s);
/* Gives up what was not whole. */
void sharded_rebuild_drop(struct sharded *s);
/* The shadow, or as much of one as this step has; 0 of 0: none. */
const struct dpt_state_part *sharded_shadow(const struct sharded *s);
void sharded_post_copy(void *ctx, const struct dpt_task *task, int turn,
                       struct dpt_task_transfers *x);

/* wave_buffers.c: slots' gradients, sums, sum steps and staging, into how many parts pieces are
 * cut.
 */
DPT_MUST_USE enum dpt_status
sharded_memory_begin(struct sharded *s, const struct dpt_step_spec *spec, struct dpt_err *err);
void sharded_memory_end(struct sharded *s);
void sharded_memory_destroy(struct sharded *s);
/* Room for the norm's, made once. */
DPT_MUST_USE enum dpt_status sharded_block_sums(struct sharded *s, struct dpt_err *err);

/* sharded_tasks.c: lists and the task runner over them. */
DPT_MUST_USE enum dpt_status sharded_tasks_begin(struct sharded *s, struct dpt_err *err);
void sharded_tasks_end(struct sharded *s);
void sharded_tasks_destroy(struct sharded *s);
/* The slot's gradient of a unit is whole: makes it what is sent. */
void sharded_round_gradient(struct sharded *s, int unit);
/* Bytes of an element of a gradient on its way to or from the rank at a position, and whether they
 * are fewer than in memory (wire.h). */
size_t sharded_width(const struct sharded *s, int position);
bool sharded_is_narrow(const struct sharded *s, int position);
/* What comes from the rank at a position comes into this rank's memory: it is of another host, or
 * it comes from a device. */
bool sharded_is_staged(const struct sharded *s, int position);
/* Bytes of a piece that goes between `ranks` of them at once, of which each may be staged from all
 * others: many where each is an operation of NCCL's. */
int64_t sharded_part_bytes(const struct sharded *s, int ranks);
/* Element `at` of the own piece of a unit among the sums as other hosts get them. */
size_t sharded_narrow_offset(const struct sharded *s, int unit, int64_t at);
/* Bytes that this rank sends in a step. */
int64_t sharded_bytes_sent(const struct sharded *s);
/* Part `part` of `n` of what the rank at a position sum steps of a unit. */
struct dpt_interval sharded_part(const struct sharded *s, int position, int unit, int part, int n);
/* What the rank at a position holds of a unit; what it has of the whole sum before it is shared. */
struct dpt_interval sharded_held_piece(const struct sharded *s, int position, int unit);
struct dpt_interval sharded_whole_piece(const struct sharded *s, int position, int unit);

/* sharded_share.c: by_node only, but for the last four. Plan and memory of a generation. */
DPT_MUST_USE enum dpt_status sharded_cross_begin(struct sharded *s, struct dpt_err *err);
void sharded_cross_end(struct sharded *s);
/* What the rank at a position adds of the nodes' sums; this rank's sum of unit `unit`. */
struct dpt_shard sharded_added(const struct sharded *s, int position);
float *sharded_added_sum(const struct sharded *s, int unit);
void sharded_post_cross(void *ctx, const struct dpt_task *task, int turn,
                        struct dpt_task_transfers *x);
DPT_MUST_USE enum dpt_status sharded_crossed(void *ctx, const struct dpt_task *task, int turn,
                                             const struct dpt_task_transfers *x,
                                             struct dpt_err *err);
const int *sharded_cross_parts(const struct sharded *s); /* [n_units]; NULL: none */
int sharded_xfers_max(const struct sharded *s);          /* of a task, in one direction */
void sharded_post_share(void *ctx, const struct dpt_task *task, int turn,
                        struct dpt_task_transfers *x);
DPT_MUST_USE enum dpt_status sharded_shared(void *ctx, const struct dpt_task *task, int turn,
                                            const struct dpt_task_transfers *x,
                                            struct dpt_err *err);
/* Bytes that a task of kind CROSS or SHARE makes this rank send. */
int64_t sharded_share_bytes(const struct sharded *s, const struct dpt_task *task);

#endif
