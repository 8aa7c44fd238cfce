/* Sums over rows: layer norm, RMS norm and their gradients, sums of columns, sums of squares,
 * Gram-Schmidt.
 *
 * A row belongs to a warp, whose lanes take some elements in a row at a time (elem.cuh), every 32nd
 * such group, and are joined in a fixed tree. Sums over rows are made in chunks of CHUNK rows: a
 * warp adds every WARPS-th row of a chunk, in their order, and the warps' sums are added in theirs
 * (for norms of long rows a thread adds all of them in their order). GROUP chunks are added in
 * their order, and then the groups. Nothing depends on the size of the grid, nor on where a row
 * begins. */
#include "kernels/cuda/elem.cuh"
#include "kernels/cuda/launch.h"

#include <type_traits>

enum {
    LANES = 32,
    WARPS = 4,
    CHUNK = 64,
    GROUP = 16,
    COLUMNS = 128,
    SUM_THREADS = 256,
    AHEAD = 8 /* rows whose loads are under way at once */
};

/* --- sums of columns --- */

/* Adds the chunks of each group up, to where its first one is. Sums of chunk i begin at
 * sums + i*ld. */
static __global__ void join_groups(int64_t chunks, int64_t cols, float *sums, int64_t ld)
{
    GRID_LOOP(at, (chunks + GROUP - 1) / GROUP * cols)
    {
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
    GRID_LOOP(j, cols)
    {
        float sum = 0.0f;
#pragma unroll 8
        for (int64_t i = 0; i < groups; i++)
            sum += sums[i * GROUP * ld + j];
        ret[j] = accumulate ? ret[j] + sum : sum;
    }
}

template <int N, typename E>
static __device__ inline void add_to(float sum[N], const struct held<N, E> &row)
{
    float v[N];
    widen_to(row, v);
#pragma unroll
    for (int k = 0; k < N; k++)
        sum[k] += v[k];
}

template <int N, bool WHOLE, typename E>
static __device__ inline struct held<N, E> load_some(const E *row, int64_t at, int64_t c) {
    struct held<N, E> none = {};
    return at < c ? load<N, WHOLE>(row, at, c) : none;
}

/* What the warps of a block have of the columns that begin at `at`, added up in their order; lane i
 * has columns N*i and on. */
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

/* A block has `width` columns. */
static dim3 chunk_grid(int64_t rows, int64_t cols, int64_t width)
{
    const int64_t grid_y_max = 65535, chunks = ceil_div(rows, CHUNK);
    return dim3((unsigned)ceil_div(cols, width),
                (unsigned)(chunks < grid_y_max ? chunks : grid_y_max));
}

/* Rows of c elements each begin at a multiple of N of them. */
template <int N, typename E> static bool whole_rows(const E *p, int64_t c)
{
    return c % N == 0 && is_whole<N>(p);
}

static unsigned join_grid(int64_t chunks, int64_t cols)
{
    return grid_for(ceil_div(chunks, GROUP) * cols, COLUMNS);
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
    FOR_WHOLE((whole_rows<N>(x, cols)), column_chunk<E, WHOLE>
              <<<chunk_grid(rows, cols, LANES * N), WARPS * LANES, 0, q>>>(rows, cols, x, sums));
    join_groups<<<join_grid(chunks, cols), COLUMNS, 0, q>>>(chunks, cols, sums, cols);
}

int dpt_launch_column_sums(void *queue, enum dpt_dtype dtype, int64_t rows, int64_t cols,
                           const void *x, bool accumulate, float *work, float *ret)
{
    cudaStream_t q = (cudaStream_t)queue;
    const int64_t groups = ceil_div(ceil_div(rows, CHUNK), GROUP);
    if (cols == 0)
        return 0;
    if (rows > 0)
        FOR_ELEM(dtype, sum_chunks(q, rows, cols, (const E *)x, work));
    join_chunks<<<grid_for(cols, COLUMNS), COLUMNS, 0, q>>>(groups, cols, work, cols, accumulate,
                                                            ret);
    return cudaGetLastError();
}

/* --- layer norm (Ba et al. 2016) ---
 *
 * RMS norm, whose means are NULL, is the same around zero, with a beta of zero: x - 0 and x + 0 are
 * exact. */

/* Lane `lane`'s groups of N elements of a row of c. */
#define ROW_LOOP(j, c) for (int64_t j = (int64_t)lane * N; j < (c); j += LANES * N)

/* Of a row of a, or with RESIDUAL of a + b, which is written to `sum`, rounded. A lane holds its
 * groups of the row, P at most, from the first loop to the last. P = 0, for any row: each loop
 * reads them again, of `sum` what the same lane wrote. */
template <typename E, int P, bool RESIDUAL, bool WHOLE>
static __global__ void __launch_bounds__(WARPS *LANES) norm(struct dpt_residual_norm a)
{
    enum { N = some<E>::N, WIDTH = LANES * N, HELD = P > 0 ? P : 1 };
    const int64_t r = (int64_t)blockIdx.x * WARPS + threadIdx.x / LANES, c = a.c;
    if (r >= a.n)
        return;
    const E *x = (const E *)(RESIDUAL ? a.sum : a.a) + r * c;
    const E *gamma = (const E *)a.gamma, *beta = (const E *)a.beta;
    const int groups = P > 0 ? P : (int)((c + WIDTH - 1) / WIDTH);
    const int64_t at = (int64_t)(threadIdx.x % LANES) * N;
    const float inv_c = 1.0f / (float)c;
    float sum = 0.0f, mean = 0.0f, squares = 0.0f, v[N];
    held<N, E> mine[HELD];
    for (int g = 0; (RESIDUAL || P > 0) && g < groups; g += HELD) {
        held<N, E> other[HELD];
#pragma unroll
        for (int p = 0; p < HELD; p++) {
            mine[p] = load_some<N, WHOLE>((const E *)a.a + r * c, at + (g + p) * WIDTH, c);
            if (RESIDUAL)
                other[p] = load_some<N, WHOLE>((const E *)a.b + r * c, at + (g + p) * WIDTH, c);
        }
#pragma unroll
        for (int p = 0; RESIDUAL && p < HELD; p++) {
            float b[N];
            widen_to(mine[p], v);
            widen_to(other[p], b);
#pragma unroll
            for (int k = 0; k < N; k++)
                v[k] = v[k] + b[k];
            mine[p].bits = rounded_words<N>(E(), v);
            if (at + (g + p) * WIDTH < c)
                put<N, WHOLE>((E *)a.sum + r * c, at + (g + p) * WIDTH, c, v);
        }
    }
    if (a.mean) {
#pragma unroll
        for (int p = 0; p < groups; p++) {
            widen_to(P > 0 ? mine[p % HELD] : load_some<N, WHOLE>(x, at + p * WIDTH, c), v);
#pragma unroll
            for (int k = 0; k < N; k++)
                sum += v[k]; /* 0 past the end */
        }
        mean = group_sum<LANES>(sum) * inv_c;
    }
#pragma unroll
    for (int p = 0; p < groups; p++) {
        const int64_t j = at + p * WIDTH;
        widen_to(P > 0 ? mine[p % HELD] : load_some<N, WHOLE>(x, j, c), v);
#pragma unroll
        for (int k = 0; k < N; k++) {
            const float d = (WHOLE ? j : j + k) < c ? v[k] - mean : 0.0f;
            squares = fmaf(d, d, squares);
        }
    }
    const float rstd = 1.0f / sqrtf(group_sum<LANES>(squares) * inv_c + a.eps);
#pragma unroll
    for (int p = 0; p < groups; p++) {
        const int64_t j = at + p * WIDTH;
        float g[N], b[N] = {};
        if (j >= c)
            break;
        widen_to(P > 0 ? mine[p % HELD] : load<N, WHOLE>(x, j, c), v);
        get<N, WHOLE>(gamma, j, c, g);
        if (beta)
            get<N, WHOLE>(beta, j, c, b);
#pragma unroll
        for (int k = 0; k < N; k++)
            b[k] = fmaf((v[k] - mean) * rstd, g[k], b[k]);
        put<N, WHOLE>((E *)a.y + r * c, j, c, b);
    }
    if (at == 0 && a.mean)
        a.mean[r] = mean;
    if (at == 0)
        a.rstd[r] = rstd;
}

template <typename E, bool RESIDUAL>
static void post_norm(cudaStream_t q, const struct dpt_residual_norm *a)
{
    enum { N = some<E>::N, FEW = 4, MANY = 8 };
    const int64_t groups = ceil_div(a->c, LANES * N);
    const unsigned grid = (unsigned)ceil_div(a->n, WARPS);
    const bool whole =
        whole_rows<N>((const E *)a->a, a->c) && whole_rows<N>((const E *)a->b, a->c) &&
        whole_rows<N>((const E *)a->sum, a->c) && whole_rows<N>((const E *)a->gamma, a->c) &&
        whole_rows<N>((const E *)a->beta, a->c) && whole_rows<N>((const E *)a->y, a->c);
    FOR_WHOLE(
        whole, if (groups <= FEW) norm<E, FEW, RESIDUAL, WHOLE><<<grid, WARPS * LANES, 0, q>>>(*a);
        else if (groups <= MANY) norm<E, MANY, RESIDUAL, WHOLE><<<grid, WARPS * LANES, 0, q>>>(*a);
        else norm<E, 0, RESIDUAL, WHOLE><<<grid, WARPS * LANES, 0, q>>>(*a));
}

int dpt_launch_layernorm_forward(void *queue, const struct dpt_layernorm_forward *a)
{
    struct dpt_residual_norm alone = {};
    alone.n = a->n;
    alone.c = a->c;
    alone.eps = a->eps;
    alone.a = a->x;
    alone.gamma = a->gamma;
    alone.beta = a->beta;
    alone.y = a->y;
    alone.mean = a->mean;
    alone.rstd = a->rstd;
    if (a->n == 0)
        return 0;
    FOR_ELEM(a->dtype, post_norm<E, false>((cudaStream_t)queue, &alone));
    return cudaGetLastError();
}

int dpt_launch_residual_norm(void *queue, const struct dpt_residual_norm *a)
{
    if (a->n == 0)
        return 0;
    FOR_ELEM(a->dtype, post_norm<E, true>((cudaStream_t)queue, a));
    return cudaGetLastError();
}

/* Of the loss by an element of x: from that by its normalised value, weighted by gamma, and from
 * the row's means of these and of their products with the values. */
static __device__ inline float slope_of(float weighted, float hat, float rstd, float mean_sum,
                                        float mean_dot)
{
    return rstd * ((weighted - mean_sum) - hat * mean_dot);
}

static __device__ inline float mean_of(const struct dpt_layernorm_backward &a, int64_t row)
{
    return a.mean ? a.mean[row] : 0.0f;
}

template <typename E, bool WHOLE> static __global__ void norm_grad(struct dpt_layernorm_backward a)
{
    enum { N = some<E>::N };
    const int lane = threadIdx.x % LANES;
    const int64_t r = (int64_t)blockIdx.x * WARPS + threadIdx.x / LANES, c = a.c;
    if (r >= a.n)
        return;
    const E *x = (const E *)a.x + r * c, *dy = (const E *)a.dy + r * c;
    const E *gamma = (const E *)a.gamma;
    E *dx = (E *)a.dx + r * c;
    const float inv_c = 1.0f / (float)c, mean = mean_of(a, r), rstd = a.rstd[r];
    float sum = 0.0f, dot = 0.0f, v[N], d[N], g[N];
    ROW_LOOP(j, c)
    {
        get<N, WHOLE>(x, j, c, v);
        get<N, WHOLE>(dy, j, c, d);
        get<N, WHOLE>(gamma, j, c, g);
#pragma unroll
        for (int k = 0; k < N; k++) {
            const float weighted = d[k] * g[k]; /* 0 past the end */
            const float hat = (v[k] - mean) * rstd;
            sum += weighted;
            dot = fmaf(weighted, hat, dot);
        }
    }
    const float mean_sum = a.mean ? group_sum<LANES>(sum) * inv_c : 0.0f,
                mean_dot = group_sum<LANES>(dot) * inv_c;
    ROW_LOOP(j, c)
    {
        float to[N] = {};
        get<N, WHOLE>(x, j, c, v);
        get<N, WHOLE>(dy, j, c, d);
        get<N, WHOLE>(gamma, j, c, g);
        if (a.add_dx)
            get<N, WHOLE>(dx, j, c, to);
#pragma unroll
        for (int k = 0; k < N; k++) {
            const float hat = (v[k] - mean) * rstd;
            const float one = slope_of(d[k] * g[k], hat, rstd, mean_sum, mean_dot);
            to[k] = a.add_dx ? to[k] + one : one;
        }
        put<N, WHOLE>(dx, j, c, to);
    }
}

/* Of a chunk: sums (chunk, 2, c), gamma's and beta's; RMS norm's of beta are not used. Block (x:
 * columns, y: chunks). */
template <typename E, bool WHOLE>
static __global__ void norm_weights_chunk(struct dpt_layernorm_backward a, float *sums)
{
    enum { N = some<E>::N };
    const int64_t j = ((int64_t)blockIdx.x * COLUMNS + threadIdx.x) * N, c = a.c;
    const int64_t chunks = (a.n + CHUNK - 1) / CHUNK;
    const E *x = (const E *)a.x, *dy = (const E *)a.dy;
    for (int64_t chunk = blockIdx.y; j < c && chunk < chunks; chunk += gridDim.y) {
        const int64_t at = chunk * CHUNK, end = at + CHUNK < a.n ? at + CHUNK : a.n;
        float gamma[N] = {}, beta[N] = {};
        for (int64_t r = at; r < end; r++) {
            float v[N], g[N];
            const float mean = mean_of(a, r), rstd = a.rstd[r];
            get<N, WHOLE>(x + r * c, j, c, v);
            get<N, WHOLE>(dy + r * c, j, c, g);
#pragma unroll
            for (int k = 0; k < N; k++) {
                gamma[k] = fmaf(g[k], (v[k] - mean) * rstd, gamma[k]);
                beta[k] += g[k];
            }
        }
#pragma unroll
        for (int k = 0; k < N; k++)
            if (j + k < c) {
                sums[chunk * 2 * c + j + k] = gamma[k];
                sums[(chunk * 2 + 1) * c + j + k] = beta[k];
            }
    }
}

/* Blocks of norm_grad_once for each SM, by the registers of a thread's sums and of what it has of
 * three rows. With four, 32,768 rows are all under way at once on 132 SMs; fp16 takes more. */
template <typename E> static constexpr int once_blocks(int groups)
{
    const int registers = groups * (2 * (int)some<E>::N + 12);
    const int most = std::is_same<E, f16>::value && registers > 56 ? 3 : 4;
    return registers <= 100 ? most : 1;
}

/* Both in one pass, for rows of at most P groups a lane: a block does a chunk. Each of its warps
 * does every WARPS-th row, and the warps' sums are added in their order. */
template <typename E, int P, bool WHOLE>
static __global__ void __launch_bounds__(WARPS *LANES, once_blocks<E>(P))
    norm_grad_once(struct dpt_layernorm_backward a, float *sums)
{
    enum { N = some<E>::N, WIDTH = LANES * N };
    __shared__ float place[WARPS][WIDTH];
    __shared__ held<N, E> gamma[P][LANES];
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    const int64_t c = a.c, first = (int64_t)blockIdx.x * CHUNK;
    const int64_t end = first + CHUNK < a.n ? first + CHUNK : a.n;
    const float inv_c = 1.0f / (float)c;
    float dgamma[P][N] = {}, dbeta[P][N] = {};
    held<N, E> x[P], dy[P], dx[P];
    for (int p = warp; p < P; p += WARPS)
        gamma[p][lane] = load_some<N, WHOLE>((const E *)a.gamma, p * WIDTH + lane * N, c);
    __syncthreads();
    for (int64_t r = first + warp; r < end; r += WARPS) {
#pragma unroll
        for (int p = 0; p < P; p++) {
            x[p] = load_some<N, WHOLE>((const E *)a.x + r * c, p * WIDTH + lane * N, c);
            dy[p] = load_some<N, WHOLE>((const E *)a.dy + r * c, p * WIDTH + lane * N, c);
        }
        if (a.add_dx)
#pragma unroll
            for (int p = 0; p < P; p++)
                dx[p] = load_some<N, WHOLE>((const E *)a.dx + r * c, p * WIDTH + lane * N, c);
        const float mean = mean_of(a, r), rstd = a.rstd[r];
        float sum = 0.0f, dot = 0.0f, v[N], d[N], g[N], to[N];
#pragma unroll
        for (int p = 0; p < P; p++) {
            widen_to(x[p], v);
            widen_to(dy[p], d);
            widen_to(gamma[p][lane], g);
#pragma unroll
            for (int k = 0; k < N; k++) {
                const float weighted = d[k] * g[k]; /* 0 past the end */
                const float hat = (v[k] - mean) * rstd;
                sum += weighted;
                dot = fmaf(weighted, hat, dot);
                dgamma[p][k] = fmaf(d[k], hat, dgamma[p][k]);
                dbeta[p][k] += d[k];
            }
        }
        const float mean_sum = a.mean ? group_sum<LANES>(sum) * inv_c : 0.0f,
                    mean_dot = group_sum<LANES>(dot) * inv_c;
#pragma unroll
        for (int p = 0; p < P; p++) {
            widen_to(x[p], v);
            widen_to(dy[p], d);
            widen_to(gamma[p][lane], g);
            if (a.add_dx)
                widen_to(dx[p], to);
#pragma unroll
            for (int k = 0; k < N; k++) {
                const float hat = (v[k] - mean) * rstd;
                const float one = slope_of(d[k] * g[k], hat, rstd, mean_sum, mean_dot);
                to[k] = a.add_dx ? to[k] + one : one;
            }
            if (p * WIDTH + lane * N < c)
                put<N, WHOLE>((E *)a.dx + r * c, p * WIDTH + lane * N, c, to);
        }
    }
    float *of_chunk = sums + (int64_t)blockIdx.x * 2 * c;
#pragma unroll
    for (int p = 0; p < P; p++) {
        join_warps<N>(dgamma[p], p * WIDTH, c, place, of_chunk);
        join_warps<N>(dbeta[p], p * WIDTH, c, place, of_chunk + c);
    }
}

/* For rows of P groups a lane and fewer. False: they are longer. */
template <typename E, int P, bool WHOLE>
static bool post_norm_grad_once(cudaStream_t q, const struct dpt_layernorm_backward *a, float *work)
{
    const int64_t groups = ceil_div(a->c, LANES * some<E>::N);
    if (groups == P) {
        norm_grad_once<E, P, WHOLE>
            <<<(unsigned)ceil_div(a->n, CHUNK), WARPS * LANES, 0, q>>>(*a, work);
        return true;
    }
    if constexpr (P > 1)
        return post_norm_grad_once<E, P - 1, WHOLE>(q, a, work);
    return false;
}

int64_t dpt_launch_layernorm_backward_floats(int64_t n, int64_t c)
{
    return ceil_div(n, CHUNK) * 2 * c;
}

template <typename E>
static void post_norm_grad(cudaStream_t q, const struct dpt_layernorm_backward *a, float *work)
{
    enum { N = some<E>::N };
    const int64_t c = a->c, chunks = ceil_div(a->n, CHUNK);
    const bool whole = whole_rows<N>((const E *)a->x, c) && whole_rows<N>((const E *)a->dy, c) &&
                       whole_rows<N>((const E *)a->gamma, c) && whole_rows<N>((const E *)a->dx, c);
    constexpr int GROUPS_MAX = sizeof(E) == 4 ? 7 : 5; /* beyond, a thread's registers overflow */
    FOR_WHOLE(
        whole, if (!post_norm_grad_once<E, GROUPS_MAX, WHOLE>(q, a, work)) {
            norm_weights_chunk<E, WHOLE>
                <<<chunk_grid(a->n, c, COLUMNS * N), COLUMNS, 0, q>>>(*a, work);
            norm_grad<E, WHOLE><<<(unsigned)ceil_div(a->n, WARPS), WARPS * LANES, 0, q>>>(*a);
        });
    join_groups<<<join_grid(chunks, 2 * c), COLUMNS, 0, q>>>(chunks, 2 * c, work, 2 * c);
}

int dpt_launch_layernorm_backward(void *queue, const struct dpt_layernorm_backward *a, float *work)
{
    cudaStream_t q = (cudaStream_t)queue;
    const int64_t groups = ceil_div(ceil_div(a->n, CHUNK), GROUP);
    if (a->c == 0)
        return 0;
    if (a->n > 0)
        FOR_ELEM(a->dtype, post_norm_grad<E>(q, a, work));
    const unsigned grid = grid_for(a->c, COLUMNS);
    if (a->dgamma)
        join_chunks<<<grid, COLUMNS, 0, q>>>(groups, a->c, work, 2 * a->c, a->accumulate,
                                             a->dgamma);
    if (a->dbeta)
        join_chunks<<<grid, COLUMNS, 0, q>>>(groups, a->c, work + a->c, 2 * a->c, a->accumulate,
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
