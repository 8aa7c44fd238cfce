/* A strategy is what happens between units: where weights come from, where gradients go, how they
 * are reduced, which rank applies the step.
 *
 * The trainer calls it always on its main thread, in this order:
 *
 *   create
 *   for each generation:
 *     begin_generation
 *     (the caller fills `wanted`)  state_changed
 *     for each step:
 *       begin_step
 *       for each action of step_list: BEGIN_SLOT begin_slot, END_SLOT end_slot,
 *         GATHER, FREE, RESERVE and REDUCE act; FORWARD and BACKWARD are the model's
 *       await_gradient  norm_share  (commit)  apply
 *     for each batch of an evaluation:
 *       begin_eval  the actions of eval_list  end_eval
 *     end_generation
 *   destroy
 *
 * - state_changed may come late. A rank that has filled what its generation wants keeps what it
 *   held until it knows that all ranks have (GO): a generation that fails before may be followed by
 *   one that goes on from the old. So state_changed comes before the generation's first step, or,
 *   when the generation ended before that, between end_generation and the next begin_generation.
 *   Until then `held` and `wanted` keep their memory. A begin_generation without a state_changed
 *   before it drops what was wanted.
 * - The memory of `held` that is not of `wanted` is withdrawn (dpt_comm_withdraw) by the caller
 *   before state_changed, so that it may be destroyed while there is a communicator.
 * - A step that is committed but not applied is applied before the next begin_generation, from the
 *   gradients of the last one.
 * - A step may be left at any point when the generation ends; the next begin_step starts clean.
 * - A reduced gradient is kept until the next begin_step, since its outcome may arrive only through
 *   re-formation. */
#ifndef DPT_WORKER_STRATEGY_STRATEGY_H
#define DPT_WORKER_STRATEGY_STRATEGY_H

#include "base/accum.h"
#include "checkpoint/layout/shard.h"
#include "kernels/stager.h"
#include "worker/model/model.h"
#include "worker/optim/optim.h"
#include "worker/plan/reduce.h"
#include "worker/plan/schedule.h"
#include "worker/strategy/transport/comm_thread.h"

/* What a strategy works with; all borrowed for its life. */
struct dpt_strategy_env {
    const struct dpt_config *config;
    const struct dpt_model *model;
    struct dpt_device *device;
    struct dpt_stream *stream;      /* the main thread's */
    struct dpt_stream *comm_stream; /* the communication thread's */
    struct dpt_comm_listener *listener;
    struct dpt_comm_thread *comm_thread;
    const struct dpt_grid *grid; /* of the model's units */
    /* The device that the state is kept and worked on, and the main thread's stream there: slots
     * point to its memory, and registered memory is a copy (fetch_state). NULL: the host. */
    struct dpt_device *resident;
    struct dpt_stream *resident_stream;
    /* The communication thread's stream there, where gradients go between ranks by NCCL; NULL: they
     * come to the host and go from there. */
    struct dpt_stream *resident_comm_stream;
    struct dpt_stager *stager; /* between `stream` and resident_stream; NULL: the host */
};

enum dpt_vector { DPT_VECTOR_PARAM, DPT_VECTOR_M, DPT_VECTOR_V, DPT_VECTOR_COUNT };

/* One shard of the training state (fp32 masters and moments) in registered memory. A vector is kept
 * compactly (dpt_shard_offset), or, where the whole vector has its place anyway, at its place in
 * the flat vector. */
struct dpt_state_part {
    struct dpt_shard shard;
    struct dpt_state_vector {
        struct dpt_comm_mem *mem; /* NULL: not held */
        bool flat;
        /* The strategy's own: the same on the device that works on it, and whether it is flat
         * there. */
        float *resident;
        bool resident_flat;
    } vector[DPT_VECTOR_COUNT];
};

/* What a rank holds between steps: its own shard (ddp: everything) and the shadow of another rank's
 * (of 0: none). */
struct dpt_strategy_state {
    struct dpt_state_part own, shadow;
};

/* Where the part has its piece of unit `unit` of a vector: element of its memory. */
int64_t dpt_state_offset(const struct dpt_state_part *part, const struct dpt_grid *grid,
                         enum dpt_vector vector, int unit);
float *dpt_state_at(const struct dpt_state_part *part, const struct dpt_grid *grid,
                    enum dpt_vector vector, int unit);

/* How many vectors are held: without a second moment not the last one. */
int dpt_vectors(const struct dpt_config *config);

/* The unit that others borrow from; -1: none. Elements of the largest unit but `except`. */
int dpt_tied_unit(const struct dpt_model *model);
int64_t dpt_largest_unit(const struct dpt_model *model, int except);

/* Places that units are gathered to one after the other: strategy.gathered_units_max, or one for
 * each unit, if that is less. A unit that others borrow from has a place of its own. */
int dpt_gathered_places(const struct dpt_config *config, const struct dpt_model *model);

/* What a vector of a rank's own part counts as. */
enum dpt_memory_tag dpt_vector_tag(enum dpt_vector vector, enum dpt_dtype dtype);

struct dpt_strategy_cost {
    int64_t gradient_bytes, sent_bytes;
    int gradient_buffers;
    int64_t packed_bytes; /* of packed weights; 0: they are not packed */
};

struct dpt_strategy;

