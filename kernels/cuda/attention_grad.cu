/* Attention's gradient without atomics, so every run gives the same bits. One kernel computes dk
 * and dv: a block has a tile of keys and loops over the later queries, one query head of these keys
 * after another. The other kernel computes dq: a block has a tile of queries and loops over the
 * earlier keys. Both compute the probabilities again from the stored log-sum-exp. See
 * attention.cuh. */
#include "kernels/cuda/attention.cuh"

enum { LANES = 32, WARPS = 4 };

/* ret (B, H, T) = sum over a head's channels of dy*y. A warp computes one sum. */
static __global__ void row_dots(struct attention_args a, int64_t n, float *ret)
{
    const int lane = threadIdx.x % LANES;
    const int64_t i = (int64_t)blockIdx.x * WARPS + threadIdx.x / LANES;
    if (i >= n)
        return;
    const struct head_place head = head_of(a, i / a.t);
    const int64_t at = head.y + i % a.t * a.ldy;
    float sum = 0.0f;
    for (int64_t j = lane; j < a.hd; j += LANES)
        sum = fmaf(element(a.dy, a.dtype, at + j), element(a.y, a.dtype, at + j), sum);
    sum = group_sum<LANES>(sum);
    if (lane == 0)
        ret[i] = sum;
}

/* Reads s = q k^T and ds = dy v^T of a tile. Writes the probabilities (after dropout) to s and the
 * gradient of the scores to ds. Both become zero above the diagonal and beyond T. */
template <int TILE>
static __device__ void
score_gradients(const struct attention_args &a, const struct head_place &head, int64_t i0,
                int64_t j0, float s[TILE / SIDE][TILE / SIDE], float ds[TILE / SIDE][TILE / SIDE])
{
    constexpr int R = TILE / SIDE;
    const int ty = threadIdx.x / SIDE, tx = threadIdx.x % SIDE;
#pragma unroll
    for (int i = 0; i < R; i++) {
        const int64_t row = i0 + ty * R + i;
        const bool there = row < a.t;
        const float lse = there ? a.lse[head.index * a.t + row] : 0.0f;
        const float dot = there ? a.dot[head.index * a.t + row] : 0.0f;
#pragma unroll
        for (int j = 0; j < R; j++) {
            const int64_t key = j0 + tx + SIDE * j;
            if (!there || key > row) {
                s[i][j] = ds[i][j] = 0.0f;
                continue;
            }
            const float probability = exp_of(s[i][j] - lse);
            const float factor = score_factor(a, {head.index, row}, key);
            ds[i][j] = probability * (ds[i][j] * factor - dot);
            s[i][j] = probability * factor;
        }
    }
}

/* Two blocks at once where a multiprocessor has enough shared memory for two: 228 KB. On other
 * devices a second block cannot run, and its registers would be missing in the first. */
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200
enum { KEYS_GRAD_64_BLOCKS = 2 };
#else
enum { KEYS_GRAD_64_BLOCKS = 1 };
#endif

template <int HDP, int TILE>
static __global__ void __launch_bounds__(TILE_THREADS, HDP == 64 ? KEYS_GRAD_64_BLOCKS : 1)
    keys_grad(struct attention_args a)
{
    extern __shared__ float memory[];
    constexpr int R = TILE / SIDE, C = HDP / SIDE, PART = TILE * (HDP + 1);
    float *k = memory, *v = k + PART, *q = v + PART, *dy = q + PART, *p = dy + PART;
    const int64_t first = blockIdx.x / a.tiles * (a.heads / a.kv_heads);
    const struct head_place keys = head_of(a, first);
    const int64_t j0 = blockIdx.x % a.tiles * TILE, tiles = a.tiles - j0 / TILE;
    float dk[R][C] = {}, dv[R][C] = {}, one[R];
#pragma unroll
    for (int i = 0; i < R; i++)
        one[i] = 1.0f;
    load_tile<HDP, TILE>(a, {a.qkv, keys.k, a.ld}, j0, 1.0f, k);
    load_tile<HDP, TILE>(a, {a.qkv, keys.v, a.ld}, j0, 1.0f, v);
    for (int64_t tile = 0; tile < tiles * (a.heads / a.kv_heads); tile++) {
        const struct head_place head = head_of(a, first + tile / tiles);
        const int64_t i0 = j0 + tile % tiles * TILE;
        float s[R][R], ds[R][R];
        __syncthreads(); /* no thread still reads the previous queries */
        load_tile<HDP, TILE>(a, {a.qkv, head.q, a.ld}, i0, a.scale, q);
        load_tile<HDP, TILE>(a, {a.dy, head.y, a.ldy}, i0, 1.0f, dy);
        __syncthreads();
        tile_products<HDP, TILE>(q, k, s);
        tile_products<HDP, TILE>(dy, v, ds);
        score_gradients<TILE>(a, head, i0, j0, s, ds);
        store_scores<TILE>(s, p);
        __syncthreads();
        tile_accumulate<HDP, TILE, true>(p, dy, dv);
        __syncthreads();
        store_scores<TILE>(ds, p);
        __syncthreads();
        tile_accumulate<HDP, TILE, true>(p, q, dk);
    }
    store_rows<HDP, TILE>(a, dk, one, {a.dqkv, keys.k, a.ld}, j0);
    store_rows<HDP, TILE>(a, dv, one, {a.dqkv, keys.v, a.ld}, j0);
}

