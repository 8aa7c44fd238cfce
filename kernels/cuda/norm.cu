/* Layer norm (Ba et al. 2016) and its gradient.
 *
 * RMS norm, whose means are NULL, is the same with zero in place of the mean and of beta: x - 0 and
 * x + 0 are exact. */

#include "kernels/cuda/rows.cuh"

#include <type_traits>

/* Loops over the lane's groups of N elements in a row of c. */
#define ROW_LOOP(j, c) for (int64_t j = (int64_t)lane * N; j < (c); j += LANES * N)

/* Loads COUNT groups of row r of a, from element `at` on. With RESIDUAL: of a + b, rounded, which
 * it also writes to `sum`. */
template <int COUNT, bool RESIDUAL, bool WHOLE, typename E>
static __device__ inline void hold_groups(const struct dpt_residual_norm &a, int64_t r, int64_t at,
                                          held<some<E>::N, E> (&mine)[COUNT])
{
    enum { N = some<E>::N, WIDTH = LANES * N };
    const int64_t c = a.c;
    held<N, E> other[COUNT];
#pragma unroll
    for (int p = 0; p < COUNT; p++) {
        mine[p] = load_some<N, WHOLE>((const E *)a.a + r * c, at + p * WIDTH, c);
        if (RESIDUAL)
            other[p] = load_some<N, WHOLE>((const E *)a.b + r * c, at + p * WIDTH, c);
    }
#pragma unroll
    for (int p = 0; RESIDUAL && p < COUNT; p++) {
        float v[N], b[N];
        widen_to(mine[p], v);
        widen_to(other[p], b);
#pragma unroll
        for (int k = 0; k < N; k++)
            v[k] = v[k] + b[k];
        mine[p].bits = rounded_words<N>(E(), v);
        if (at + p * WIDTH < c)
            put<N, WHOLE>((E *)a.sum + r * c, at + p * WIDTH, c, v);
    }
}

/* The norm of a row of a, or with RESIDUAL of a + b. P > 0: a lane keeps its groups of the row, at
 * most P, in registers. P = 0 is for rows of any length: each loop reads the groups again; with
 * RESIDUAL it reads them from `sum`, and a lane reads only elements that it wrote. */
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
    for (int g = 0; (RESIDUAL || P > 0) && g < groups; g += HELD)
        hold_groups<HELD, RESIDUAL, WHOLE>(a, r, at + g * WIDTH, mine);
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
    const bool whole = are_whole_rows<N, E>(a->c, a->a, a->b, a->sum, a->gamma, a->beta, a->y);
    FOR_WHOLE(
        whole, if (groups <= FEW) norm<E, FEW, RESIDUAL, WHOLE><<<grid, WARPS * LANES, 0, q>>>(*a);
        else if (groups <= MANY) norm<E, MANY, RESIDUAL, WHOLE><<<grid, WARPS * LANES, 0, q>>>(*a);
        else norm<E, 0, RESIDUAL, WHOLE><<<grid, WARPS * LANES, 0, q>>>(*a));
}

void dpt_launch_layernorm_forward(void *queue, const struct dpt_layernorm_forward *a)
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
        return;
    FOR_ELEM(a->dtype, post_norm<E, false>((cudaStream_t)queue, &alone));
}

void dpt_launch_residual_norm(void *queue, const struct dpt_residual_norm *a)
{
    if (a->n == 0)
        return;
    FOR_ELEM(a->dtype, post_norm<E, true>((cudaStream_t)queue, a));
}

static __device__ inline float mean_of(const struct dpt_layernorm_backward &a, int64_t row)
{
    return a.mean ? a.mean[row] : 0.0f;
}

/* A row's mean and rstd, the mean of the gradients of its normalised values (mean_sum), and the
 * mean of their products with these values (mean_dot). */
struct norm_row {
    float mean, rstd, mean_sum, mean_dot;
};

