/* Causal attention in one pass over tiles; T x T is never stored. See attention.cuh. */
#include "kernels/cuda/attention.cuh"

/* A block has TILE queries of a head and goes over the keys up to them. */
template <int HDP, int TILE>
static __global__ void __launch_bounds__(TILE_THREADS) attend(struct attention_args a)
{
    extern __shared__ float memory[];
    constexpr int R = TILE / SIDE, C = HDP / SIDE;
    float *q = memory, *kv = q + TILE * (HDP + 1), *p = kv + TILE * (HDP + 1);
    const int ty = threadIdx.x / SIDE, tx = threadIdx.x % SIDE;
    const struct head_place head = head_of(a, blockIdx.x / a.tiles);
    /* The last queries, which have most to do, first. */
    const int64_t i0 = (a.tiles - 1 - blockIdx.x % a.tiles) * TILE;
    float most[R], sum[R], o[R][C];
#pragma unroll
    for (int i = 0; i < R; i++) {
        most[i] = -3.0e38f; /* finite, so that most - most is never NaN */
        sum[i] = 0.0f;
#pragma unroll
        for (int j = 0; j < C; j++)
            o[i][j] = 0.0f;
    }
    load_tile<HDP, TILE>(a, a.qkv, head.q, a.ld, i0, a.scale, q);
    for (int64_t j0 = 0; j0 <= i0; j0 += TILE) {
        float s[R][R];
        __syncthreads(); /* the values before are no longer read */
        load_tile<HDP, TILE>(a, a.qkv, head.k, a.ld, j0, 1.0f, kv);
        __syncthreads();
        tile_products<HDP, TILE>(q, kv, s);
#pragma unroll
        for (int i = 0; i < R; i++) {
            const int64_t row = i0 + ty * R + i;
            float new_most = most[i], part = 0.0f;
#pragma unroll
            for (int j = 0; j < R; j++) {
                if (j0 + tx + SIDE * j > row)
                    s[i][j] = -INFINITY;
                new_most = fmaxf(new_most, s[i][j]);
            }
            new_most = group_max<SIDE>(new_most);
#pragma unroll
            for (int j = 0; j < R; j++) {
                s[i][j] = exp_of(s[i][j] - new_most);
                part += s[i][j];
            }
            const float factor = exp_of(most[i] - new_most);
            sum[i] = fmaf(sum[i], factor, group_sum<SIDE>(part));
            most[i] = new_most;
#pragma unroll
            for (int j = 0; j < C; j++)
                o[i][j] *= factor;
            if (a.drop.on)
#pragma unroll
                for (int j = 0; j < R; j++)
                    s[i][j] *= drop_factor(
                        a.drop, (uint64_t)((head.index * a.t + row) * a.t + j0 + tx + SIDE * j));
        }
        store_scores<TILE>(s, p);
        __syncthreads(); /* the keys are no longer read, the probabilities are there */
        load_tile<HDP, TILE>(a, a.qkv, head.v, a.ld, j0, 1.0f, kv);
        __syncthreads();
        tile_accumulate<HDP, TILE, false>(p, kv, o);
    }
    float scale[R];
#pragma unroll
    for (int i = 0; i < R; i++) {
        const int64_t row = i0 + ty * R + i;
        scale[i] = 1.0f / sum[i];
        if (tx == 0 && row < a.t)
            a.ret_lse[head.index * a.t + row] = most[i] + (float)log((double)sum[i]);
    }
    store_rows<HDP, TILE>(a, o, scale, head.y, a.ldy, i0, a.y);
}

template <int HDP, int TILE> static int post(struct attention_args *a, int64_t heads, void *queue)
{
    constexpr int bytes = tile_bytes<HDP, TILE>(2);
    static_assert(bytes <= DPT_CUDA_SHARED_BYTES_MIN, "every device has room for it");
    a->tiles = ceil_div(a->t, TILE);
    return post_tiles(attend<HDP, TILE>, a, heads, bytes, queue);
}

int dpt_launch_attention_forward(void *queue, const struct dpt_attention_forward *a)
{
    struct attention_args args = args_of(a);
    args.y = a->y;
    args.ret_lse = a->lse;
    const int64_t heads = a->b * a->heads;
    if (heads == 0 || a->t == 0)
        return 0;
    if (takes_mma(&args))
        return dpt_post_attention_mma(queue, &args, heads);
    if (args.hd <= 64)
        return post<64, 64>(&args, heads, queue);
    if (args.hd <= 128)
        return post<128, 64>(&args, heads, queue);
    return post<DPT_CUDA_HEAD_CHANNELS_MAX, 32>(&args, heads, queue);
}