template <int HDP, int TILE>
static __global__ void __launch_bounds__(TILE_THREADS) queries_grad(struct attention_args a)
{
    extern __shared__ float memory[];
    constexpr int R = TILE / SIDE, C = HDP / SIDE, PART = TILE * (HDP + 1);
    float *k = memory, *v = k + PART, *q = v + PART, *dy = q + PART, *p = dy + PART;
    const struct head_place head = head_of(a, blockIdx.x / a.tiles);
    const int64_t i0 = (a.tiles - 1 - blockIdx.x % a.tiles) * TILE;
    float dq[R][C] = {}, scale[R];
#pragma unroll
    for (int i = 0; i < R; i++)
        scale[i] = a.scale;
    load_tile<HDP, TILE>(a, {a.qkv, head.q, a.ld}, i0, a.scale, q);
    load_tile<HDP, TILE>(a, {a.dy, head.y, a.ldy}, i0, 1.0f, dy);
    for (int64_t j0 = 0; j0 <= i0; j0 += TILE) {
        float s[R][R], ds[R][R];
        __syncthreads(); /* no thread still reads the previous keys */
        load_tile<HDP, TILE>(a, {a.qkv, head.k, a.ld}, j0, 1.0f, k);
        load_tile<HDP, TILE>(a, {a.qkv, head.v, a.ld}, j0, 1.0f, v);
        __syncthreads();
        tile_products<HDP, TILE>(q, k, s);
        tile_products<HDP, TILE>(dy, v, ds);
        score_gradients<TILE>(a, head, i0, j0, s, ds);
        store_scores<TILE>(ds, p);
        __syncthreads();
        tile_accumulate<HDP, TILE, false>(p, k, dq);
    }
    store_rows<HDP, TILE>(a, dq, scale, {a.dqkv, head.q, a.ld}, i0);
}

template <int HDP, int TILE> static void post_grad(struct attention_args *a, int64_t b, void *queue)
{
    constexpr int bytes = tile_bytes<HDP, TILE>(4);
    a->tiles = ceil_div(a->t, TILE);
    post_tiles(keys_grad<HDP, TILE>, a, b * a->kv_heads, bytes, queue);
    post_tiles(queries_grad<HDP, TILE>, a, b * a->heads, bytes, queue);
}

/* Launches the kernels with tiles of TILE rows, or of half as many rows if the device has no room
 * for TILE. */
template <int HDP, int TILE>
static void post_fitting(struct attention_args *a, int64_t b, int shared_bytes, void *queue)
{
    if constexpr (tile_bytes<HDP, TILE>(4) > DPT_CUDA_SHARED_BYTES_MIN) {
        static_assert(tile_bytes<HDP, TILE / 2>(4) <= DPT_CUDA_SHARED_BYTES_MIN,
                      "every device has room for it");
        if (tile_bytes<HDP, TILE>(4) > shared_bytes)
            return post_grad<HDP, TILE / 2>(a, b, queue);
    }
    return post_grad<HDP, TILE>(a, b, queue);
}

int64_t dpt_launch_attention_backward_floats(int64_t b, int64_t t, int64_t heads)
{
    return b * t * heads;
}

void dpt_launch_attention_backward(void *queue, const struct dpt_attention *a, float *work,
                                   int shared_bytes)
{
    struct attention_args args = args_of(a);
    args.dot = work;
    const int64_t rows = a->b * a->heads * a->t;
    if (rows == 0)
        return;
    row_dots<<<(unsigned)ceil_div(rows, WARPS), WARPS * LANES, 0, (cudaStream_t)queue>>>(args, rows,
                                                                                         work);
    if (takes_mma(&args))
        dpt_post_attention_mma_grad(queue, &args, a->b);
    else if (args.hd <= 64)
        post_fitting<64, 64>(&args, a->b, shared_bytes, queue);
    else if (args.hd <= 128)
        post_fitting<128, 64>(&args, a->b, shared_bytes, queue);
    else
        post_fitting<DPT_CUDA_HEAD_CHANNELS_MAX, 32>(&args, a->b, shared_bytes, queue);
}

template <typename E> static __global__ void head_sums(struct dpt_launch_head_sums a)
{
    const int64_t width = a.kv_heads * a.head_size;
    GRID_LOOP(i, a.rows * width) {
        const int64_t row = i / width, head = i % width / a.head_size, j = i % a.head_size;
        const E *from = (const E *)a.from + (row * width + head * a.head_size) * a.group + j;
        float sum = 0.0f;
        for (int64_t g = 0; g < a.group; g++)
            sum += widened(from[g * a.head_size]);
        ((E *)a.to)[row * a.ld + i % width] = rounded<E>(sum);
    }
}

void dpt_launch_head_sums(void *queue, const struct dpt_launch_head_sums *a)
{
    enum { THREADS = 256 };
    const int64_t n = a->rows * a->kv_heads * a->head_size;
    FOR_ELEM(a->dtype, POST(head_sums<E>, n, *a));
}
