/* Causal attention on tensor cores. See attention_mma.cuh. */
#include "kernels/cuda/attention_mma.cuh"

enum { KEYS = MMA_TILE / MMA_N };

/* Replaces the scores of one of a lane's two queries with the lane's keys from j0 on by exp(score -
 * most), after dropout. Returns the factor by which all earlier sums must be multiplied. */
static __device__ inline float softmax_half(const attention_args &a, const query_place &query,
                                            int64_t j0, int half, float s[KEYS][4],
                                            softmax_state *state)
{
    float most = state->most, part = 0.0f;
#pragma unroll
    for (int i = 0; i < 2 * KEYS; i++) {
        float *score = &s[i / 2][2 * half + i % 2];
        const int64_t key = j0 + i / 2 * MMA_N + 2 * lane_pair() + i % 2;
        *score = key > query.at ? -INFINITY : a.scale * *score;
        most = fmaxf(most, *score);
    }
    most = group_max<4>(most);
#pragma unroll
    for (int i = 0; i < 2 * KEYS; i++) {
        float *score = &s[i / 2][2 * half + i % 2];
        *score = exp_of(*score - most);
        part += *score;
    }
    const float factor = exp_of(state->most - most);
    state->sum = fmaf(state->sum, factor, group_sum<4>(part));
    state->most = most;
    if (a.drop.on)
#pragma unroll
        for (int i = 0; i < 2 * KEYS; i++)
            s[i / 2][2 * half + i % 2] *=
                score_factor(a, query, j0 + i / 2 * MMA_N + 2 * lane_pair() + i % 2);
    return factor;
}

/* A block computes 64 queries of a head. It loops over the keys up to its last query. */
template <typename E, int HD>
static __global__ void __launch_bounds__(MMA_THREADS) attend_mma(attention_args a)
{
    extern __shared__ four_words memory[];
    constexpr int CHANNELS = HD / MMA_N;
    uint32_t *k = (uint32_t *)memory, *v = k + tile_words<HD>;
    const head_place head = head_of(a, blockIdx.x / a.tiles);
    /* The last queries come first, because they have the most keys. */
    const int64_t i0 = (a.tiles - 1 - blockIdx.x % a.tiles) * MMA_TILE;
    /* the lane's first row; its second is row + 8 */
    const int64_t row = i0 + warp_row() + lane_row();
    uint32_t q[HD / MMA_K][4];
    softmax_state state[2] = {softmax_begin(), softmax_begin()};
    float o[CHANNELS][4] = {};
    load_words<HD>(a, {a.qkv, head.q, a.ld}, i0, k);
    __syncthreads();
    left_operands<HD>(k, q);
    for (int64_t j0 = 0; j0 <= i0; j0 += MMA_TILE) {
        float s[KEYS][4] = {};
        __syncthreads(); /* no thread still reads the previous tiles */
        load_words<HD>(a, {a.qkv, head.k, a.ld}, j0, k);
        load_words<HD>(a, {a.qkv, head.v, a.ld}, j0, v);
        __syncthreads();
#pragma unroll
        for (int n = 0; n < KEYS; n++)
            multiply_rows<E, HD>(s[n], q, k, n * MMA_N);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float factor =
                softmax_half(a, {head.index, row + 8 * half}, j0, half, s, &state[half]);
#pragma unroll
            for (int i = 0; i < 2 * CHANNELS; i++)
                o[i / 2][2 * half + i % 2] *= factor;
        }
#pragma unroll
        for (int n = 0; n < KEYS; n += 2) {
            uint32_t p[4];
            left_of<E>(s[n], s[n + 1], p);
            multiply_columns<E, HD>(o, p, v, n * MMA_N);
        }
    }
    const float scale[2] = {1.0f / state[0].sum, 1.0f / state[1].sum};
#pragma unroll
    for (int half = 0; half < 2; half++)
        if (lane_pair() == 0 && row + 8 * half < a.t)
            a.lse[head.index * a.t + row + 8 * half] =
                state[half].most + (float)log((double)state[half].sum);
    store_products<E, HD>(a, o, scale, {a.y, head.y, a.ldy}, i0);
}

template <typename E> static void post_mma(void *queue, attention_args *a, int64_t heads)
{
    a->tiles = ceil_div(a->t, MMA_TILE);
    if (a->hd == 64)
        post_words(attend_mma<E, 64>, a, heads, 2 * tile_words<64>, queue);
    else
        post_words(attend_mma<E, 128>, a, heads, 2 * tile_words<128>, queue);
}

void dpt_post_attention_mma(void *queue, attention_args *a, int64_t heads)
{
    (a->dtype == DPT_BF16 ? post_mma<bf16> : post_mma<f16>)(queue, a, heads);
}
