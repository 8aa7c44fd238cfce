/* Gradient buckets (buckets.h). */
#include "worker/plan/buckets.h"

#include "base/err.h"

int dpt_buckets_make(const int64_t *offset, int n_tensors, int64_t total, int64_t first_bytes,
                     int64_t bytes, struct dpt_bucket *ret)
{
    DPT_ASSERT(n_tensors >= 1);
    int n = 0;
    int64_t end = total;
    for (int t = n_tensors; t > 0; n++) {
        const int64_t limit = (n == 0 ? first_bytes : bytes) / (int64_t)sizeof(float);
        const int end_tensor = t;
        t--; /* at least one tensor, however large */
        DPT_ASSERT(offset[t] <= end);
        while (t > 0 && end - offset[t - 1] <= limit)
            t--;
        ret[n] = (struct dpt_bucket){.first_tensor = t,
                                     .n_tensors = end_tensor - t,
                                     .first = t == 0 ? 0 : offset[t],
                                     .end = end};
        end = ret[n].first;
    }
    return n;
}
