/* Tiles of attention on tensor cores, for elements of 16 bits and heads of HD = 64 or 128 channels.
 * The algorithms are those of attention.cuh; the rows of each warp are as in Dao 2023,
 * "FlashAttention-2".
 *
 * A block of four warps has a tile of 64 queries or of 64 keys, sixteen rows for each warp. It
 * loops over tiles of 64 keys or queries, which are in shared memory unchanged. Rows there are
 * PITCH words apart, four more than a row needs, so that no two lanes of a load use the same bank.
 * Sums are f32. Probabilities and gradients of scores are rounded to the element's type before the
 * next product, as in every implementation on tensor cores. mma.cuh has each lane's parts of a
 * product. The layout of a result is the layout of the next product's left operand. */
#ifndef DPT_KERNELS_CUDA_ATTENTION_MMA_CUH
#define DPT_KERNELS_CUDA_ATTENTION_MMA_CUH

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/mma.cuh"

enum {
    MMA_TILE = 64,
    MMA_THREADS = 128,
    LANES_OF_WARP = 32,
    WARP_ROWS = 16,
    MMA_K = 16,
    MMA_N = 8
};

struct alignas(16) four_words {
    uint32_t word[4];
};

template <int HD> constexpr int tile_pitch = HD / 2 + 4;               /* words */
template <int HD> constexpr int tile_words = MMA_TILE *tile_pitch<HD>; /* words of a tile */

/* The most shared memory that a kernel uses: two tiles, and two floats per row. */
static_assert((2 * tile_words<128> + 2 * MMA_TILE) * 4 <= DPT_CUDA_SHARED_BYTES_MIN,
              "every device has room for it");

static __device__ inline int warp_row(void)
{
    return (int)threadIdx.x / LANES_OF_WARP * WARP_ROWS;
}
static __device__ inline int lane_row(void)
{
    return (int)threadIdx.x % LANES_OF_WARP / 4;
}
static __device__ inline int lane_pair(void)
{
    return (int)threadIdx.x % 4;
}

/* to = the rows of x from `row` on, with zeros beyond T. */
template <int HD>
static __device__ inline void load_words(const attention_args &a, const rows_in &x, int64_t row,
                                         uint32_t *to)
{
    constexpr int PARTS = HD / 8;
    for (int i = threadIdx.x; i < MMA_TILE * PARTS; i += MMA_THREADS) {
        const int r = i / PARTS, part = i % PARTS;
        four_words values = {};
        if (row + r < a.t)
            values = *(const four_words *)((const uint16_t *)x.x + x.first + (row + r) * x.ld +
                                           part * 8);
        *(four_words *)(to + r * tile_pitch<HD> + part * 4) = values;
    }
}

/* The warp's rows of a tile as left operands, each of MMA_K channels. */
template <int HD>
static __device__ inline void left_operands(const uint32_t *tile, uint32_t ret[HD / MMA_K][4])
{
    const uint32_t *at = tile + (warp_row() + lane_row()) * tile_pitch<HD> + lane_pair();
#pragma unroll
    for (int k = 0; k < HD / MMA_K; k++) {
        ret[k][0] = at[k * 8];
        ret[k][1] = at[k * 8 + 8 * tile_pitch<HD>];
        ret[k][2] = at[k * 8 + 4];
        ret[k][3] = at[k * 8 + 4 + 8 * tile_pitch<HD>];
    }
}

/* c += left (16 rows, HD) times rows [row, row + MMA_N) of the tile, transposed. */
template <typename E, int HD>
static __device__ inline void multiply_rows(float c[4], const uint32_t left[HD / MMA_K][4],
                                            const uint32_t *tile, int row)
{
    const uint32_t *at = tile + (row + lane_row()) * tile_pitch<HD> + lane_pair();
#pragma unroll
    for (int k = 0; k < HD / MMA_K; k++) {
        const uint32_t right[2] = {at[k * 8], at[k * 8 + 4]};
        mma(E{}, c, left[k], right);
    }
}

/* c[n] += left (16 rows, MMA_K) times rows [row, row + MMA_K) of the tile and its n-th MMA_N
 * channels. */
template <typename E, int HD>
static __device__ inline void multiply_columns(float c[HD / MMA_N][4], const uint32_t left[4],
                                               const uint32_t *tile, int row)
{
    constexpr int PITCH = tile_pitch<HD>;
    const uint32_t *at = tile + (row + 2 * lane_pair()) * PITCH + lane_row() / 2;
    const int shift = lane_row() % 2 * 16;
#pragma unroll
    for (int n = 0; n < HD / MMA_N; n++, at += MMA_N / 2) {
        const uint32_t right[2] = {(at[0] >> shift & 0xffffu) | at[PITCH] >> shift << 16,
                                   (at[8 * PITCH] >> shift & 0xffffu) | at[9 * PITCH] >> shift
                                                                                             << 16};
        mma(E{}, c[n], left, right);
    }
}

/* Makes one left operand of two adjacent results (16, MMA_N). */
template <typename E>
static __device__ inline void left_of(const float first[4], const float second[4], uint32_t ret[4])
{
    ret[0] = pair_of(E{}, first[0], first[1]);
    ret[1] = pair_of(E{}, first[2], first[3]);
    ret[2] = pair_of(E{}, second[0], second[1]);
    ret[3] = pair_of(E{}, second[2], second[3]);
}

/* Stores the warp's rows of c to x from `row` on. A lane multiplies row g by scale[0] and row g + 8
 * by scale[1]. */
template <typename E, int HD>
static __device__ inline void store_products(const attention_args &a, float c[HD / MMA_N][4],
                                             const float scale[2], const rows_out &x, int64_t row)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int64_t r = row + warp_row() + lane_row() + 8 * half;
        if (r >= a.t)
            continue;
        uint32_t *at = (uint32_t *)((uint16_t *)x.x + x.first + r * x.ld) + lane_pair();
#pragma unroll
        for (int n = 0; n < HD / MMA_N; n++)
            at[n * MMA_N / 2] =
                pair_of(E{}, scale[half] * c[n][2 * half], scale[half] * c[n][2 * half + 1]);
    }
}

static inline void post_words(void (*kernel)(attention_args), const attention_args *a,
                              int64_t heads, int words, void *queue)
{
    post_with_shared(kernel, a, (unsigned)(heads * a->tiles), MMA_THREADS,
                     words * (int)sizeof(uint32_t), queue);
}

#endif
