/* The internal interface between the strategy's files. Strategies differ in three things: their
 * traits (base/strategy_traits.h), the partition of state and gradient among ranks
 * (worker/plan/partition.h), and the lists that follow from both (worker/plan/step_list.h).
 *
 *   executor.c               the calls of strategy.h: carries out a list's actions
 *   lists.c                  the lists of a generation, their memory, and the task runner
 *   state/                   masters, moments and weights: their memory and their updates
 *   reduce/                  from the gradients of slots to the gradient of the step
 *   transport/               the communication thread and the task runner on it
 *   memory/                  formulas for the memory that a rank holds
 *
 * There are two ways to add gradients, with one interface (strategy_route). With lanes a rank adds
 * the gradients of its slots, and a reducer (reducer.h) adds the sums of all ranks. With waves
 * (worker/plan/waves.h) a rank sends each slot's gradient to the owners of its pieces, and each
 * owner adds the slots in order. The tasks of a list set the time of these transfers.
 *
 * A device may keep the state (strategy.h). Weights, gradients, sums, masters and moments are then
 * in the device's memory, and registered memory has a copy of the state. Each task is one NCCL
 * operation from device to device, into the receiver's memory. A device has room for one state. If
 * a generation moves the state, the held state is therefore only in registered memory until the
 * move is over. */
#ifndef DPT_WORKER_STRATEGY_STRATEGY_INTERNAL_H
#define DPT_WORKER_STRATEGY_STRATEGY_INTERNAL_H

#include "worker/plan/partition.h"
#include "worker/strategy/memory/memory_list.h"
#include "worker/strategy/reduce/model_buckets.h"
#include "worker/strategy/reduce/powersgd.h"
#include "worker/strategy/state/packed_weights.h"
#include "worker/strategy/strategy.h"
#include "worker/strategy/transport/buffer.h"
#include "worker/strategy/transport/task_runner.h"

enum {
    STRATEGY_SUMS_MAX = DPT_TREE_DEPTH_MAX + 2,
    STRATEGY_PLACES_MAX = DPT_UNITS_MAX + 1,
    STRATEGY_GRADIENTS_MAX = 4,
    /* The NCCL group of a node's ranks, where each node adds its own lanes. */
    STRATEGY_NODE_GROUP = 1
};

struct strategy_state {
    struct dpt_strategy_state held, wanted;
    bool moves; /* `wanted` differs from `held` */
    /* The memory that has the newest state: both, only registered memory (the weight copies are not
     * made from it yet), or only the device's memory. */
    enum { STRATEGY_BOTH, STRATEGY_REGISTERED, STRATEGY_ON_DEVICE } newest;
    /* Weights in the compute dtype. `whole` has all units at their places in the flat vector; there
     * is none where units are gathered one by one. With f32 the weights in `whole` are also the
     * masters. `copy` has this rank's shard, compact; it exists where units are gathered one by one
     * and the dtype is not f32. */
    struct dpt_buffer whole, copy;
    bool stale; /* other ranks' pieces of `whole` are older than the step */
    const void *weights[DPT_UNITS_MAX];
    struct dpt_buffer gathered[STRATEGY_PLACES_MAX]; /* buffers of gathered units */
    int n_gathered;
};

/* A shadow that is being copied (state/rebuild.c). holder_late: the holder of this rank's shadow
 * does not have it yet, and this rank sends it. */
struct strategy_rebuild {
    bool active, holder_late;
    /* The late shadow: its units below `units` equal the source's; 0 of 0: none. */
    struct dpt_state_part late;
    int units, end; /* this step copies units [units, end) */
};

struct strategy_cross; /* reduce/cross.c */

/* A route of gradients (base/strategy_traits.h): from the gradients of a step's slots to the
 * gradient of the step. The executor calls its functions; the last five may be NULL: there is
 * nothing to do. */
