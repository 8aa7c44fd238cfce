/* PowerSGD (Vogels, Karimireddy, Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for
 * Distributed Optimization", NeurIPS 2019, algorithms 1 and 2), instead of an all-reduce of the
 * whole gradient.
 *
 * A matrix of n x m is sent as the product of n x r and m x r: one step of a power iteration, which
 * goes on from the factor of the step before (warm start). What the product lacks of a rank's own
 * gradient is added to its next one (error feedback). The weight of a convolution is the matrix
 * (output channels, all else). Vectors, running statistics among them, and matrices that would not
 * become half as large at least, travel as they are. Until strategy.powersgd_start_step nothing is
 * compressed.
 *
 *   D_i = G_i + E_i          E_i: rank i's error       P = sum_i D_i Q      all-reduced
 *   P = orthonormal columns                            Q_i = D_i^T P
 *   E_i' = D_i - P Q_i^T                               Q = sum_i Q_i        all-reduced
 *   G = P Q^T, the same bits on every rank
 *
 * The result depends on how slots are assigned to ranks: a run is reproducible in a fixed world,
 * and outside the trajectory's contract. A step that is computed but not applied leaves errors and
 * factors as they were. A generation begins with factors drawn anew, the same on all ranks; errors
 * stay with the ranks that live on at the step they belong to, and are zero on those that were
 * healed, joined or went back. By the main thread; blocking. */
#ifndef DPT_WORKER_STRATEGY_POWERSGD_H
#define DPT_WORKER_STRATEGY_POWERSGD_H

#include "worker/strategy/strategy.h"

struct dpt_powersgd;

/* `env` is borrowed. */
DPT_MUST_USE enum dpt_status dpt_powersgd_create(const struct dpt_strategy_env *env,
                                                 struct dpt_powersgd **ret, struct dpt_err *err);
void dpt_powersgd_destroy(struct dpt_powersgd **powersgd);

/* As the strategy's functions of these names. `world` has a lane for each rank. */
DPT_MUST_USE enum dpt_status dpt_powersgd_begin_generation(struct dpt_powersgd *powersgd,
                                                           const struct dpt_world *world, int rank,
                                                           int host, struct dpt_err *err);
void dpt_powersgd_end_generation(struct dpt_powersgd *powersgd);

/* Whether step `step` is compressed. */
bool dpt_powersgd_is_due(const struct dpt_powersgd *powersgd, int64_t step);

/* `gradient`, the whole flat vector of this rank's own, becomes that of all. Errors as the
 * communicator's. */
DPT_MUST_USE enum dpt_status dpt_powersgd_reduce(struct dpt_powersgd *powersgd, int64_t step,
                                                 float *gradient, struct dpt_err *err);
/* The step that was reduced last was applied. */
void dpt_powersgd_applied(struct dpt_powersgd *powersgd, int64_t step);

/* Bytes that this rank sends in a compressed step, and holds beside the gradient. */
void dpt_powersgd_cost(const struct dpt_powersgd *powersgd, struct dpt_strategy_cost *ret);

#endif
