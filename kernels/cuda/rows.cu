/* Sums over rows: layer norm and its gradients, sums of columns, sums of squares, Gram-Schmidt.
 *
 * A row belongs to a warp, whose lanes take every 32nd element and are joined in a fixed tree. Sums
 * over rows are made in chunks of CHUNK rows, in the order of the rows, and the chunks are added in
 * their order. Nothing depends on the size of the grid. */
#include "kernels/cuda/elem.cuh"
#include "kernels/cuda/launch.h"

enum { LANES = 32, WARPS = 4, CHUNK = 64, COLUMNS = 128, SUM_THREADS = 256 };

/* --- sums of columns --- */

/* Adds chunks up: sums of chunk i begin at sums + i*ld. */
static __global__ void join_chunks(int64_t chunks, int64_t cols, const float *sums, int64_t ld,
                                   bool accumulate, float *ret)
{
    GRID_LOOP(j, cols)
    {
        float sum = 0.0f;
        for (int64_t i = 0; i < chunks; i++)
            sum += sums[i * ld + j];
        ret[j] = accumulate ? ret[j] + sum : sum;
    }
}

/* Block (x: columns, y: chunks). */
template <typename E>
static __global__ void column_chunk(int64_t rows, int64_t cols, const E *x, float *sums)
{
    const int64_t j = (int64_t)blockIdx.x * COLUMNS + threadIdx.x;
    const int64_t chunks = (rows + CHUNK - 1) / CHUNK;
    for (int64_t chunk = blockIdx.y; j < cols && chunk < chunks; chunk += gridDim.y) {
        const int64_t at = chunk * CHUNK, end = at + CHUNK < rows ? at + CHUNK : rows;
        float sum = 0.0f;
        for (int64_t r = at; r < end; r++)
            sum += widened(x[r * cols + j]);
        sums[chunk * cols + j] = sum;
    }
}

static dim3 chunk_grid(int64_t rows, int64_t cols)
{
    const int64_t grid_y_max = 65535, chunks = ceil_div(rows, CHUNK);
    return dim3((unsigned)ceil_div(cols, COLUMNS),
                (unsigned)(chunks < grid_y_max ? chunks : grid_y_max));
}

int64_t dpt_launch_column_sums_floats(int64_t rows, int64_t cols)
{
    return ceil_div(rows, CHUNK) * cols;
}

int dpt_launch_column_sums(void *queue, enum dpt_dtype dtype, int64_t rows, int64_t cols,
                           const void *x, bool accumulate, float *work, float *ret)
{
    cudaStream_t q = (cudaStream_t)queue;
    if (cols == 0)
        return 0;
    if (rows > 0)
        FOR_ELEM(dtype, column_chunk<E>
                 <<<chunk_grid(rows, cols), COLUMNS, 0, q>>>(rows, cols, (const E *)x, work));
    join_chunks<<<grid_for(cols, COLUMNS), COLUMNS, 0, q>>>(ceil_div(rows, CHUNK), cols, work, cols,
                                                            accumulate, ret);
    return cudaGetLastError();
}

/* --- layer norm (Ba et al. 2016) --- */

template <typename E> static __global__ void norm(struct dpt_layernorm_forward a)
{
    const int lane = threadIdx.x % LANES;
    const int64_t r = (int64_t)blockIdx.x * WARPS + threadIdx.x / LANES, c = a.c;
    if (r >= a.n)
        return;
    const E *x = (const E *)a.x + r * c, *gamma = (const E *)a.gamma, *beta = (const E *)a.beta;
    E *y = (E *)a.y + r * c;
    const float inv_c = 1.0f / (float)c;
    float sum = 0.0f, squares = 0.0f;
    for (int64_t j = lane; j < c; j += LANES)
        sum += widened(x[j]);
    const float mean = group_sum<LANES>(sum) * inv_c;
    for (int64_t j = lane; j < c; j += LANES) {
        const float d = widened(x[j]) - mean;
        squares = fmaf(d, d, squares);
    }
    const float rstd = 1.0f / sqrtf(group_sum<LANES>(squares) * inv_c + a.eps);
    for (int64_t j = lane; j < c; j += LANES) {
        const float hat = (widened(x[j]) - mean) * rstd;
        y[j] = rounded<E>(fmaf(hat, widened(gamma[j]), widened(beta[j])));
    }
    if (lane == 0) {
        a.mean[r] = mean;
        a.rstd[r] = rstd;
    }
}

int dpt_launch_layernorm_forward(void *queue, const struct dpt_layernorm_forward *a)
{
    if (a->n == 0)
        return 0;
    FOR_ELEM(a->dtype, norm<E>
             <<<(unsigned)ceil_div(a->n, WARPS), WARPS * LANES, 0, (cudaStream_t)queue>>>(*a));
    return cudaGetLastError();
}