struct strategy_route {
    bool sends_by_job; /* a job of the reducer sends the sums; no task waits for a REDUCE action */
    /* Makes the memory and the plan of a generation, and completes the spec of its lists. */
    enum dpt_status (*begin_generation)(struct dpt_strategy *s, struct dpt_step_spec *spec,
                                        struct dpt_err *err);
    /* The range (step_list.h) is complete on this rank, and its tasks are not yet posted. */
    enum dpt_status (*reduce)(struct dpt_strategy *s, int range, struct dpt_err *err);
    /* Adds the bytes of gradients, the number of their buffers, and the bytes sent apart from the
     * tasks' bytes. */
    void (*cost)(const struct dpt_strategy *s, struct dpt_strategy_cost *cost);
    /* Returns whether a job of the reducer follows the tasks of the step. */
    bool (*begin_step)(struct dpt_strategy *s);
    void (*begin_slot)(struct dpt_strategy *s, int slot_index, struct dpt_slot *slot);
    /* The slot's gradient of a parameter is complete. */
    void (*add_tensor)(struct dpt_strategy *s, int param);
    /* Waits until the gradient of the step is complete. */
    enum dpt_status (*finish)(struct dpt_strategy *s, struct dpt_err *err);
    /* The step is applied. The step's generation may have ended. */
    void (*applied)(struct dpt_strategy *s, int64_t step);
};

/* The gradients of a rank's own run of lanes. */
struct strategy_lanes {
    /* The lane buffers. Each has a whole flat gradient; together they are the stack of
     * worker/plan/lanes.h. Slots are added in `data`: in the registered buffers or, if a device
     * adds, in those on the device. Buffers of a device that are reduced in the host's memory have
     * registered buffers beside them. */
    struct dpt_comm_mem *registered[DPT_COVER_MAX];
    struct dpt_buffer on_device[DPT_COVER_MAX];
    int n_registered, n_on_device;
    float *data[DPT_COVER_MAX];
    /* Where lanes have several slots: the present slot's gradient of the unit with `in_parts`. When
     * it is complete it is added to the lane. data NULL: not needed. */
    struct dpt_buffer apart;
    int parted;                    /* the unit with `in_parts`; -1: none */
    struct dpt_powersgd *powersgd; /* NULL: sums are not approximated */

    /* The generation. */
    struct dpt_range own;        /* the lanes of this rank */
    struct dpt_reducer *reducer; /* NULL: there are no lanes */

    /* The slot. */
    int lane;        /* being filled */
    int depth;       /* index of the buffer being filled */
    bool lane_ends;  /* the slot is the lane's last */
    bool adds_apart; /* the slot is not the lane's first: `apart` is added to the lane */
    bool direct;     /* the slot is the lane's only one, and backward adds it to the sum below */
};

/* Gradients in waves. A range is a unit or a bucket (step_list.h). */
struct strategy_waves {
    int *parts; /* [n_ranges] number of parts of a scatter */
    /* [n_ranges] offset of the range in a compact sum of this rank's pieces */
    int64_t *own_at;
    /* A slot's gradient. By units: one buffer for the tied unit, and two that the other units use
     * in turn. By buckets: one flat vector, which in the end has the reduced gradient.
     * `narrow_gradient`: the copy in 16 bits for other hosts, if there is one. */
    struct dpt_buffer gradient[STRATEGY_GRADIENTS_MAX], narrow_gradient[STRATEGY_GRADIENTS_MAX];
    int n_gradients;
    /* Sums of this rank's pieces, compact. Where the state is replicated and ranges are units, sum
     * 0 is instead the whole flat vector. `narrow_sum`: sum 0 in 16 bits for other hosts. */
    struct dpt_buffer sums[STRATEGY_SUMS_MAX], narrow_sum;
    int n_sums;
    /* This rank's piece of the sum of all nodes, where nodes exchange sums. */
    struct dpt_buffer added;
    struct dpt_buffer applied;  /* the reduced gradient of a replica's shard; none: sum 0 */
    struct dpt_buffer shadowed; /* the reduced gradient of the shadow */
    /* NULL: sums do not go between nodes, and the next two are NULL. */
    struct strategy_cross *cross;
    int *crossed;        /* [world size] index of the piece that the rank at a position adds */
    int *cross_parts;    /* [n_units] number of parts of a CROSS task */
    int cross_xfers_max; /* most transfers of a CROSS task in one direction */
    struct dpt_sum_step *steps;
    int *first_step;            /* [waves + 1] */
    const void **contributions; /* [members] */
    bool *narrow_from;          /* [members] the contribution arrives as `wire` */
    /* For contributions of other hosts; on a device, of all other ranks. */
    struct dpt_buffer staging;
    struct dpt_buffer scratch; /* on a device: for values that arrive in 16 bits */
};

