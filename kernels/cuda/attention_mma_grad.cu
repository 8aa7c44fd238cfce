/* Attention's gradient on tensor cores, without atomics. As in attention_grad.cu, one kernel
 * computes dk and dv and another dq. See attention_mma.cuh. */
#include "kernels/cuda/attention_mma.cuh"

/* A query of a head, and its log-sum-exp and sum of dy*y. */
struct query_row {
    query_place place;
    float lse, dot;
};

/* Reads *s = q k^T and *ds = dy v^T of one score. Writes its probability (after dropout) to *s and
 * its gradient to *ds. */
static __device__ inline void score_gradient(const attention_args &a, const query_row &row,
                                             int64_t key, float *s, float *ds)
{
    if (row.place.at >= a.t || key > row.place.at) {
        *s = *ds = 0.0f;
        return;
    }
    const float probability = exp_of(a.scale * *s - row.lse);
    const float factor = score_factor(a, row.place, key);
    *s = probability * factor;
    *ds = probability * (*ds * factor - row.dot);
}

/* A block has 64 keys. It loops over the later queries, one query head of the keys' group after
 * another. Products are transposed: their rows are keys. */
template <typename E, int HD>
static __global__ void __launch_bounds__(MMA_THREADS) keys_grad_mma(attention_args a)
{
    extern __shared__ four_words memory[];
    constexpr int CHANNELS = HD / MMA_N;
    uint32_t *q = (uint32_t *)memory, *dy = q + tile_words<HD>;
    float *lse = (float *)(dy + tile_words<HD>), *dot = lse + MMA_TILE;
    const int64_t first = blockIdx.x / a.tiles * (a.heads / a.kv_heads);
    const head_place keys = head_of(a, first);
    const int64_t j0 = blockIdx.x % a.tiles * MMA_TILE, tiles = a.tiles - j0 / MMA_TILE;
    const int64_t key = j0 + warp_row() + lane_row(); /* the first of two, the second is 8 on */
    uint32_t k[HD / MMA_K][4], v[HD / MMA_K][4];
    float dk[CHANNELS][4] = {}, dv[CHANNELS][4] = {};
    load_words<HD>(a, {a.qkv, keys.k, a.ld}, j0, q);
    load_words<HD>(a, {a.qkv, keys.v, a.ld}, j0, dy);
    __syncthreads();
    left_operands<HD>(q, k);
    left_operands<HD>(dy, v);
    for (int64_t tile = 0; tile < tiles * (a.heads / a.kv_heads); tile++) {
        const head_place head = head_of(a, first + tile / tiles);
        const int64_t i0 = j0 + tile % tiles * MMA_TILE;
        __syncthreads(); /* the tiles before are no longer read */
        load_words<HD>(a, {a.qkv, head.q, a.ld}, i0, q);
        load_words<HD>(a, {a.dy, head.y, a.ldy}, i0, dy);
        if (threadIdx.x < MMA_TILE) {
            const bool there = i0 + threadIdx.x < a.t;
            const int64_t at = head.index * a.t + i0 + threadIdx.x;
            lse[threadIdx.x] = there ? a.lse[at] : 0.0f;
            dot[threadIdx.x] = there ? a.dot[at] : 0.0f;
        }
        __syncthreads();
#pragma unroll 1
        for (int n = 0; n < MMA_TILE; n += MMA_K) { /* queries */
            float s[2][4] = {}, ds[2][4] = {};
#pragma unroll
            for (int part = 0; part < 2; part++) {
                multiply_rows<E, HD>(s[part], k, q, n + part * MMA_N);
                multiply_rows<E, HD>(ds[part], v, dy, n + part * MMA_N);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int column = n + part * MMA_N + 2 * lane_pair() + i % 2;
                    const query_row row = {{head.index, i0 + column}, lse[column], dot[column]};
                    score_gradient(a, row, key + i / 2 * 8, &s[part][i], &ds[part][i]);
                }
            }
            uint32_t left[4];
            left_of<E>(s[0], s[1], left);
            multiply_columns<E, HD>(dv, left, dy, n);
            left_of<E>(ds[0], ds[1], left);
            multiply_columns<E, HD>(dk, left, q, n);
        }
    }
    const float one[2] = {1.0f, 1.0f}, scale[2] = {a.scale, a.scale};
    store_products<E, HD>(a, dk, scale, {a.dqkv, keys.k, a.ld}, j0);
    store_products<E, HD>(a, dv, one, {a.dqkv, keys.v, a.ld}, j0);
}

