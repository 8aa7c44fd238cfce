/* Causal attention in one pass over tiles; T x T is never stored. See attention.cuh. */
#include "kernels/cuda/attention.cuh"

/* Replaces the scores of a query with the thread's keys from j0 on by exp(score - most), after
 * dropout. Returns the factor by which all earlier sums must be multiplied. */
template <int R>
static __device__ inline float softmax_row(const struct attention_args &a,
                                           const struct query_place &query, int64_t j0, float s[R],
                                           struct softmax_state *state)
{
    const int tx = threadIdx.x % SIDE;
    float most = state->most, part = 0.0f;
#pragma unroll
    for (int j = 0; j < R; j++) {
        if (j0 + tx + SIDE * j > query.at)
            s[j] = -INFINITY;
        most = fmaxf(most, s[j]);
    }
    most = group_max<SIDE>(most);
#pragma unroll
    for (int j = 0; j < R; j++) {
        s[j] = exp_of(s[j] - most);
        part += s[j];
    }
    const float factor = exp_of(state->most - most);
    state->sum = fmaf(state->sum, factor, group_sum<SIDE>(part));
    state->most = most;
    if (a.drop.on)
#pragma unroll
        for (int j = 0; j < R; j++)
            s[j] *= score_factor(a, query, j0 + tx + SIDE * j);
    return factor;
}

/* A block computes TILE queries of a head. It loops over the keys up to its last query. */
template <int HDP, int TILE>
static __global__ void __launch_bounds__(TILE_THREADS) attend(struct attention_args a)
{
    extern __shared__ float memory[];
    constexpr int R = TILE / SIDE, C = HDP / SIDE;
    float *q = memory, *kv = q + TILE * (HDP + 1), *p = kv + TILE * (HDP + 1);
    const int ty = threadIdx.x / SIDE, tx = threadIdx.x % SIDE;
    const struct head_place head = head_of(a, blockIdx.x / a.tiles);
    /* The last queries come first, because they have the most keys. */
    const int64_t i0 = (a.tiles - 1 - blockIdx.x % a.tiles) * TILE;
    struct softmax_state state[R];
    float o[R][C] = {};
#pragma unroll
    for (int i = 0; i < R; i++)
        state[i] = softmax_begin();
    load_tile<HDP, TILE>(a, {a.qkv, head.q, a.ld}, i0, a.scale, q);
    for (int64_t j0 = 0; j0 <= i0; j0 += TILE) {
        float s[R][R];
        __syncthreads(); /* no thread still reads the previous values */
        load_tile<HDP, TILE>(a, {a.qkv, head.k, a.ld}, j0, 1.0f, kv);
        __syncthreads();
        tile_products<HDP, TILE>(q, kv, s);
#pragma unroll
        for (int i = 0; i < R; i++) {
            const float factor =
                softmax_row<R>(a, {head.index, i0 + ty * R + i}, j0, s[i], &state[i]);
#pragma unroll
            for (int j = 0; j < C; j++)
                o[i][j] *= factor;
        }
        store_scores<TILE>(s, p);
        __syncthreads(); /* no thread still reads the keys, and all probabilities are written */
        load_tile<HDP, TILE>(a, {a.qkv, head.v, a.ld}, j0, 1.0f, kv);
        __syncthreads();
        tile_accumulate<HDP, TILE, false>(p, kv, o);
    }
    float scale[R];
#pragma unroll
    for (int i = 0; i < R; i++) {
        const int64_t row = i0 + ty * R + i;
        scale[i] = 1.0f / state[i].sum;
        if (tx == 0 && row < a.t)
            a.lse[head.index * a.t + row] = state[i].most + (float)log((double)state[i].sum);
    }
    store_rows<HDP, TILE>(a, o, scale, {a.y, head.y, a.ldy}, i0);
}

template <int HDP, int TILE>
static void post_attend(struct attention_args *a, int64_t heads, void *queue)
{
    constexpr int bytes = tile_bytes<HDP, TILE>(2);
    static_assert(bytes <= DPT_CUDA_SHARED_BYTES_MIN, "every device has room for it");
    a->tiles = ceil_div(a->t, TILE);
    post_tiles(attend<HDP, TILE>, a, heads, bytes, queue);
}

void dpt_launch_attention_forward(void *queue, const struct dpt_attention *a)
{
    struct attention_args args = args_of(a);
    const int64_t heads = a->b * a->heads;
    if (heads == 0 || a->t == 0)
        return;
    if (takes_mma(&args))
        dpt_post_attention_mma(queue, &args, heads);
    else if (args.hd <= 64)
        post_attend<64, 64>(&args, heads, queue);
    else if (args.hd <= 128)
        post_attend<128, 64>(&args, heads, queue);
    else
        post_attend<DPT_CUDA_HEAD_CHANNELS_MAX, 32>(&args, heads, queue);
}
