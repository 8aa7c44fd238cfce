/* What the files of this folder share: one strategy. Everything that tells strategies apart is in
 * its traits (base/strategy_traits.h), in who holds and adds what (worker/plan/partition.h), and in
 * the lists that follow from both (worker/plan/schedule.h).
 *
 *   executor.c               the calls of strategy.h: carries out a list's actions
 *   state/                   masters, moments and weights: where they lie, how they change
 *   reduce/                  how the gradients of slots become the gradient of the step
 *   transport/               the communication thread and the tasks that it goes through
 *   memory/                  what a rank holds, worked out
 *
 * Gradients take one of two ways. By lanes (lane_sums.h) a rank adds its own slots, and a reducer
 * (reducer.h) adds the sums of all ranks. In waves (worker/plan/waves.h) each slot's gradient goes
 * to the owners of its pieces, which add the slots in order; the tasks of a list say when.
 *
 * The state may be worked on by a device (strategy.h): then weights, gradients, sums, masters and
 * moments are there, and registered memory has a copy of the state. What goes between ranks goes by
 * NCCL from device to device, task by task, and into memory of the receiver's alone. A device has
 * room for one state: while a generation begins, what is held stays in registered memory alone. */
#ifndef DPT_WORKER_STRATEGY_CORE_H
#define DPT_WORKER_STRATEGY_CORE_H

#include "worker/plan/partition.h"
#include "worker/strategy/memory/memory_list.h"
#include "worker/strategy/reduce/lane_sums.h"
#include "worker/strategy/reduce/model_buckets.h"
#include "worker/strategy/state/packed_weights.h"
#include "worker/strategy/strategy.h"
#include "worker/strategy/transport/buffer.h"
#include "worker/strategy/transport/task_runner.h"

enum {
    STRATEGY_SUMS_MAX = DPT_TREE_DEPTH_MAX + 2,
    STRATEGY_PLACES_MAX = DPT_UNITS_MAX + 1,
    STRATEGY_GRADIENTS_MAX = 4,
    STRATEGY_NODE_GROUP = 1 /* of NCCL's, where nodes add by themselves */
};

struct strategy_state {
    struct dpt_strategy_state held, wanted;
    bool moves; /* `wanted` is not what is held */
    /* Which counts: registered memory (nothing has been made of it yet), the device's, or both. */
    enum { STRATEGY_BOTH, STRATEGY_REGISTERED, STRATEGY_ON_DEVICE } newest;
    /* `whole`: the weights of all units in the compute dtype, at their places (unless they are
     * gathered unit by unit); with f32 it holds the masters too. `copy`: this rank's shard of them,
     * compact, where they are gathered unit by unit and are not the masters. */
    struct dpt_buffer whole, copy;
    bool stale; /* other ranks' pieces of `whole` */
    const void *weights[DPT_UNITS_MAX];
    void *gathered[STRATEGY_PLACES_MAX]; /* the places that units are gathered to */
    size_t gathered_bytes[STRATEGY_PLACES_MAX];
    int n_gathered;
};

/* A shadow that is being copied (state/rebuild.c). */
struct strategy_rebuild {
    bool active, holder_late;
    struct dpt_state_part late; /* units below `units` are as their source's; 0 of 0: none */
    int units, end;             /* what this step has copied ends before `end` */
};

struct strategy_cross; /* reduce/cross.c */

/* Gradients in waves. A range is a unit or a bucket (schedule.h). */
struct strategy_waves {
    struct dpt_grid ranges; /* in ascending order */
    int *parts;             /* [n_ranges] into which a scatter is cut */
    int64_t *own_at;        /* [n_ranges] where a range begins in a compact sum of the own pieces */
    float *grads[DPT_UNITS_MAX]; /* of the present slot */
    /* A slot's gradient, unit by unit, or (buckets) whole in one: this then has the reduced one in
     * the end. The same as other hosts get it; none: as it is. */
    struct dpt_buffer gradient[STRATEGY_GRADIENTS_MAX], narrow_gradient[STRATEGY_GRADIENTS_MAX];
    int n_gradients;
    /* Sums of the own pieces, compact; where all apply everything and ranges are units, sum 0 is
     * the whole flat vector. `narrow_sum`: sum 0 as other hosts get it. */
    struct dpt_buffer sums[STRATEGY_SUMS_MAX], narrow_sum;
    int n_sums;
    struct dpt_buffer added;      /* where sums cross: of the nodes' sums, the piece of this rank */
    struct dpt_buffer applied;    /* the reduced gradient of a replica's shard; none: sum 0 */
    struct dpt_buffer shadowed;   /* that of the shadow */
    struct strategy_cross *cross; /* where sums of nodes go between them; else NULL: */
    int *crossed;                 /* [world size] piece of them that the rank at a position adds */
    struct dpt_sum_step *steps;
    int *first_step;            /* [waves + 1] */
    const void **contributions; /* [members] */
    bool *narrow_from;          /* [members], which of them come as `wire` */
    void *staging;
    size_t staging_bytes; /* of one part of one rank; 0: all are of this host */
    int n_staged;         /* members whose parts are staged */
    void *scratch;        /* of a device: for what came in 16 bits; NULL: nothing does */
    size_t scratch_bytes;
};

