/* Tiles of attention, forward and backward (Dao et al. 2022, "FlashAttention", algorithms 1 and 4),
 * for the shapes that tensor cores do not take (attention_mma.cuh).
 *
 * A block of 256 threads, 16 x 16, works on tiles of TILE rows by HDP channels in shared memory.
 * TILE is 64, or less if there is no room for 64 rows (docs/gpu.md has the sizes). Heads are padded
 * to HDP channels with zeros. Thread (ty, tx) has the scores of queries ty*R + i and keys tx +
 * 16*j, and rows ty*R + i and channels tx + 16*j of a result. Shared memory is f32 for every
 * element type. Rows are PITCH floats apart, an odd number, so that no two threads of a warp use
 * the same bank. */
#ifndef DPT_KERNELS_CUDA_ATTENTION_CUH
#define DPT_KERNELS_CUDA_ATTENTION_CUH

#include "kernels/cuda/elem.cuh"
#include "kernels/cuda/launch.h"

enum { SIDE = 16, TILE_THREADS = SIDE * SIDE };

/* The numbers of one call. Rows of q, k, v, dq, dk, dv are `ld` elements apart, rows of y and dy
 * `ldy`. */
struct attention_args {
    int64_t t, heads, kv_heads, hd, tiles; /* tiles of a head */
    int64_t ld, ldy;
    enum dpt_dtype dtype;
    struct drop drop;
    float scale; /* 1/sqrt(hd) */
    const void *qkv, *dy;
    void *y, *dqkv;
    float *lse;       /* (B, H, T) */
    const float *dot; /* (B, H, T): sums of dy*y */
};

/* A query head of a sample: its index, and the first elements of its rows. k and v are those of its
 * key and value head. */
struct head_place {
    int64_t index, q, k, v, y;
};

static __device__ inline struct head_place head_of(const struct attention_args &a, int64_t index)
{
    const int64_t b = index / a.heads, h = index % a.heads;
    const int64_t q = b * a.t * a.ld + h * a.hd;
    const int64_t k = b * a.t * a.ld + (a.heads + h / (a.heads / a.kv_heads)) * a.hd;
    return {index, q, k, k + a.kv_heads * a.hd, b * a.t * a.ldy + h * a.hd};
}

/* Query `at` of head `head`, counted over the heads of all samples. */
struct query_place {
    int64_t head, at;
};

/* The factor of dropout for a query's score with a key. */
static __device__ inline float score_factor(const struct attention_args &a,
                                            const struct query_place &query, int64_t key)
{
    return a.drop.on ? drop_factor(a.drop, (uint64_t)((query.head * a.t + query.at) * a.t + key))
                     : 1.0f;
}

/* The greatest of a query's scores so far, and the sum of exp(score - most). `most` is finite, so
 * that most - most is never NaN. */
struct softmax_state {
    float most, sum;
};
static __device__ inline struct softmax_state softmax_begin(void)
{
    return {-3.0e38f, 0.0f};
}

static inline struct attention_args args_of(const struct dpt_attention *op)
{
    struct attention_args a = {};
    a.t = op->t;
    a.heads = op->heads;
    a.kv_heads = op->kv_heads;
    a.hd = op->head_size;
    a.ld = (op->heads + 2 * op->kv_heads) * op->head_size;
    a.ldy = op->heads * op->head_size;
    a.dtype = op->dtype;
    a.drop = drop_of(&op->dropout);
    a.scale = 1.0f / sqrtf((float)a.hd);
    a.qkv = op->qkv;
    a.y = op->y;
    a.lse = op->lse;
    a.dy = op->dy;
    a.dqkv = op->dqkv;
    return a;
}

/* The rows of a head. Element (r, j) is x[first + r*ld + j]. */
struct rows_in {
    const void *x;
    int64_t first, ld;
};
struct rows_out {
    void *x;
    int64_t first, ld;
};

/* to (TILE, PITCH) = scale * the rows of x from `row` on. */
template <int HDP, int TILE>
static __device__ inline void load_tile(const struct attention_args &a, const struct rows_in &x,
                                        int64_t row, float scale, float *to)
{
    for (int i = threadIdx.x; i < TILE * HDP; i += TILE_THREADS) {
        const int r = i / HDP, j = i % HDP;
        const bool there = row + r < a.t && j < a.hd;
        to[r * (HDP + 1) + j] =
            there ? scale * element(x.x, a.dtype, x.first + (row + r) * x.ld + j) : 0.0f;
    }
}

