/* The weights hash (checkpoint.h): h <- XXH3-128(h, XXH3-128(block)), block by block. */
#include "checkpoint/checkpoint.h"

struct dpt_hash128 dpt_weights_hash_add(struct dpt_hash128 so_far, const float *values, int64_t n)
{
    struct dpt_hash128 h = so_far;
    for (int64_t at = 0; at < n; at += DPT_WEIGHTS_HASH_BLOCK) {
        const int64_t some = n - at < DPT_WEIGHTS_HASH_BLOCK ? n - at : DPT_WEIGHTS_HASH_BLOCK;
        h = dpt_hash128_join(h, dpt_hash128(values + at, (size_t)some * sizeof *values));
    }
    return h;
}

int64_t dpt_checkpoint_numel(const struct dpt_checkpoint_tensor *tensor)
{
    int64_t numel = 1;
    for (int d = 0; d < tensor->ndim; d++)
        numel *= tensor->dim[d];
    return numel;
}

struct dpt_hash128 dpt_weights_hash(const struct dpt_checkpoint_tensor *tensors, int n_tensors)
{
    struct dpt_hash128 h = {0, 0};
    for (int i = 0; i < n_tensors; i++)
        h = dpt_weights_hash_add(h, tensors[i].param, dpt_checkpoint_numel(&tensors[i]));
    return h;
}