/* What a step has come to. */
struct strategy_step {
    const struct dpt_step_list *present; /* list or eval_list; NULL: nothing is gone through */
    int64_t step, reduced_step;          /* -1: none */
    int slot;                            /* the present one */
    int *announced;                      /* [buckets] tensors of this slot */
    int next_reduce;                     /* the first REDUCE of a bucket that is not done */
    enum dpt_status status;              /* of what was waited for in an announcement */
    struct dpt_err err;
};

struct dpt_strategy {
    struct dpt_strategy_env env;
    struct dpt_strategy_traits traits;
    struct dpt_device *device;               /* that the state is worked on, */
    struct dpt_stream *stream, *comm_stream; /* the two threads' there, */
    const struct dpt_ops *ops;               /* and its ops */
    enum dpt_dtype dtype;
    size_t width;        /* bytes of an element of the weights */
    enum dpt_dtype wire; /* what gradients are rounded to (wire.h); DPT_F32: they are not */
    int n_units, tied;   /* tied: unit that others borrow from; -1: none */
    int borrows[DPT_UNITS_MAX];
    int64_t flat_numel;
    struct strategy_state state;
    struct strategy_rebuild rebuild;
    struct dpt_packed_weights *packed; /* NULL: not of this strategy */
    struct dpt_model_buckets buckets;  /* none where ranges are units */
    struct dpt_lane_sums *lanes;       /* NULL: waves */
    struct strategy_waves waves;
    double *block_sums;  /* [dpt_optim_squares_max] of the host, */
    double *device_sums; /* and of the device, if that works on the state */
    bool told_of_slots;  /* that zero1 sends for shadows; once is enough */

    /* The generation. */
    struct dpt_partition part;     /* part.world NULL: there is none */
    struct dpt_memory_list memory; /* what it holds */
    struct dpt_step_list list, eval_list;
    struct dpt_task_runner *runner;

    struct strategy_step step;
};

/* state/parts.c: memory of a part of the state, and where a vector of it is worked on. */
bool strategy_has_whole(const struct dpt_strategy *s);
DPT_MUST_USE enum dpt_status strategy_part_create(const struct dpt_strategy *s,
                                                  struct dpt_shard shard, bool own,
                                                  struct dpt_state_part *part, struct dpt_err *err);
/* Room on the device for what of a part is not there. */
DPT_MUST_USE enum dpt_status strategy_part_enter_device(const struct dpt_strategy *s, bool own,
                                                        struct dpt_state_part *part,
                                                        struct dpt_err *err);
/* Frees what the device has of a part; all of it: but for what `kept` (or NULL) has too. */
void strategy_part_leave_device(const struct dpt_strategy *s, bool own, struct dpt_state_part *part,
                                const struct dpt_state_part *kept);
void strategy_part_free(const struct dpt_strategy *s, bool own, struct dpt_state_part *part,
                        const struct dpt_state_part *kept);
/* A vector of a part where it is worked on: a view, not owned; its piece of unit `unit` there. */
struct dpt_buffer strategy_vector(const struct dpt_strategy *s, const struct dpt_state_part *part,
                                  enum dpt_vector vector);
int64_t strategy_vector_offset(const struct dpt_strategy *s, const struct dpt_state_part *part,
                               enum dpt_vector vector, int unit);
float *strategy_vector_at(const struct dpt_strategy *s, const struct dpt_state_part *part,
                          enum dpt_vector vector, int unit);

/* state/rebuild.c, which has defer_shadow and rebuild of strategy.h, too. */
/* At a step's beginning: what is copied beside it. */
void strategy_rebuild_step(struct dpt_strategy *s);
/* The step is applied: what it has copied counts. When all is there the shadow is held. */
void strategy_rebuild_applied(struct dpt_strategy *s);
/* Gives up what was not whole. */
void strategy_rebuild_drop(struct dpt_strategy *s);
/* The shadow, or as much of one as this step has; 0 of 0: none. */
const struct dpt_state_part *strategy_shadow(const struct dpt_strategy *s);
/* The rank at `holder` has the shadow of what the one at `position` holds: it makes these weights
 * of the shadow's masters, and no rank sends them to it. One that is being copied is none. */
bool strategy_has_shadow_of(const struct dpt_strategy *s, int holder, int position);

/* state/state.c, which has fetch_state of strategy.h, too. */
DPT_MUST_USE enum dpt_status strategy_state_create(struct dpt_strategy *s, struct dpt_err *err);
void strategy_state_destroy(struct dpt_strategy *s);
/* For this world: what is wanted, room for weights. */
DPT_MUST_USE enum dpt_status strategy_state_begin(struct dpt_strategy *s, struct dpt_err *err);
void strategy_state_changed(struct dpt_strategy *s);
/* Before a step or an evaluation: refreshes the weight copies after the registered state was
 * written. */