/* s[i][j] = the dot product of row ty*R+i of q and row tx+16j of k. */
template <int HDP, int TILE>
static __device__ inline void tile_products(const float *q, const float *k,
                                            float s[TILE / SIDE][TILE / SIDE])
{
    constexpr int R = TILE / SIDE, PITCH = HDP + 1;
    const int ty = threadIdx.x / SIDE, tx = threadIdx.x % SIDE;
#pragma unroll
    for (int i = 0; i < R; i++)
#pragma unroll
        for (int j = 0; j < R; j++)
            s[i][j] = 0.0f;
#pragma unroll 4
    for (int e = 0; e < HDP; e++) {
        float left[R], right[R];
#pragma unroll
        for (int i = 0; i < R; i++) {
            left[i] = q[(ty * R + i) * PITCH + e];
            right[i] = k[(tx + SIDE * i) * PITCH + e];
        }
#pragma unroll
        for (int i = 0; i < R; i++)
#pragma unroll
            for (int j = 0; j < R; j++)
                s[i][j] = fmaf(left[i], right[j], s[i][j]);
    }
}

/* o[i][j] += row ty*R+i of p (TILE, TILE+1), or of its transpose, times column tx+16j of x. */
template <int HDP, int TILE, bool TRANSPOSED>
static __device__ inline void tile_accumulate(const float *p, const float *x,
                                              float o[TILE / SIDE][HDP / SIDE])
{
    constexpr int R = TILE / SIDE, C = HDP / SIDE, PITCH = HDP + 1;
    const int ty = threadIdx.x / SIDE, tx = threadIdx.x % SIDE;
#pragma unroll 4
    for (int e = 0; e < TILE; e++) {
        float left[R];
#pragma unroll
        for (int i = 0; i < R; i++)
            left[i] =
                TRANSPOSED ? p[e * (TILE + 1) + ty * R + i] : p[(ty * R + i) * (TILE + 1) + e];
#pragma unroll
        for (int j = 0; j < C; j++) {
            const float right = x[e * PITCH + tx + SIDE * j];
#pragma unroll
            for (int i = 0; i < R; i++)
                o[i][j] = fmaf(left[i], right, o[i][j]);
        }
    }
}

/* Stores o to the rows of x from `row` on, each row times scale[i]. */
template <int HDP, int TILE>
static __device__ inline void
store_rows(const struct attention_args &a, float o[TILE / SIDE][HDP / SIDE],
           const float scale[TILE / SIDE], const struct rows_out &x, int64_t row)
{
    constexpr int R = TILE / SIDE, C = HDP / SIDE;
    const int ty = threadIdx.x / SIDE, tx = threadIdx.x % SIDE;
#pragma unroll
    for (int i = 0; i < R; i++)
#pragma unroll
        for (int j = 0; j < C; j++) {
            const int64_t r = row + ty * R + i;
            const int channel = tx + SIDE * j;
            if (r < a.t && channel < a.hd)
                set_element(x.x, a.dtype, x.first + r * x.ld + channel, scale[i] * o[i][j]);
        }
}

/* p (TILE, TILE+1) = this thread's scores. */
template <int TILE>
static __device__ inline void store_scores(const float s[TILE / SIDE][TILE / SIDE], float *p)
{
    constexpr int R = TILE / SIDE;
    const int ty = threadIdx.x / SIDE, tx = threadIdx.x % SIDE;
#pragma unroll
    for (int i = 0; i < R; i++)
#pragma unroll
        for (int j = 0; j < R; j++)
            p[(ty * R + i) * (TILE + 1) + tx + SIDE * j] = s[i][j];
}

/* The bytes of shared memory for `operands` tiles of rows and one tile of scores. */
template <int HDP, int TILE> constexpr int tile_bytes(int operands)
{
    return (operands * TILE * (HDP + 1) + TILE * (TILE + 1)) * (int)sizeof(float);
}

static inline void post_tiles(void (*kernel)(struct attention_args), const struct attention_args *a,
                              int64_t heads, int bytes, void *queue)
{
    post_with_shared(kernel, a, (unsigned)(heads * a->tiles), TILE_THREADS, bytes, queue);
}

/* Whether tensor cores compute the shape (attention_mma.cu, attention_mma_grad.cu). They have no
 * f32. */
static inline bool takes_mma(const struct attention_args *a)
{
    return a->dtype != DPT_F32 && (a->hd == 64 || a->hd == 128);
}
void dpt_post_attention_mma(void *queue, struct attention_args *a, int64_t heads);
void dpt_post_attention_mma_grad(void *queue, struct attention_args *a, int64_t b);

#endif
