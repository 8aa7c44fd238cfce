/* PowerSGD (Vogels, Karimireddy, Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for
 * Distributed Optimization", NeurIPS 2019, algorithms 1 and 2), instead of an all-reduce of the
 * whole gradient.
 *
 * A matrix of n x m is sent as two factors, n x r and m x r. They are one step of a power
 * iteration, which starts from the factor of the step before (warm start). The difference between a
 * rank's gradient and the product of the factors is added to the rank's next gradient (error
 * feedback). The weight of a convolution is the matrix (output channels, all else). Vectors,
 * including running statistics, are sent uncompressed, and so are matrices whose factors would not
 * be at most half as large. Nothing is compressed before strategy.powersgd_start_step.
 *
 *   D_i = G_i + E_i          E_i: rank i's error       P = sum_i D_i Q      all-reduced
 *   P = orthonormal columns                            Q_i = D_i^T P
 *   E_i' = D_i - P Q_i^T                               Q = sum_i Q_i        all-reduced
 *   G = P Q^T, the same bits on every rank
 *
 * The result depends on the assignment of slots to ranks. A run is therefore reproducible only in a
 * fixed world, and the contract of the trajectory does not hold for it. A step that is computed but
 * not applied leaves errors and factors unchanged. A generation begins with redrawn factors, the
 * same on all ranks. A surviving rank keeps its errors if it continues at the step to which they
 * belong; the errors of a rank that was healed, joined or went back are zero. A compressed step is
 * reduced by the main thread when backward is over (dpt_reducer_finish). */
#ifndef DPT_WORKER_STRATEGY_REDUCE_POWERSGD_H
#define DPT_WORKER_STRATEGY_REDUCE_POWERSGD_H

#include "worker/strategy/reduce/reducer.h"

struct dpt_powersgd;

/* `env` is borrowed. */
DPT_MUST_USE enum dpt_status dpt_powersgd_create(const struct dpt_strategy_env *env,
                                                 struct dpt_powersgd **ret, struct dpt_err *err);
void dpt_powersgd_destroy(struct dpt_powersgd **powersgd);

/* Makes the factors and channels of a generation, whose `world` has one lane for each rank. Takes
 * *reducer, which goes on to reduce the steps that are not compressed, and replaces it with a
 * reducer that wraps it. `gradient` is the whole flat vector of this rank's own sums. */
DPT_MUST_USE enum dpt_status dpt_powersgd_begin_generation(struct dpt_powersgd *powersgd,
                                                           const struct dpt_world *world, int rank,
                                                           float *gradient,
                                                           struct dpt_reducer **reducer,
                                                           struct dpt_err *err);

/* Tells that step `step`, the last one that was reduced, was applied. May be called after the end
 * of its generation. */
void dpt_powersgd_applied(struct dpt_powersgd *powersgd, int64_t step);

#endif