/* A block has 64 queries and loops over the keys up to its last query. The launch bounds allow four
 * blocks at once on a multiprocessor for 64 channels, else two. */
template <typename E, int HD>
static __global__ void __launch_bounds__(MMA_THREADS, HD == 64 ? 4 : 2)
    queries_grad_mma(attention_args a)
{
    extern __shared__ four_words memory[];
    uint32_t *k = (uint32_t *)memory, *v = k + tile_words<HD>;
    const head_place head = head_of(a, blockIdx.x / a.tiles);
    const int64_t i0 = (a.tiles - 1 - blockIdx.x % a.tiles) * MMA_TILE;
    const int64_t query = i0 + warp_row() + lane_row(); /* the first of two, the second is 8 on */
    uint32_t q[HD / MMA_K][4], dy[HD / MMA_K][4];
    float dq[HD / MMA_N][4] = {}, lse[2], dot[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const bool there = query + 8 * half < a.t;
        const int64_t at = head.index * a.t + query + 8 * half;
        lse[half] = there ? a.lse[at] : 0.0f;
        dot[half] = there ? a.dot[at] : 0.0f;
    }
    load_words<HD>(a, {a.qkv, head.q, a.ld}, i0, k);
    load_words<HD>(a, {a.dy, head.y, a.ldy}, i0, v);
    __syncthreads();
    left_operands<HD>(k, q);
    left_operands<HD>(v, dy);
    for (int64_t j0 = 0; j0 <= i0; j0 += MMA_TILE) {
        __syncthreads(); /* the tiles before are no longer read */
        load_words<HD>(a, {a.qkv, head.k, a.ld}, j0, k);
        load_words<HD>(a, {a.qkv, head.v, a.ld}, j0, v);
        __syncthreads();
#pragma unroll 1
        for (int n = 0; n < MMA_TILE; n += MMA_K) { /* keys */
            float s[2][4] = {}, ds[2][4] = {};
#pragma unroll
            for (int part = 0; part < 2; part++) {
                multiply_rows<E, HD>(s[part], q, k, n + part * MMA_N);
                multiply_rows<E, HD>(ds[part], dy, v, n + part * MMA_N);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int64_t key = j0 + n + part * MMA_N + 2 * lane_pair() + i % 2;
                    const query_row row = {{head.index, query + i / 2 * 8}, lse[i / 2], dot[i / 2]};
                    score_gradient(a, row, key, &s[part][i], &ds[part][i]);
                }
            }
            uint32_t left[4];
            left_of<E>(ds[0], ds[1], left);
            multiply_columns<E, HD>(dq, left, k, n);
        }
    }
    const float scale[2] = {a.scale, a.scale};
    store_products<E, HD>(a, dq, scale, {a.dqkv, head.q, a.ld}, i0);
}

template <typename E, int HD> static void post_mma_grad(void *queue, attention_args *a, int64_t b)
{
    constexpr int words = 2 * tile_words<HD>;
    a->tiles = ceil_div(a->t, MMA_TILE);
    post_words(keys_grad_mma<E, HD>, a, b * a->kv_heads, words + 2 * MMA_TILE, queue);
    post_words(queries_grad_mma<E, HD>, a, b * a->heads, words, queue);
}

void dpt_post_attention_mma_grad(void *queue, attention_args *a, int64_t b)
{
    if (a->hd == 64)
        (a->dtype == DPT_BF16 ? post_mma_grad<bf16, 64> : post_mma_grad<f16, 64>)(queue, a, b);
    else
        (a->dtype == DPT_BF16 ? post_mma_grad<bf16, 128> : post_mma_grad<f16, 128>)(queue, a, b);
}
