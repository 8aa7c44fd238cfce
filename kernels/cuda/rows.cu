/* Sums of columns, sums of squares, Gram-Schmidt. */
#include "kernels/cuda/rows.cuh"

enum { SUM_THREADS = 256, AHEAD = 8 /* rows loaded at once */ };

/* --- sums of columns --- */

template <int N, typename E>
static __device__ inline void add_to(float sum[N], const struct held<N, E> &row)
{
    float v[N];
    widen_to(row, v);
#pragma unroll
    for (int k = 0; k < N; k++)
        sum[k] += v[k];
}

/* Block (x: columns, y: chunks). */
template <typename E, bool WHOLE>
static __global__ void __launch_bounds__(WARPS *LANES)
    column_chunk(int64_t rows, int64_t cols, const E *x, float *sums)
{
    enum { N = some<E>::N, WIDTH = LANES * N };
    __shared__ float place[WARPS][WIDTH];
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    const int64_t first = (int64_t)blockIdx.x * WIDTH, j = first + lane * N;
    const int64_t chunks = (rows + CHUNK - 1) / CHUNK;
    for (int64_t chunk = blockIdx.y; chunk < chunks; chunk += gridDim.y) {
        const int64_t at = chunk * CHUNK, end = at + CHUNK < rows ? at + CHUNK : rows;
        float sum[N] = {};
        int64_t r = at + warp;
        for (; r + (AHEAD - 1) * WARPS < end; r += AHEAD * WARPS) {
            held<N, E> rows_ahead[AHEAD];
#pragma unroll
            for (int i = 0; i < AHEAD; i++)
                rows_ahead[i] = load_some<N, WHOLE>(x + (r + i * WARPS) * cols, j, cols);
#pragma unroll
            for (int i = 0; i < AHEAD; i++)
                add_to(sum, rows_ahead[i]);
        }
        for (; r < end; r += WARPS)
            add_to(sum, load_some<N, WHOLE>(x + r * cols, j, cols));
        join_warps<N>(sum, first, cols, place, sums + chunk * cols);
    }
}

int64_t dpt_launch_column_sums_floats(int64_t rows, int64_t cols)
{
    return ceil_div(rows, CHUNK) * cols;
}

template <typename E>
static void sum_chunks(cudaStream_t q, int64_t rows, int64_t cols, const E *x, float *sums)
{
    enum { N = some<E>::N };
    const int64_t chunks = ceil_div(rows, CHUNK);
    FOR_WHOLE((are_whole_rows<N, E>(cols, x)), column_chunk<E, WHOLE>
              <<<chunk_grid(rows, cols, LANES * N), WARPS * LANES, 0, q>>>(rows, cols, x, sums));
    join_groups<<<join_grid(chunks, cols), COLUMNS, 0, q>>>(chunks, cols, sums, cols);
}

void dpt_launch_column_sums(void *queue, const struct dpt_launch_column_sums *a)
{
    cudaStream_t q = (cudaStream_t)queue;
    if (a->cols == 0)
        return;
    if (a->rows > 0)
        FOR_ELEM(a->dtype, sum_chunks(q, a->rows, a->cols, (const E *)a->x, a->work));
    join_chunks<<<grid_for(a->cols, COLUMNS), COLUMNS, 0, q>>>(groups_of(a->rows), a->cols, a->work,
                                                               a->cols, a->accumulate, a->ret);
}

/* --- sums of squares --- */

static __global__ void sumsq(int64_t n, int64_t block, const float *x, double *ret)
{
    __shared__ double place[SUM_THREADS];
    const int64_t blocks = (n + block - 1) / block;
    for (int64_t b = blockIdx.x; b < blocks; b += gridDim.x) {
        const int64_t end = (b + 1) * block < n ? (b + 1) * block : n;
        double sum = 0.0;
        for (int64_t i = b * block + threadIdx.x; i < end; i += SUM_THREADS)
            sum += (double)x[i] * (double)x[i];
        sum = block_reduce<SUM_THREADS, plus>(sum, place);
        if (threadIdx.x == 0)
            ret[b] = sum;
    }
}

void dpt_launch_sumsq_blocks(void *queue, int64_t n, int64_t block, const float *x, double *ret)
{
    if (n == 0)
        return;
    sumsq<<<grid_for(ceil_div(n, block), 1), SUM_THREADS, 0, (cudaStream_t)queue>>>(n, block, x,
                                                                                    ret);
}

/* --- Gram-Schmidt --- */

enum { GRAM_THREADS = 1024 };

static __device__ double dot(int64_t n, int64_t r, const float *a, const float *b, double *place)
{
    double sum = 0.0;
    for (int64_t i = threadIdx.x; i < n; i += GRAM_THREADS)
        sum += (double)a[i * r] * (double)b[i * r];
    return block_reduce<GRAM_THREADS, plus>(sum, place);
}

static __device__ void scale(int64_t n, int64_t r, double factor, float *x)
{
    for (int64_t i = threadIdx.x; i < n; i += GRAM_THREADS)
        x[i * r] = (float)((double)x[i * r] * factor);
    __syncthreads();
}

/* One block computes a few columns. Except in dot, each thread reads and writes only its own
 * rows. */
static __global__ void gram_schmidt(int64_t n, int64_t r, float *x)
{
    __shared__ double place[GRAM_THREADS];
    const double vanished = 1e-6; /* kernels/cpu/orthonormalise.c */
    for (int64_t j = 0; j < r; j++) {
        const double before = sqrt(dot(n, r, x + j, x + j, place));
        if (before > 0)
            scale(n, r, 1 / before, x + j);
        for (int pass = 0; pass < 2; pass++)
            for (int64_t k = 0; k < j; k++) {
                const double part = dot(n, r, x + k, x + j, place);
                for (int64_t i = threadIdx.x; i < n; i += GRAM_THREADS)
                    x[i * r + j] = (float)((double)x[i * r + j] - part * (double)x[i * r + k]);
                __syncthreads();
            }
        const double left = sqrt(dot(n, r, x + j, x + j, place));
        scale(n, r, left <= vanished ? 0 : 1 / left, x + j);
    }
}

void dpt_launch_orthonormalise(void *queue, int64_t n, int64_t r, float *x)
{
    if (n == 0 || r == 0)
        return;
    gram_schmidt<<<1, GRAM_THREADS, 0, (cudaStream_t)queue>>>(n, r, x);
}
