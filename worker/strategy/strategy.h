/* A strategy is the work between units: it gathers weights, reduces gradients and applies the step.
 *
 * The trainer calls it on its main thread alone, in this order:
 *
 *   create
 *   for each generation:
 *     begin_generation
 *     (the caller fills `wanted`)  state_changed
 *     for each step:
 *       begin_step
 *       for each action of step_list: BEGIN_SLOT begin_slot; GATHER, FREE, RESERVE and REDUCE
 *         act; FORWARD and BACKWARD are the model's; END_SLOT needs no call
 *       await_gradient  norm_share  (commit)  apply
 *     for each batch of an evaluation:
 *       begin_eval  the actions of eval_list  end_eval
 *     end_generation
 *   destroy
 *
 * - state_changed may come late. A rank that has filled its wanted state keeps the held state until
 *   it knows that all ranks have filled theirs (GO). If the generation fails before GO, the next
 *   generation may continue from the held state. So state_changed comes before the generation's
 *   first step, or, if the generation ended before that, between end_generation and the next
 *   begin_generation.
 * - Until state_changed `held` and `wanted` keep their memory. A begin_generation without a
 *   state_changed before it frees the wanted state.
 * - Before state_changed the caller withdraws (dpt_comm_withdraw) the memory of `held` that
 *   `wanted` does not share. Then it may be destroyed while there is a communicator.
 * - A step that is committed but not yet applied is applied before the next begin_generation, with
 *   the gradients of the generation in which it was computed.
 * - A generation may end at any point of a step; the next begin_step starts clean.
 * - A reduced gradient is kept until the next begin_step, because the outcome of its step may
 *   arrive only with the next formation. */
#ifndef DPT_WORKER_STRATEGY_STRATEGY_H
#define DPT_WORKER_STRATEGY_STRATEGY_H

#include "base/accum.h"
#include "checkpoint/layout/shard_piece.h"
#include "kernels/stager.h"
#include "worker/model/model.h"
#include "worker/optim/optim.h"
#include "worker/plan/partition.h" /* the slots of a position: dpt_partition_assign */
#include "worker/plan/step_list.h"
#include "worker/strategy/transport/comm_thread.h"

/* The surroundings of a strategy; all borrowed for its life. */
struct dpt_strategy_env {
    const struct dpt_config *config;
    const struct dpt_model *model;
    struct dpt_device *device;
    struct dpt_stream *stream;      /* the main thread's */
    struct dpt_stream *comm_stream; /* the communication thread's */
    struct dpt_comm_listener *listener;
    struct dpt_comm_thread *comm_thread;
    const struct dpt_grid *grid; /* of the model's units */
    /* With traits.on_device: the device that keeps the state, and the main thread's stream on it.
     * Slots then point to the device's memory, and registered memory is a copy
     * (dpt_strategy_fetch_state). Else NULL: the host keeps the state. */
    struct dpt_device *state_device;
    struct dpt_stream *state_stream;
    /* With traits.by_nccl: the communication thread's stream on that device. Else NULL: gradients
     * are sent through the hosts' memory. */
    struct dpt_stream *state_comm_stream;
    /* Copies between the host (`stream`) and the device (state_stream); NULL: the host keeps the
     * state. */
    struct dpt_stager *stager;
};

enum dpt_vector { DPT_VECTOR_PARAM, DPT_VECTOR_M, DPT_VECTOR_V, DPT_VECTOR_COUNT };

/* One shard of the training state (fp32 masters and moments) in registered memory. A vector is
 * compact (dpt_shard_offset), or, if `flat`, at its place in memory of the whole flat vector. */
struct dpt_state_part {
    struct dpt_shard shard;
    struct dpt_state_vector {
        struct dpt_comm_mem *mem; /* NULL: not held */
        bool flat;
        /* Only the strategy uses these: the vector on the device that keeps the state, and whether
         * the vector is flat there. */
        float *device;
        bool device_flat;
    } vector[DPT_VECTOR_COUNT];
};

/* The state of a rank between steps: its own shard (ddp: everything) and the shadow of another
 * rank's shard (`of` 0: no shadow). */
struct dpt_strategy_state {
    struct dpt_state_part own, shadow;
};

/* dpt_strategy_state_offset: the element of a vector's memory at which the part's piece of unit
 * `unit` begins. dpt_strategy_state_at: the address of that element in registered memory. */
int64_t dpt_strategy_state_offset(const struct dpt_state_part *part, const struct dpt_grid *grid,
                                  enum dpt_vector vector, int unit);
float *dpt_strategy_state_at(const struct dpt_state_part *part, const struct dpt_grid *grid,
                             enum dpt_vector vector, int unit);

/* The number of vectors that a rank holds: three, or two without a second moment. */
int dpt_strategy_vectors(const struct dpt_config *config);

/* dpt_strategy_tied_unit: the unit from which others borrow; -1: none. dpt_strategy_largest_unit:
 * elements of the largest unit other than `except`. */
int dpt_strategy_tied_unit(const struct dpt_model *model);
int64_t dpt_strategy_largest_unit(const struct dpt_model *model, int except);

/* The number of buffers that gathered units share: strategy.gathered_units_max, or one for each
 * unit, if that is less. The unit from which others borrow has a separate buffer. */
int dpt_strategy_gathered_places(const struct dpt_config *config, const struct dpt_model *model);

