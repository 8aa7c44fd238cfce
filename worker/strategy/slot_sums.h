/* Gradients that are reduced slot by slot: every slot's goes, bucket by bucket, to the owners of
 * its pieces, who sum it into the step's sum in slot order (worker/plan/waves.h), and the sum
 * comes back to all. What lane_sums.h is to sums of lanes; for the policies of ddp (ddp_policy.h)
 * under `accumulate: reduce`, and under either order for one that reduces after every micro-batch:
 * there the sum so far comes back each time, else only that of the whole step does.
 *
 * The gradient of the present slot lies in one flat vector, which in the end holds the reduced one.
 * All by the main thread. */
#ifndef DPT_WORKER_STRATEGY_SLOT_SUMS_H
#define DPT_WORKER_STRATEGY_SLOT_SUMS_H

#include "worker/strategy/ddp_policy.h"
#include "worker/strategy/strategy.h"

struct dpt_slot_sums;

/* `env` is borrowed. */
DPT_MUST_USE enum dpt_status dpt_slot_sums_create(const struct dpt_strategy_env *env,
                                                  struct dpt_slot_sums **ret, struct dpt_err *err);
void dpt_slot_sums_destroy(struct dpt_slot_sums **sums);

/* As the strategy's functions of these names. */
struct dpt_assignment dpt_slot_sums_assign(const struct dpt_slot_sums *sums,
                                           const struct dpt_world *world, int position);
DPT_MUST_USE enum dpt_status dpt_slot_sums_begin_generation(struct dpt_slot_sums *sums,
                                                            const struct dpt_world *world, int rank,
                                                            int host, struct dpt_err *err);
void dpt_slot_sums_end_generation(struct dpt_slot_sums *sums);
void dpt_slot_sums_begin_step(struct dpt_slot_sums *sums);
/* Fills grads, accumulate and announce. Waits until the slot before has been taken. */
void dpt_slot_sums_begin_slot(struct dpt_slot_sums *sums, struct dpt_slot *slot);
/* Waits for peers where the policy does. What fails here and in an announcement, wait tells. */
void dpt_slot_sums_end_slot(struct dpt_slot_sums *sums);

/* After the last slot: waits until the reduced gradient is there. */
DPT_MUST_USE enum dpt_status dpt_slot_sums_wait(struct dpt_slot_sums *sums, struct dpt_err *err);

/* The reduced gradient at its places in the flat vector. */
float *dpt_slot_sums_gradient(const struct dpt_slot_sums *sums);

/* Gradient bytes held, in how many buffers, and bytes sent in a step. */
void dpt_slot_sums_cost(const struct dpt_slot_sums *sums, struct dpt_strategy_cost *ret);

#endif
