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
 * healed, joined or went back. A compressed step is reduced by the main thread when backward is
 * over (dpt_reducer_finish). */
#ifndef DPT_WORKER_STRATEGY_REDUCE_POWERSGD_H
#define DPT_WORKER_STRATEGY_REDUCE_POWERSGD_H

#include "worker/strategy/reduce/reducer.h"

struct dpt_powersgd;

/* `env` is borrowed. */
DPT_MUST_USE enum dpt_status dpt_powersgd_create(const struct dpt_strategy_env *env,
                                                 struct dpt_powersgd **ret, struct dpt_err *err);
void dpt_powersgd_destroy(struct dpt_powersgd **powersgd);

/* Factors and channels of a generation, whose `world` has a lane for each rank. Takes *reducer,
 * that of the steps that are not compressed, and puts one over it in its place; `gradient` is the
 * whole flat vector of this rank's own sums. */
DPT_MUST_USE enum dpt_status dpt_powersgd_begin_generation(struct dpt_powersgd *powersgd,
                                                           const struct dpt_world *world, int rank,
                                                           float *gradient,
                                                           struct dpt_reducer **reducer,
                                                           struct dpt_err *err);

/* Step `step`, which was reduced last, was applied. Also after its generation. */
void dpt_powersgd_applied(struct dpt_powersgd *powersgd, int64_t step);

#endif
