/* Causal attention on tensor cores. See attention_mma.cuh. */
#include "kernels/cuda/attention_mma.cuh"

/* A block has 64 queries of a head and goes over the keys up to them. */
template <typename E, int HD>
static __global__ void __launch_bounds__(MMA_THREADS) attend_mma(attention_args a)
{
    extern __shared__ four_words memory[];
    constexpr int KEYS = MMA_TILE / MMA_N, CHANNELS = HD / MMA_N;
    uint32_t *k = (uint32_t *)memory, *v = k + tile_words<HD>;
    const head_place head = head_of(a, blockIdx.x / a.tiles);
    /* The last queries, which have most to do, first. */
    const int64_t i0 = (a.tiles - 1 - blockIdx.x % a.tiles) * MMA_TILE;
    const int64_t row = i0 + warp_row() + lane_row(); /* and 8 on */
    uint32_t q[HD / MMA_K][4];
    float most[2], sum[2] = {}, o[CHANNELS][4] = {};
    most[0] = most[1] = -3.0e38f; /* finite, so that most - most is never NaN */
    load_words<HD>(a, a.qkv, head.q, a.ld, i0, k);
    __syncthreads();
    left_operands<HD>(k, q);
    for (int64_t j0 = 0; j0 <= i0; j0 += MMA_TILE) {
        float s[KEYS][4] = {};
        __syncthreads(); /* what was there is no longer read */
        load_words<HD>(a, a.qkv, head.k, a.ld, j0, k);
        load_words<HD>(a, a.qkv, head.v, a.ld, j0, v);
        __syncthreads();
#pragma unroll
        for (int n = 0; n < KEYS; n++)
            multiply_rows<E, HD>(s[n], q, k, n * MMA_N);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int64_t query = row + 8 * half;
            float new_most = most[half], part = 0.0f;
#pragma unroll
            for (int i = 0; i < 2 * KEYS; i++) {
                float *score = &s[i / 2][2 * half + i % 2];
                const int64_t key = j0 + i / 2 * MMA_N + 2 * lane_pair() + i % 2;
                *score = key > query ? -INFINITY : a.scale * *score;
                new_most = fmaxf(new_most, *score);
            }
            new_most = group_max<4>(new_most);
#pragma unroll
            for (int i = 0; i < 2 * KEYS; i++) {
                float *score = &s[i / 2][2 * half + i % 2];
                *score = exp_of(*score - new_most);
                part += *score;
            }
            const float factor = exp_of(most[half] - new_most);
            sum[half] = fmaf(sum[half], factor, group_sum<4>(part));
            most[half] = new_most;
#pragma unroll
            for (int i = 0; i < 2 * CHANNELS; i++)
                o[i / 2][2 * half + i % 2] *= factor;
            if (a.drop.on)
#pragma unroll
                for (int i = 0; i < 2 * KEYS; i++) {
                    const int64_t key = j0 + i / 2 * MMA_N + 2 * lane_pair() + i % 2;
                    s[i / 2][2 * half + i % 2] *=
                        drop_factor(a.drop, (uint64_t)((head.index * a.t + query) * a.t + key));
                }
        }
#pragma unroll
        for (int n = 0; n < KEYS; n += 2) {
            uint32_t p[4];
            left_of<E>(s[n], s[n + 1], p);
            multiply_columns<E, HD>(o, p, v, n * MMA_N);
        }
    }
    const float scale[2] = {1.0f / sum[0], 1.0f / sum[1]};
#pragma unroll
    for (int half = 0; half < 2; half++)
        if (lane_pair() == 0 && row + 8 * half < a.t)
            a.ret_lse[head.index * a.t + row + 8 * half] =
                most[half] + (float)log((double)sum[half]);
    store_products<E, HD>(a, o, scale, head.y, a.ldy, i0, a.y);
}

template <typename E> static int post(void *queue, attention_args *a, int64_t heads)
{
    a->tiles = ceil_div(a->t, MMA_TILE);
    return a->hd == 64 ? post_words(attend_mma<E, 64>, a, heads, 2 * tile_words<64>, queue)
                       : post_words(attend_mma<E, 128>, a, heads, 2 * tile_words<128>, queue);
}

int dpt_post_attention_mma(void *queue, attention_args *a, int64_t heads)
{
    return a->dtype == DPT_BF16 ? post<bf16>(queue, a, heads) : post<f16>(queue, a, heads);
}
