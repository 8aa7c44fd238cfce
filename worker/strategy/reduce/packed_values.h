/* Gradients in 16 bits between hosts (strategy.compression bf16, fp16).
 *
 * Values are rounded in memory before they are sent, in every world alike. Under `accumulate:
 * reduce` each slot is rounded, under `local` each lane and each sum of the lanes' tree; the
 * reduced gradient is always rounded. So packing loses nothing, and the bits of a run depend on the
 * config, not on the transfers. Inside a host ranks read each other's f32 memory. */
#ifndef DPT_WORKER_STRATEGY_REDUCE_PACKED_VALUES_H
#define DPT_WORKER_STRATEGY_REDUCE_PACKED_VALUES_H

#include "kernels/ops.h"

/* Packs `n` values of `dtype` in f32 at `values` into the first half of their own memory. */
void dpt_wire_pack(const struct dpt_ops *ops, struct dpt_stream *stream, enum dpt_dtype dtype,
                   int64_t n, float *values);

/* The place that receives `n` packed values for `values`: the second half of their memory. */
void *dpt_wire_inbox(int64_t n, float *values);
/* Unpacks `n` received values to f32. */
void dpt_wire_unpack(const struct dpt_ops *ops, struct dpt_stream *stream, enum dpt_dtype dtype,
                     int64_t n, float *values);

#endif
