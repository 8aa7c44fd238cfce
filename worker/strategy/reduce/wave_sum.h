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
    const void *const *contributions; /* by member, likewise: f32, */
    const bool *narrow;               /* or in `wire` where this says so; NULL: nowhere */
    enum dpt_dtype wire;              /* what sums of lanes are rounded to (wire.h), */
    bool last;                        /* and with the last wave sum 0 */
    int64_t numel;
    /* So many are gone through at a time that the sums stay in the caches while one after the other
     * is added; on a device all at once. */
    int64_t chunk;
    float *wide; /* with `narrow`: memory of the stream's device for a chunk */
};

void dpt_wave_sum_add(const struct dpt_ops *ops, struct dpt_stream *stream,
                      const struct dpt_wave_sum *wave);

#endif