/* The present step. */
struct strategy_step {
    /* `list` or `eval_list`; NULL: no step or evaluation of this generation has begun */
    const struct dpt_step_list *present;
    int64_t step, reduced_step;  /* -1: none */
    int slot;                    /* the present one */
    float *grads[DPT_UNITS_MAX]; /* of the present slot */
    /* The gradient of the step at its places in the flat vector; NULL: waves by units. */
    float *flat_gradient;
    int *announced;         /* [buckets] tensors announced in this slot */
    int next_reduce;        /* the first REDUCE action whose range is not reduced */
    enum dpt_status status; /* of the buckets that announcements reduced */
    struct dpt_err err;
};

struct dpt_strategy {
    struct dpt_strategy_env env;
    struct dpt_strategy_traits traits;
    const struct strategy_route *route;
    /* The device that keeps the state (traits.on_device: not the host), the main thread's stream on
     * it, the stream on which the communication thread adds gradients, and the device's ops. */
    struct dpt_device *device;
    struct dpt_stream *stream, *comm_stream;
    const struct dpt_ops *ops;
    enum dpt_dtype dtype;
    size_t width; /* bytes of an element of the weights */
    /* The dtype that gradients are rounded to (packed_values.h); DPT_F32: no rounding. */
    enum dpt_dtype wire;
    int n_units;
    int borrows[DPT_UNITS_MAX]; /* the unit from which a unit borrows; -1: none */
    int64_t flat_numel;
    struct strategy_state state;
    struct strategy_rebuild rebuild;
    struct dpt_packed_weights *packed; /* NULL: the strategy does not pack */
    struct dpt_model_buckets buckets;
    struct strategy_lanes lanes;
    struct strategy_waves waves;
    double *block_sums;  /* [dpt_optim_squares_max] of the host */
    double *device_sums; /* the same, on the device that keeps the state; NULL: the host */
    bool told_of_slots;  /* warn_of_slots_sent has warned */

    /* The generation. */
    struct dpt_partition part;     /* part.world is NULL between generations */
    struct dpt_memory_list memory; /* of the generation */
    struct dpt_step_list list, eval_list;
    struct dpt_task_runner *runner;

    struct strategy_step step;
};

/* transport/task_transfers.c: peers and transfers of tasks, and their staging memory. */
/* The position i places after this rank's, cyclically. strategy_next_of counts within the range
 * `positions`, which contains this rank; strategy_other counts within the whole world. So each rank
 * begins with a different peer. */
int strategy_next_of(const struct dpt_strategy *s, struct dpt_range positions, int i);
int strategy_other(const struct dpt_strategy *s, int i);
/* Each adds one transfer to a task's transfers. send: `bytes` from `offset` of a buffer to the rank
 * at `position`; nothing if `bytes` is 0. receive: from that rank to `place`; `bytes` > 0. borrow:
 * this rank reads memory of that rank; `bytes` > 0. A borrowed transfer that needs staging memory
 * arrives at *staging, which advances by `bytes`. */
void strategy_send(const struct dpt_strategy *s, struct dpt_task_transfers *x, int position,
                   const struct dpt_buffer *buffer, size_t offset, size_t bytes);
void strategy_receive(const struct dpt_strategy *s, struct dpt_task_transfers *x, int position,
                      void *place, size_t bytes);
void strategy_borrow(const struct dpt_strategy *s, struct dpt_task_transfers *x, int position,
                     char **staging, size_t bytes);
/* Makes the buffer that the memory list has for `item`, or frees the buffer if the list has none.
 * `sent`: ranks send from it. */
DPT_MUST_USE enum dpt_status strategy_buffer_make(const struct dpt_strategy *s,
                                                  enum dpt_memory_item item, bool sent,
                                                  struct dpt_buffer *buffer, struct dpt_err *err);
/* strategy_staging_make makes staging memory for DPT_STAGING_TURNS turns, each of the size of
 * `item` in the memory list. strategy_staging returns the part of one turn. */
DPT_MUST_USE enum dpt_status strategy_staging_make(const struct dpt_strategy *s,
                                                   enum dpt_memory_item item,
                                                   struct dpt_buffer *staging, struct dpt_err *err);
char *strategy_staging(const struct dpt_buffer *staging, int turn);

/* state/state_parts.c: memory of a part of the state. `own`: true for this rank's shard, false for
 * the shadow. */