void strategy_state_refresh(struct dpt_strategy *s);
/* Where the weights of unit `unit` are sent from, this rank's piece of them: a view, not owned. */
struct dpt_buffer strategy_weights(const struct dpt_strategy *s, int unit, size_t *ret_offset);
void *strategy_own_weights(const struct dpt_strategy *s, int unit);

/* state/update.c: the step; and norm_share of strategy.h. */
DPT_MUST_USE enum dpt_status
strategy_update(struct dpt_strategy *s, const struct dpt_optim_step *step, struct dpt_err *err);

/* reduce/gradient.c: where gradients and sums lie, and how they travel. */
struct strategy_gradient { /* of a shard: at its places in the flat vector, or compact */
    float *data;
    bool flat;
    struct dpt_shard shard;
};
/* Of what this rank has of the whole sum first; of what it applies; of what it applies for the
 * shadow. The last two also after the end of their generation. */
struct strategy_gradient strategy_whole_gradient(const struct dpt_strategy *s);
struct strategy_gradient strategy_own_gradient(const struct dpt_strategy *s);
struct strategy_gradient strategy_shadow_gradient(const struct dpt_strategy *s);
/* Where its piece of a unit begins. */
float *strategy_gradient_at(const struct dpt_strategy *s, const struct strategy_gradient *g,
                            int unit);
/* Ranks that compute in the task's wave: positions below this. */
int strategy_active(const struct dpt_strategy *s, const struct dpt_task *task);
/* Member i places after this rank; the same of all ranks: so that not all begin with one rank. */
int strategy_n_members(const struct dpt_strategy *s);
int strategy_member(const struct dpt_strategy *s, int i);
int strategy_other(const struct dpt_strategy *s, int i);
/* What the rank at a position holds of a unit or range; what it adds of a range of the members'
 * slots; what it has of the whole sum before it is shared. */
struct dpt_interval strategy_held_piece(const struct dpt_strategy *s, int position, int unit);
struct dpt_interval strategy_applied_piece(const struct dpt_strategy *s, int position, int range);
struct dpt_interval strategy_added_piece(const struct dpt_strategy *s, int position, int range);
struct dpt_interval strategy_whole_piece(const struct dpt_strategy *s, int position, int range);
/* The own piece's sum `sum` of a range; that of the nodes' sums, where they cross. */
float *strategy_sum(const struct dpt_strategy *s, int sum, int range);
float *strategy_crossed_sum(const struct dpt_strategy *s, int unit);
/* Bytes of an element of a gradient on its way to or from the rank at a position; whether they are
 * fewer than in memory (wire.h). */
size_t strategy_width(const struct dpt_strategy *s, int position);
bool strategy_is_narrow(const struct dpt_strategy *s, int position);
/* Byte of element `at` of the own piece of a range among the sums as other hosts get them. */
size_t strategy_narrow_offset(const struct dpt_strategy *s, int range, int64_t at);

/* reduce/wave_buffers.c: memory of a generation in waves. */
DPT_MUST_USE enum dpt_status
strategy_waves_begin(struct dpt_strategy *s, const struct dpt_step_spec *spec, struct dpt_err *err);
void strategy_waves_end(struct dpt_strategy *s);
void strategy_waves_destroy(struct dpt_strategy *s);

/* reduce/scatter.c: gradients to the owners of their pieces, who add them. */
/* The slot's gradient of a unit is whole: makes it what is sent. */
void strategy_round_gradient(struct dpt_strategy *s, int unit);

/* reduce/cross.c: the sums of nodes to the owners of pieces of the whole. */
DPT_MUST_USE enum dpt_status strategy_cross_begin(struct dpt_strategy *s, struct dpt_err *err);
void strategy_cross_end(struct dpt_strategy *s);
const int *strategy_cross_parts(const struct strategy_cross *cross); /* [n_units] */
int strategy_cross_xfers_max(const struct strategy_cross *cross);    /* in one direction */

/* Tasks by kind: state/gather.c: weights from their owners to the ranks that compute with them;
 * state/rebuild.c; reduce/scatter.c, cross.c; reduce/share.c: whole sums to the ranks that apply
 * them. Each has a strategy as its context. */
extern const struct dpt_task_handler strategy_gather, strategy_copy, strategy_scatter,
    strategy_cross, strategy_share;

/* lists.c: a generation's lists, the memory that they need, and the runner of their tasks. */
DPT_MUST_USE enum dpt_status strategy_lists_begin(struct dpt_strategy *s, struct dpt_err *err);
void strategy_lists_end(struct dpt_strategy *s);
/* Bytes that this rank sends in a step. */
int64_t strategy_bytes_sent(const struct dpt_strategy *s);

static inline bool strategy_is_empty(struct dpt_interval range)
{
    return range.end <= range.first;
}

static inline int64_t strategy_numel(struct dpt_interval range)
{
    return strategy_is_empty(range) ? 0 : range.end - range.first;
}

#endif