/* to = or += the gradient of the elements v of a row. d is the gradient of y, g is gamma. */
template <int N>
static __device__ inline void put_slopes(const norm_row &row, bool add, const float v[N],
                                         const float d[N], const float g[N], float to[N])
{
#pragma unroll
    for (int k = 0; k < N; k++) {
        const float hat = (v[k] - row.mean) * row.rstd;
        const float one = row.rstd * ((d[k] * g[k] - row.mean_sum) - hat * row.mean_dot);
        to[k] = add ? to[k] + one : one;
    }
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
    ROW_LOOP(j, c) {
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
    const norm_row row = {mean, rstd, a.mean ? group_sum<LANES>(sum) * inv_c : 0.0f,
                          group_sum<LANES>(dot) * inv_c};
    ROW_LOOP(j, c) {
        float to[N] = {};
        get<N, WHOLE>(x, j, c, v);
        get<N, WHOLE>(dy, j, c, d);
        get<N, WHOLE>(gamma, j, c, g);
        if (a.add_dx)
            get<N, WHOLE>(dx, j, c, to);
        put_slopes<N>(row, a.add_dx, v, d, g, to);
        put<N, WHOLE>(dx, j, c, to);
    }
}

/* sums (chunks, 2, c) = each chunk's gradients of gamma and of beta. RMS norm does not use the
 * second. Block (x: columns, y: chunks). */
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

/* The number of blocks of norm_grad_once per SM. A thread's registers decide it: its sums and its
 * parts of three rows. With four blocks on 132 SMs, 32,768 rows are under way at once. fp16 needs
 * more registers. */
template <typename E> static constexpr int once_blocks(int groups)
{
    const int registers = groups * (2 * (int)some<E>::N + 12);
    const int most = std::is_same<E, f16>::value && registers > 56 ? 3 : 4;
    return registers <= 100 ? most : 1;
}

/* Loads the lane's groups of a row of c elements. */
template <int P, bool WHOLE, typename E>
static __device__ inline void load_groups(const E *row, int64_t c, held<some<E>::N, E> (&ret)[P])
{
    enum { N = some<E>::N };
#pragma unroll
    for (int p = 0; p < P; p++)
        ret[p] = load_some<N, WHOLE>(row, p * LANES * N + threadIdx.x % LANES * N, c);
}

/* Computes dx and the sums for dgamma and dbeta in one pass, for rows of at most P groups per lane.
 * A block computes a chunk. Each warp takes every WARPS-th row, and the warps' sums are added in
 * order. */
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
        load_groups<P, WHOLE>((const E *)a.x + r * c, c, x);
        load_groups<P, WHOLE>((const E *)a.dy + r * c, c, dy);
        if (a.add_dx)
            load_groups<P, WHOLE>((const E *)a.dx + r * c, c, dx);
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
        const norm_row row = {mean, rstd, a.mean ? group_sum<LANES>(sum) * inv_c : 0.0f,
                              group_sum<LANES>(dot) * inv_c};
#pragma unroll
        for (int p = 0; p < P; p++) {
            widen_to(x[p], v);
            widen_to(dy[p], d);
            widen_to(gamma[p][lane], g);
            if (a.add_dx)
                widen_to(dx[p], to);
            put_slopes<N>(row, a.add_dx, v, d, g, to);
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

/* Posts norm_grad_once if rows have at most P groups per lane. False: they have more. */
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

int64_t dpt_launch_layernorm_backward_bytes(int64_t n, int64_t c)
{
    return ceil_div(n, CHUNK) * 2 * c * (int64_t)sizeof(float);
}

template <typename E>
static void post_norm_grad(cudaStream_t q, const struct dpt_layernorm_backward *a, float *work)
{
    enum { N = some<E>::N };
    const int64_t c = a->c, chunks = ceil_div(a->n, CHUNK);
    const bool whole = are_whole_rows<N, E>(c, a->x, a->dy, a->gamma, a->dx);
    /* More groups overflow a thread's registers. */
    constexpr int GROUPS_MAX = sizeof(E) == 4 ? 7 : 5;
    FOR_WHOLE(
        whole, if (!post_norm_grad_once<E, GROUPS_MAX, WHOLE>(q, a, work)) {
            norm_weights_chunk<E, WHOLE>
                <<<chunk_grid(a->n, c, COLUMNS * N), COLUMNS, 0, q>>>(*a, work);
            norm_grad<E, WHOLE><<<(unsigned)ceil_div(a->n, WARPS), WARPS * LANES, 0, q>>>(*a);
        });
    join_groups<<<join_grid(chunks, 2 * c), COLUMNS, 0, q>>>(chunks, 2 * c, work, 2 * c);
}

void dpt_launch_layernorm_backward(void *queue, const struct dpt_layernorm_backward *a, void *work)
{
    cudaStream_t q = (cudaStream_t)queue;
    float *sums = (float *)work;
    const int64_t groups = groups_of(a->n);
    if (a->c == 0)
        return;
    if (a->n > 0)
        FOR_ELEM(a->dtype, post_norm_grad<E>(q, a, sums));
    const unsigned grid = grid_for(a->c, COLUMNS);
    if (a->dgamma)
        join_chunks<<<grid, COLUMNS, 0, q>>>(groups, a->c, sums, 2 * a->c, a->accumulate,
                                             a->dgamma);
    if (a->dbeta)
        join_chunks<<<grid, COLUMNS, 0, q>>>(groups, a->c, sums + a->c, 2 * a->c, a->accumulate,
                                             a->dbeta);
}