bool strategy_has_whole(const struct dpt_strategy *s);
DPT_MUST_USE enum dpt_status strategy_part_create(const struct dpt_strategy *s,
                                                  struct dpt_shard shard, bool own,
                                                  struct dpt_state_part *part, struct dpt_err *err);
/* Allocates the vectors of a part that are not yet on the device. */
DPT_MUST_USE enum dpt_status strategy_part_enter_device(const struct dpt_strategy *s, bool own,
                                                        struct dpt_state_part *part,
                                                        struct dpt_err *err);
/* strategy_part_leave_device frees a part's memory on the device, strategy_part_free all of its
 * memory. Both keep the memory that `kept` shares with the part; `kept` may be NULL. */
void strategy_part_leave_device(const struct dpt_strategy *s, bool own, struct dpt_state_part *part,
                                const struct dpt_state_part *kept);
void strategy_part_free(const struct dpt_strategy *s, bool own, struct dpt_state_part *part,
                        const struct dpt_state_part *kept);
/* A vector of a part in the memory of s->device, as a view that owns nothing.
 * strategy_vector_offset and strategy_vector_at: offset and address of the vector's piece of unit
 * `unit`. */
struct dpt_buffer strategy_vector(const struct dpt_strategy *s, const struct dpt_state_part *part,
                                  enum dpt_vector vector);
int64_t strategy_vector_offset(const struct dpt_strategy *s, const struct dpt_state_part *part,
                               enum dpt_vector vector, int unit);
float *strategy_vector_at(const struct dpt_strategy *s, const struct dpt_state_part *part,
                          enum dpt_vector vector, int unit);

/* state/rebuild.c, which also has dpt_strategy_defer_shadow and dpt_strategy_rebuild
 * (strategy.h). */
/* When a step begins: chooses the units that it copies. */
void strategy_rebuild_step(struct dpt_strategy *s);
/* When a step is applied: its copies count from now on. After the last copy the shadow is held. */
void strategy_rebuild_applied(struct dpt_strategy *s);
/* Frees an incomplete shadow. */
void strategy_rebuild_drop(struct dpt_strategy *s);
/* The shadow, complete or incomplete; 0 of 0: none. */
const struct dpt_state_part *strategy_shadow(const struct dpt_strategy *s);
/* Whether the rank at `holder` has the complete shadow of the shard of the rank at `position`. The
 * holder then computes the shard's weights from the shadow's masters, and no rank sends them to the
 * holder. */
bool strategy_has_shadow_of(const struct dpt_strategy *s, int holder, int position);

/* state/strategy_state.c, which also has dpt_strategy_fetch_state and dpt_strategy_state_changed
 * (strategy.h). */
DPT_MUST_USE enum dpt_status strategy_state_create(struct dpt_strategy *s, struct dpt_err *err);
void strategy_state_destroy(struct dpt_strategy *s);
/* Allocates the wanted state and the weights of this world. */
DPT_MUST_USE enum dpt_status strategy_state_begin(struct dpt_strategy *s, struct dpt_err *err);
/* Before a step or an evaluation: refreshes the weight copies after the registered state was
 * written. */
void strategy_state_refresh(struct dpt_strategy *s);
/* strategy_weights: the memory from which this rank sends its piece of a unit's weights, as a view
 * that owns nothing; the piece begins at byte *ret_offset. strategy_own_weights: the piece's
 * address. */
struct dpt_buffer strategy_weights(const struct dpt_strategy *s, int unit, size_t *ret_offset);
void *strategy_own_weights(const struct dpt_strategy *s, int unit);

/* state/apply_step.c has dpt_strategy_norm_share and dpt_strategy_apply (strategy.h). */

/* reduce/gradient.c: places of gradients and sums. */
struct strategy_gradient { /* of a shard */
    float *data;
    bool flat; /* at its places in the flat vector; else compact */
    struct dpt_shard shard;
};
/* Shards of the reduced gradient. whole: the shard that this rank adds. own: the shard that this
 * rank applies to its own part. shadow: the shard that this rank applies to the shadow. The last
 * two stay valid after the end of their generation. */
