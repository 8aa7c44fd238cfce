/* Sums along a row and over rows.
 *
 * A warp sums a row: each lane takes N adjacent elements at a time (elem.cuh), every 32nd such
 * group, and the lanes are joined in a fixed tree.
 *
 * Sums over rows are made in chunks of CHUNK rows. A warp adds every WARPS-th row of a chunk, in
 * order, and then the warps' sums are added in order. For norms of long rows one thread adds all
 * rows of a chunk in order. GROUP chunks are added in order, and then the groups in order. Neither
 * the size of the grid nor the beginning of a row changes a bit. */
#ifndef DPT_KERNELS_CUDA_ROWS_CUH
#define DPT_KERNELS_CUDA_ROWS_CUH

#include "kernels/cuda/elem.cuh"
#include "kernels/cuda/launch.h"

enum { LANES = 32, WARPS = 4, CHUNK = 64, GROUP = 16, COLUMNS = 128 };

template <int N, bool WHOLE, typename E>
static __device__ inline struct held<N, E> load_some(const E *row, int64_t at, int64_t c) {
    struct held<N, E> none = {};
    return at < c ? load<N, WHOLE>(row, at, c) : none;
}

/* ret = the sum over the block's warps, in order, for the columns from `at` on. Lane i has columns
 * N*i ... N*i + N - 1. */
template <int N>
static __device__ inline void join_warps(const float mine[N], int64_t at, int64_t c,
                                         float place[WARPS][LANES * N], float *ret)
{
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
#pragma unroll
    for (int k = 0; k < N; k++)
        place[warp][lane * N + k] = mine[k];
    __syncthreads();
    for (int j = threadIdx.x; j < LANES * N && at + j < c; j += WARPS * LANES) {
        float sum = place[0][j];
#pragma unroll
        for (int w = 1; w < WARPS; w++)
            sum += place[w][j];
        ret[at + j] = sum;
    }
    __syncthreads();
}

/* Adds up the chunks of each group in the place of the group's first chunk. The sums of chunk i
 * begin at sums + i*ld. */
static __global__ void join_groups(int64_t chunks, int64_t cols, float *sums, int64_t ld)
{
    GRID_LOOP(at, (chunks + GROUP - 1) / GROUP * cols) {
        const int64_t first = at / cols * GROUP, j = at % cols;
        const int64_t end = first + GROUP < chunks ? first + GROUP : chunks;
        float sum = 0.0f;
#pragma unroll 8
        for (int64_t i = first; i < end; i++)
            sum += sums[i * ld + j];
        sums[first * ld + j] = sum;
    }
}

/* Adds the groups up. */
static __global__ void join_chunks(int64_t groups, int64_t cols, const float *sums, int64_t ld,
                                   bool accumulate, float *ret)
{
    GRID_LOOP(j, cols) {
        float sum = 0.0f;
#pragma unroll 8
        for (int64_t i = 0; i < groups; i++)
            sum += sums[i * GROUP * ld + j];
        ret[j] = accumulate ? ret[j] + sum : sum;
    }
}

/* The grid (x: columns, y: chunks) of blocks with `width` columns. */
static inline dim3 chunk_grid(int64_t rows, int64_t cols, int64_t width)
{
    const int64_t grid_y_max = 65535, chunks = ceil_div(rows, CHUNK);
    return dim3((unsigned)ceil_div(cols, width),
                (unsigned)(chunks < grid_y_max ? chunks : grid_y_max));
}

static inline int64_t groups_of(int64_t rows)
{
    return ceil_div(ceil_div(rows, CHUNK), GROUP);
}

static inline unsigned join_grid(int64_t chunks, int64_t cols)
{
    return grid_for(ceil_div(chunks, GROUP) * cols, COLUMNS);
}

#endif
