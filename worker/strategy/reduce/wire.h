/* Gradients in 16 bits on their way between hosts (strategy.compression bf16, fp16).
 *
 * What is sent has been rounded before, where it lies and in every world alike: each slot under
 * `accumulate: reduce`, each lane and each sum of the lanes' tree under `local`, and the reduced
 * gradient. So narrowing it for the way loses nothing, and the bits of a run depend on the config
 * and not on which rank sends what to which. Inside a host ranks read each other's memory, f32 as
 * it is. */
#ifndef DPT_WORKER_STRATEGY_REDUCE_WIRE_H
#define DPT_WORKER_STRATEGY_REDUCE_WIRE_H

#include "base/config.h"
#include "kernels/ops.h"

/* What gradients are rounded to; DPT_F32: they are not. */
enum dpt_dtype dpt_wire_dtype(const struct dpt_config *config);

/* Packs `n` values of `dtype` in f32 at `values` into the first half of their own memory. */
void dpt_wire_pack(const struct dpt_ops *ops, struct dpt_stream *stream, enum dpt_dtype dtype,
                   int64_t n, float *values);

/* Where `n` values that are to arrive at `values` are received: the second half of their memory; */
void *dpt_wire_inbox(int64_t n, float *values);
/* and what makes f32 of them when they have come. */
void dpt_wire_unpack(const struct dpt_ops *ops, struct dpt_stream *stream, enum dpt_dtype dtype,
                     int64_t n, float *values);

#endif