struct strategy_gradient strategy_whole_gradient(const struct dpt_strategy *s);
struct strategy_gradient strategy_own_gradient(const struct dpt_strategy *s);
struct strategy_gradient strategy_shadow_gradient(const struct dpt_strategy *s);
/* The piece of a unit in a shard of the gradient. */
float *strategy_gradient_at(const struct dpt_strategy *s, const struct strategy_gradient *g,
                            int unit);
/* Whether the rank at `position`, a member, computes in the wave of a GATHER or SCATTER. */
bool strategy_computes(const struct dpt_strategy *s, const struct dpt_task *task, int position);
/* Pieces of a unit or a range that belong to the rank at `position`. held: the piece of the state
 * that the rank holds. applied: the piece of the gradient that the rank applies. added: the piece
 * of the sum of the members' slots that the rank adds. whole: the piece of the sum of all ranks
 * that the rank has before sums are shared. */
struct dpt_interval strategy_held_piece(const struct dpt_strategy *s, int position, int unit);
struct dpt_interval strategy_applied_piece(const struct dpt_strategy *s, int position, int range);
struct dpt_interval strategy_added_piece(const struct dpt_strategy *s, int position, int range);
struct dpt_interval strategy_whole_piece(const struct dpt_strategy *s, int position, int range);
/* strategy_sum: sum number `sum` of this rank's piece of a range. strategy_crossed_sum: the sum of
 * all nodes of this rank's piece of a unit, where sums go between nodes. */
float *strategy_sum(const struct dpt_strategy *s, int sum, int range);
float *strategy_crossed_sum(const struct dpt_strategy *s, int unit);
/* strategy_width: bytes of an element in gradient transfers to and from the rank at `position`.
 * strategy_is_narrow: whether that is fewer than four bytes (packed_values.h). */
size_t strategy_width(const struct dpt_strategy *s, int position);
bool strategy_is_narrow(const struct dpt_strategy *s, int position);
/* The byte in narrow_sum at which element `at` of this rank's piece of a range begins. */
size_t strategy_narrow_offset(const struct dpt_strategy *s, int range, int64_t at);

/* Lanes (reduce/lane_sums.c) and waves (reduce/wave_buffers.c). The functions that end or destroy
 * do nothing for a strategy of the other route. */
extern const struct strategy_route strategy_by_lanes, strategy_by_waves;
/* reduce/lane_buffers.c: the lane buffers, and the generation's reducer over them. */
DPT_MUST_USE enum dpt_status strategy_lanes_begin(struct dpt_strategy *s,
                                                  struct dpt_step_spec *spec, struct dpt_err *err);
void strategy_lanes_end(struct dpt_strategy *s);
void strategy_lanes_destroy(struct dpt_strategy *s);
/* reduce/wave_buffers.c: the memory of waves. */
void strategy_waves_end(struct dpt_strategy *s);
void strategy_waves_destroy(struct dpt_strategy *s);

/* reduce/scatter.c: rounds the slot's gradient of a unit, and makes its copy in 16 bits. Errors
 * stick to the stream. */
DPT_MUST_USE enum dpt_status strategy_round_gradient(struct dpt_strategy *s, int unit,
                                                     struct dpt_err *err);

/* reduce/cross.c: adds the sums of nodes to the sum of all nodes. */
DPT_MUST_USE enum dpt_status strategy_cross_begin(struct dpt_strategy *s, struct dpt_err *err);
void strategy_cross_end(struct dpt_strategy *s);

/* Handlers of tasks, whose context is the strategy: state/gather_weights.c (weights to the ranks
 * that compute), state/rebuild.c, reduce/scatter.c, reduce/cross.c, reduce/share_sums.c (sums to
 * the ranks that apply them). */
extern const struct dpt_task_handler strategy_gather, strategy_copy, strategy_scatter,
    strategy_cross, strategy_share;

/* lists.c: a generation's lists, their memory, and the task runner. */
DPT_MUST_USE enum dpt_status strategy_lists_begin(struct dpt_strategy *s, struct dpt_err *err);
void strategy_lists_end(struct dpt_strategy *s);
/* Bytes that this rank sends in the tasks of a step. */
int64_t strategy_task_bytes(const struct dpt_strategy *s);

static inline bool strategy_is_empty(struct dpt_interval range)
{
    return range.end <= range.first;
}

static inline int64_t strategy_numel(struct dpt_interval range)
{
    return strategy_is_empty(range) ? 0 : range.end - range.first;
}

#endif
