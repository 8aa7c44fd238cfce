/* Carries out the sum steps of a wave (worker/plan/waves.h) on elements of a piece. */
#ifndef DPT_WORKER_STRATEGY_REDUCE_WAVE_SUM_H
#define DPT_WORKER_STRATEGY_REDUCE_WAVE_SUM_H

#include "kernels/ops.h"
#include "worker/plan/waves.h"

#include <stdbool.h>

enum { DPT_WAVE_SUM_CHUNK = 4096 };

struct dpt_wave_sum {
    const struct dpt_sum_step *steps;
    int n;
    float *const *sums;               /* of `numel` elements each */
    const void *const *contributions; /* by member; `numel` f32 elements each */
    /* By member: the contribution is in `wire`, not f32; NULL: all are f32. */
    const bool *narrow;
    enum dpt_dtype wire; /* sums of lanes are rounded to this (packed_values.h) */
    bool last;           /* the last wave: sum 0 is also rounded */
    int64_t numel;
    /* Elements that are added at a time, so that the sums stay in the caches. On a device: all. */
    int64_t chunk;
    float *wide; /* with `narrow`: memory of the stream's device for one widened chunk */
};

void dpt_wave_sum_add(const struct dpt_ops *ops, struct dpt_stream *stream,
                      const struct dpt_wave_sum *wave);

#endif