/* The tag, in the memory account, of a vector of a rank's own part. */
enum dpt_memory_tag dpt_strategy_vector_tag(enum dpt_vector vector, enum dpt_dtype dtype);

struct dpt_strategy_cost {
    int64_t gradient_bytes, sent_bytes;
    int gradient_buffers;
    int64_t packed_bytes; /* of packed weights; 0: weights are not packed */
};

struct dpt_strategy;

/* DPT_ECONFIG: no strategy has the config's name. */
DPT_MUST_USE enum dpt_status dpt_strategy_create(const struct dpt_strategy_env *env,
                                                 struct dpt_strategy **ret, struct dpt_err *err);
void dpt_strategy_destroy(struct dpt_strategy **strategy);

/* Allocates memory and makes the lists for a world, before its communicator is opened. `world` is
 * borrowed until end_generation. */
DPT_MUST_USE enum dpt_status dpt_strategy_begin_generation(struct dpt_strategy *s,
                                                           const struct dpt_world *world, int rank,
                                                           struct dpt_err *err);
/* After the communicator was closed. */
void dpt_strategy_end_generation(struct dpt_strategy *s);

/* The list of a step in this generation. */
const struct dpt_step_list *dpt_strategy_step_list(const struct dpt_strategy *s);
void dpt_strategy_begin_step(struct dpt_strategy *s, int64_t step);
/* Fills the slot's weights, grads, accumulate and announce. The tables of weights and grads change
 * with the slot's GATHER and RESERVE actions. */
void dpt_strategy_begin_slot(struct dpt_strategy *s, int slot_index, struct dpt_slot *slot);
/* Carries out action `action` of the list: GATHER, FREE, RESERVE or REDUCE. May wait for peers.
 * Errors as of dpt_strategy_await_gradient. */
DPT_MUST_USE enum dpt_status dpt_strategy_act(struct dpt_strategy *s, int action,
                                              struct dpt_err *err);

/* A batch of an evaluation, forward only, between steps. All ranks of the world carry out the list
 * together, also ranks without a batch. begin_eval fills the slot's weights. */
const struct dpt_step_list *dpt_strategy_eval_list(const struct dpt_strategy *s);
void dpt_strategy_begin_eval(struct dpt_strategy *s, struct dpt_slot *slot);
DPT_MUST_USE enum dpt_status dpt_strategy_end_eval(struct dpt_strategy *s, struct dpt_err *err);

/* Waits until this rank has the gradients of its shard and of its shadow, which applying the step
 * needs. */
DPT_MUST_USE enum dpt_status dpt_strategy_await_gradient(struct dpt_strategy *s,
                                                         struct dpt_err *err);
/* This rank's share of the squared norm of the reduced gradient. The shares of all ranks merge to
 * the exact norm. */
DPT_MUST_USE enum dpt_status dpt_strategy_norm_share(struct dpt_strategy *s, struct dpt_accum *ret,
                                                     struct dpt_err *err);
/* Applies the step that was committed. Not called for a step that is skipped. */
DPT_MUST_USE enum dpt_status
dpt_strategy_apply(struct dpt_strategy *s, const struct dpt_optim_step *step, struct dpt_err *err);

/* True while the whole reduced gradient of `step` is held. */
bool dpt_strategy_holds_gradient(const struct dpt_strategy *s, int64_t step);
/* dpt_strategy_held: the held state. dpt_strategy_wanted: the state that the present generation
 * wants; the same pointer if both are equal. Between begin_generation and state_changed the caller
 * fills the wanted state from the ranks' held states, a checkpoint or the seed. The held and the
 * wanted state may share the memory of a vector; an element that both have is then at the same
 * place. */
const struct dpt_strategy_state *dpt_strategy_held(const struct dpt_strategy *s);
const struct dpt_strategy_state *dpt_strategy_wanted(const struct dpt_strategy *s);
/* Copies the held state from the device that keeps it to registered memory. Call it before that
 * memory is read. */
DPT_MUST_USE enum dpt_status dpt_strategy_fetch_state(struct dpt_strategy *s, struct dpt_err *err);
/* Call it when `wanted` is filled, or after the parameters were written. From now on `wanted` is
 * the held state, the memory of the old held state is freed, and copies of the parameters are made
 * again before the next slot. */
void dpt_strategy_state_changed(struct dpt_strategy *s);
/* Shadows after a loss. Between begin_generation and state_changed: takes the shadow out of
 * `wanted`, if it has to be filled and a copy of it is larger than training may wait for
 * (strategy.rebuild_mib). Returns the shard of the late shadow; `of` 0: none is late. */
struct dpt_shard dpt_strategy_defer_shadow(struct dpt_strategy *s);
/* If any rank holds a late shadow, all ranks of the generation call this before the first step;
 * late[r]: the shadow that rank r holds is late. From here on each step copies some units of the
 * state, and steps are also applied to the copied units. The copies of a step that is not applied
 * do not count. */
void dpt_strategy_rebuild(struct dpt_strategy *s, const bool *late);
/* Whether a shadow is incomplete. It becomes false on all ranks after the same step; from then on
 * the shadow is held. */
bool dpt_strategy_rebuilding(const struct dpt_strategy *s);
/* The rank's costs in this generation: bytes and number of gradient buffers, bytes sent in a step,
 * bytes of packed weights. Between begin_generation and end_generation. */
void dpt_strategy_cost(const struct dpt_strategy *s, struct dpt_strategy_cost *ret);

#endif