template <typename E> static __global__ void norm_grad(struct dpt_layernorm_backward a)
{
    const int lane = threadIdx.x % LANES;
    const int64_t r = (int64_t)blockIdx.x * WARPS + threadIdx.x / LANES, c = a.c;
    if (r >= a.n)
        return;
    const E *x = (const E *)a.x + r * c, *dy = (const E *)a.dy + r * c;
    const E *gamma = (const E *)a.gamma;
    E *dx = (E *)a.dx + r * c;
    const float inv_c = 1.0f / (float)c, mean = a.mean[r], rstd = a.rstd[r];
    float sum = 0.0f, dot = 0.0f;
    for (int64_t j = lane; j < c; j += LANES) {
        const float weighted = widened(dy[j]) * widened(gamma[j]);
        sum += weighted;
        dot = fmaf(weighted, (widened(x[j]) - mean) * rstd, dot);
    }
    const float mean_sum = group_sum<LANES>(sum) * inv_c, mean_dot = group_sum<LANES>(dot) * inv_c;
    for (int64_t j = lane; j < c; j += LANES) {
        const float hat = (widened(x[j]) - mean) * rstd;
        const float weighted = widened(dy[j]) * widened(gamma[j]);
        float d = rstd * ((weighted - mean_sum) - hat * mean_dot);
        if (a.add_dx)
            d = widened(dx[j]) + d;
        dx[j] = rounded<E>(d);
    }
}

/* Of a chunk: sums (chunk, 2, c), gamma's and beta's. Block (x: columns, y: chunks). */
template <typename E>
static __global__ void norm_weights_chunk(struct dpt_layernorm_backward a, float *sums)
{
    const int64_t j = (int64_t)blockIdx.x * COLUMNS + threadIdx.x, c = a.c;
    const int64_t chunks = (a.n + CHUNK - 1) / CHUNK;
    const E *x = (const E *)a.x, *dy = (const E *)a.dy;
    for (int64_t chunk = blockIdx.y; j < c && chunk < chunks; chunk += gridDim.y) {
        const int64_t at = chunk * CHUNK, end = at + CHUNK < a.n ? at + CHUNK : a.n;
        float gamma = 0.0f, beta = 0.0f;
        for (int64_t r = at; r < end; r++) {
            const float g = widened(dy[r * c + j]);
            gamma = fmaf(g, (widened(x[r * c + j]) - a.mean[r]) * a.rstd[r], gamma);
            beta += g;
        }
        sums[chunk * 2 * c + j] = gamma;
        sums[(chunk * 2 + 1) * c + j] = beta;
    }
}

int64_t dpt_launch_layernorm_backward_floats(int64_t n, int64_t c)
{
    return ceil_div(n, CHUNK) * 2 * c;
}

int dpt_launch_layernorm_backward(void *queue, const struct dpt_layernorm_backward *a, float *work)
{
    cudaStream_t q = (cudaStream_t)queue;
    const int64_t chunks = ceil_div(a->n, CHUNK);
    if (a->c == 0)
        return 0;
    if (a->n > 0) {
        FOR_ELEM(a->dtype,
                 norm_weights_chunk<E><<<chunk_grid(a->n, a->c), COLUMNS, 0, q>>>(*a, work));
        FOR_ELEM(a->dtype,
                 norm_grad<E><<<(unsigned)ceil_div(a->n, WARPS), WARPS * LANES, 0, q>>>(*a));
    }
    const unsigned grid = grid_for(a->c, COLUMNS);
    join_chunks<<<grid, COLUMNS, 0, q>>>(chunks, a->c, work, 2 * a->c, a->accumulate, a->dgamma);
    join_chunks<<<grid, COLUMNS, 0, q>>>(chunks, a->c, work + a->c, 2 * a->c, a->accumulate,
                                         a->dbeta);
    return cudaGetLastError();
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
        sum = block_sum<SUM_THREADS>(sum, place);
        if (threadIdx.x == 0)
            ret[b] = sum;
    }
}

int dpt_launch_sumsq_blocks(void *queue, int64_t n, int64_t block, const float *x, double *ret)
{
    if (n == 0)
        return 0;
    sumsq<<<grid_for(ceil_div(n, block), 1), SUM_THREADS, 0, (cudaStream_t)queue>>>(n, block, x,
                                                                                    ret);
    return cudaGetLastError();
}

/* --- Gram-Schmidt --- */

enum { GRAM_THREADS = 1024 };

static __device__ double dot(int64_t n, int64_t r, const float *a, const float *b, double *place)
{
    double sum = 0.0;
    for (int64_t i = threadIdx.x; i < n; i += GRAM_THREADS)
        sum += (double)a[i * r] * (double)b[i * r];
    return block_sum<GRAM_THREADS>(sum, place);
}

static __device__ void scale(int64_t n, int64_t r, double factor, float *x)
{
    for (int64_t i = threadIdx.x; i < n; i += GRAM_THREADS)
        x[i * r] = (float)((double)x[i * r] * factor);
    __syncthreads();
}

/* One block: a few columns. Each thread reads and writes rows of its own alone, but for dot. */
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

int dpt_launch_orthonormalise(void *queue, int64_t n, int64_t r, float *x)
{
    if (n == 0 || r == 0)
        return 0;
    gram_schmidt<<<1, GRAM_THREADS, 0, (cudaStream_t)queue>>>(n, r, x);
    return cudaGetLastError();
}