/* DPT_ECONFIG: there is no strategy of the name that the config has. */
DPT_MUST_USE enum dpt_status dpt_strategy_create(const struct dpt_strategy_env *env,
                                                 struct dpt_strategy **ret, struct dpt_err *err);
void dpt_strategy_destroy(struct dpt_strategy **strategy);

/* The slots that plan position `position` of a world computes: by config and world alone, at
 * any time. */
struct dpt_assignment dpt_strategy_assign(const struct dpt_strategy *s,
                                          const struct dpt_world *world, int position);
/* Allocates and plans for a world, before its communicator is opened. `world` is borrowed until
 * end_generation. */
DPT_MUST_USE enum dpt_status dpt_strategy_begin_generation(struct dpt_strategy *s,
                                                           const struct dpt_world *world, int rank,
                                                           struct dpt_err *err);
/* After the communicator was closed. */
void dpt_strategy_end_generation(struct dpt_strategy *s);

/* What a step is made of in this generation. */
const struct dpt_step_list *dpt_strategy_step_list(const struct dpt_strategy *s);
void dpt_strategy_begin_step(struct dpt_strategy *s, int64_t step);
/* Fills the slot's weights, grads, accumulate and announce; what its actions gather and reserve
 * is filled in by them. */
void dpt_strategy_begin_slot(struct dpt_strategy *s, int slot_index, struct dpt_slot *slot);
/* Carries out action `action` of the list: GATHER, FREE, RESERVE or REDUCE. Waits for peers;
 * fails as await_gradient. */
DPT_MUST_USE enum dpt_status dpt_strategy_act(struct dpt_strategy *s, int action,
                                              struct dpt_slot *slot, struct dpt_err *err);
void dpt_strategy_end_slot(struct dpt_strategy *s, int slot_index);

/* An evaluation's batch, forward only, between steps: every rank of the world goes through the
 * list together, also one that has nothing to compute. begin_eval fills the slot's weights. */
const struct dpt_step_list *dpt_strategy_eval_list(const struct dpt_strategy *s);
void dpt_strategy_begin_eval(struct dpt_strategy *s, struct dpt_slot *slot);
DPT_MUST_USE enum dpt_status dpt_strategy_end_eval(struct dpt_strategy *s, struct dpt_err *err);

/* Waits until this rank, and the holder of its shadow, hold everything needed to apply the
 * step. */
DPT_MUST_USE enum dpt_status dpt_strategy_await_gradient(struct dpt_strategy *s,
                                                         struct dpt_err *err);
/* This rank's share of the squared norm of the reduced gradient: shares of all ranks merge to
 * the whole, exactly. */
DPT_MUST_USE enum dpt_status dpt_strategy_norm_share(struct dpt_strategy *s, struct dpt_accum *ret,
                                                     struct dpt_err *err);
/* Applies the step that was committed. Not called for a step that is skipped. */
DPT_MUST_USE enum dpt_status
dpt_strategy_apply(struct dpt_strategy *s, const struct dpt_optim_step *step, struct dpt_err *err);

/* True while the whole reduced gradient of `step` is held. */
bool dpt_strategy_holds_gradient(const struct dpt_strategy *s, int64_t step);
/* What is held now; and what the present generation shall hold: the same pointer when the
 * world's change does not move state, and whenever no generation wants anything else. Between
 * begin_generation and state_changed the caller fills `wanted` from what the ranks hold (or a
 * checkpoint, or the seed). A part or vector of both may be the same memory, if an element that
 * both have lies at the same place in it. */
const struct dpt_strategy_state *dpt_strategy_held(const struct dpt_strategy *s);
const struct dpt_strategy_state *dpt_strategy_wanted(const struct dpt_strategy *s);
/* Brings what `held` says to its registered memory, where a device has worked on it: before
 * that memory is read. */
DPT_MUST_USE enum dpt_status dpt_strategy_fetch_state(struct dpt_strategy *s, struct dpt_err *err);
/* `wanted` was filled, or the parameters written: it is what is held from now on, what it takes
 * the place of is freed, and what is made from the parameters is made anew before the next
 * slot. */
void dpt_strategy_state_changed(struct dpt_strategy *s);
/* Shadows after a loss.
 * Between begin_generation and state_changed: takes the shadow out of what is wanted, if it is
 * to be filled and is more than is copied while training waits (strategy.rebuild_mib). Returns
 * the shard that is left out, and comes later; of 0: none. */
struct dpt_shard dpt_strategy_defer_shadow(struct dpt_strategy *s);
/* Before the generation's first step, on all its ranks if any left its shadow out: `late` says
 * which, by rank. Some units of the state are copied in each step from here on, and what is
 * there of a shadow takes part in the steps; a step that is not applied has copied nothing. */
void dpt_strategy_rebuild(struct dpt_strategy *s, const bool *late);
/* It has not been copied whole yet. Turns false on all ranks after the same step; the shadow is
 * held from then on. */
bool dpt_strategy_rebuilding(const struct dpt_strategy *s);
/* What this generation costs the rank: bytes of gradients and in how many buffers, bytes sent
 * in a step (both stages and the all-gather), bytes of packed weights. Between begin_generation
 * and end_generation. */
void dpt_strategy_cost(const struct dpt_strategy *s, struct dpt_strategy_cost *ret);

#endif
