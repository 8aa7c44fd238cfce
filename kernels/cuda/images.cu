/* The kernels for convolutions (before and after their products), batch norm and pools.
 *
 * Sums over rows are made in chunks of rows. The number of rows alone decides the size of a chunk.
 * A block has 32 channels and 8 threads for each channel. A thread adds every 8th row. The sums of
 * the threads, and then of the chunks, are added in order. The size of the grid changes nothing. */
#include "kernels/cuda/elem.cuh"
#include "kernels/cuda/launch.h"

enum { THREADS = 256, LANES = 32, ROWS = THREADS / LANES, CHUNK_MIN = 64, CHUNKS_MAX = 1024 };

/* The number of all windows. */
static inline int64_t windows_of(const struct dpt_windows &of)
{
    return of.b * dpt_windows_along(of.h, of.stride) * dpt_windows_along(of.w, of.stride);
}

/* The index, among the pixels of all images, of the pixel under tap `tap` of a window. -1: the tap
 * is outside of the image. */
static __device__ inline int64_t pixel_at(const struct dpt_windows &of, int64_t window, int64_t tap)
{
    const int64_t out_h = dpt_windows_along(of.h, of.stride),
                  out_w = dpt_windows_along(of.w, of.stride);
    const int64_t y = window / out_w % out_h * of.stride - of.kernel / 2 + tap / of.kernel;
    const int64_t x = window % out_w * of.stride - of.kernel / 2 + tap % of.kernel;
    return y < 0 || y >= of.h || x < 0 || x >= of.w
               ? -1
               : (window / out_w / out_h * of.h + y) * of.w + x;
}

/* The window whose tap `tap` is on a pixel. -1: there is none. */
static __device__ inline int64_t window_at(const struct dpt_windows &of, int64_t pixel, int64_t tap)
{
    const int64_t out_h = dpt_windows_along(of.h, of.stride),
                  out_w = dpt_windows_along(of.w, of.stride);
    const int64_t up = pixel / of.w % of.h + of.kernel / 2 - tap / of.kernel;
    const int64_t left = pixel % of.w + of.kernel / 2 - tap % of.kernel;
    if (up < 0 || up % of.stride != 0 || up / of.stride >= out_h || left < 0 ||
        left % of.stride != 0 || left / of.stride >= out_w)
        return -1;
    return (pixel / of.w / of.h * out_h + up / of.stride) * out_w + left / of.stride;
}

/* --- weights: (out, in, taps) for the caller, (out, taps, in) for products --- */

template <typename E>
static __global__ void arrange(int64_t n, int64_t in, int64_t taps, const E *from, E *to)
{
    GRID_LOOP(i, n) {
        const int64_t channel = i % in, tap = i / in % taps, out = i / in / taps;
        to[i] = from[(out * in + channel) * taps + tap];
    }
}

void dpt_launch_conv_arrange(void *queue, const struct dpt_launch_conv_weight *a, const void *from,
                             void *to)
{
    const int64_t n = a->out * a->in * a->taps;
    FOR_ELEM(a->dtype, POST(arrange<E>, n, n, a->in, a->taps, (const E *)from, (E *)to));
}

static __global__ void restore(int64_t n, int64_t in, int64_t taps, const float *from,
                               bool accumulate, float *to)
{
    GRID_LOOP(i, n) {
        const int64_t tap = i % taps, channel = i / taps % in, out = i / taps / in;
        const float x = from[(out * taps + tap) * in + channel];
        to[i] = accumulate ? to[i] + x : x;
    }
}

void dpt_launch_conv_restore(void *queue, const struct dpt_launch_conv_weight *a, const float *from,
                             bool accumulate, float *to)
{
    const int64_t n = a->out * a->in * a->taps;
    POST(restore, n, n, a->in, a->taps, from, accumulate, to);
}

/* --- windows as rows, and back --- */

/* A thread copies N channels of one pixel of a window. */
template <typename E, bool WHOLE>
static __global__ void windows(struct dpt_windows of, int64_t c, int64_t items, const E *x, E *to)
{
    enum { N = some<E>::N };
    const int64_t groups = (c + N - 1) / N, taps = of.kernel * of.kernel;
    GRID_LOOP(i, items) {
        const int64_t at = i % groups * N, tap = i / groups % taps, row = i / groups / taps;
        const int64_t pixel = pixel_at(of, row, tap);
        float v[N] = {};
        if (pixel >= 0)
            get<N, WHOLE>(x + pixel * c, at, c, v);
        put<N, WHOLE>(to + (row * taps + tap) * c, at, c, v);
    }
}

template <typename E>
static void post_windows(void *queue, const struct dpt_windows *of, int64_t c, const E *x, E *to)
{
    enum { N = some<E>::N };
    const int64_t items = windows_of(*of) * of->kernel * of->kernel * ceil_div(c, N);
    FOR_WHOLE((are_whole_rows<N, E>(c, x, to)),
              POST((windows<E, WHOLE>), items, *of, c, items, x, to));
}

void dpt_launch_windows(void *queue, const struct dpt_windows *of, int64_t c, enum dpt_dtype dtype,
                        const void *x, void *to)
{
    FOR_ELEM(dtype, post_windows<E>(queue, of, c, (const E *)x, (E *)to));
}

/* A thread computes one channel of a pixel: it adds the values of the windows that contain the
 * pixel, in order. */
template <typename E>
static __global__ void pixels(struct dpt_windows of, int64_t c, int64_t items, const float *from,
                              bool add, E *dx)
{
    const int64_t taps = of.kernel * of.kernel;
    GRID_LOOP(i, items) {
        float sum = 0.0f;
        for (int64_t tap = taps - 1; tap >= 0; tap--) {
            const int64_t row = window_at(of, i / c, tap);
            if (row >= 0)
                sum += from[(row * taps + tap) * c + i % c];
        }
        dx[i] = rounded<E>(add ? widened(dx[i]) + sum : sum);
    }
}

void dpt_launch_pixels(void *queue, const struct dpt_launch_pixels *a)
{
    const int64_t items = a->of.b * a->of.h * a->of.w * a->c;
    FOR_ELEM(a->dtype, POST(pixels<E>, items, a->of, a->c, items, a->from, a->add, (E *)a->dx));
}

/* --- batch norm --- */

static int64_t chunk_of(int64_t n)
{
    const int64_t chunk = ceil_div(n, CHUNKS_MAX);
    return chunk > (int64_t)CHUNK_MIN ? chunk : (int64_t)CHUNK_MIN;
}

/* The sum over the block's threads of one channel, in order. Each of these threads gets the
 * result. */
static __device__ inline float channel_sum(float x, float *place)
{
    float sum = 0.0f;
    place[threadIdx.x] = x;
    __syncthreads();
    for (int row = 0; row < ROWS; row++)
        sum += place[row * LANES + threadIdx.x % LANES];
    __syncthreads();
    return sum;
}

/* The channel of the thread. ROW_LOOP: the rows of the chunk that the thread takes, beginning with
 * `from`. */
#define CHANNEL                ((int64_t)blockIdx.x * LANES + threadIdx.x % LANES)
#define ROW_LOOP(r, from, end) for (int64_t r = (from) + threadIdx.x / LANES; r < (end); r += ROWS)

/* Block (x: channels, y: chunk). The squares are distances to the chunk's own mean. */
template <typename E>
static __global__ void norm_sums(int64_t n, int64_t c, int64_t chunk, const E *x, float *sums)
{
    __shared__ float place[THREADS];
    const int64_t i = CHANNEL, from = blockIdx.y * chunk, end = from + chunk < n ? from + chunk : n;
    float sum = 0.0f, squares = 0.0f;
    if (i < c)
        ROW_LOOP(r, from, end)
            sum += widened(x[r * c + i]);
    sum = channel_sum(sum, place);
    const float mean = sum / (float)(end - from);
    if (i < c)
        ROW_LOOP(r, from, end) {
            const float d = widened(x[r * c + i]) - mean;
            squares = fmaf(d, d, squares);
        }
    squares = channel_sum(squares, place);
    if (i < c && threadIdx.x < LANES) {
        sums[blockIdx.y * 2 * c + i] = sum;
        sums[(blockIdx.y * 2 + 1) * c + i] = squares;
    }
}

static __global__ void norm_join(struct dpt_batchnorm_forward a, int64_t chunk, const float *sums)
{
    __shared__ float place[THREADS];
    const int64_t i = CHANNEL, c = a.c, chunks = (a.n + chunk - 1) / chunk;
    const float n = (float)a.n;
    float sum = 0.0f, squares = 0.0f;
    if (i < c)
        ROW_LOOP(k, 0, chunks)
            sum += sums[k * 2 * c + i];
    const float mean = channel_sum(sum, place) / n;
    if (i < c)
        ROW_LOOP(k, 0, chunks) {
            const int64_t left = a.n - k * chunk;
            const float rows = (float)(left < chunk ? left : chunk);
            const float away = sums[k * 2 * c + i] / rows - mean;
            squares += sums[(k * 2 + 1) * c + i] + rows * (away * away);
        }
    squares = channel_sum(squares, place);
    if (i < c && threadIdx.x < LANES) {
        a.mean[i] = mean;
        a.rstd[i] = 1.0f / sqrtf(squares / n + a.eps);
        a.var[i] = squares / (n - 1.0f);
    }
}

template <typename E>
static __global__ void running_statistics(struct dpt_batchnorm_forward a, float *mean, float *rstd)
{
    GRID_LOOP(i, a.c) {
        mean[i] = widened(((const E *)a.running_mean)[i]);
        rstd[i] = 1.0f / sqrtf(widened(((const E *)a.running_var)[i]) + a.eps);
    }
}

/* A thread computes N channels of a row. */
template <typename E, bool WHOLE>
static __global__ void normalise(struct dpt_batchnorm_forward a, int64_t items, const float *mean,
                                 const float *rstd)
{
    enum { N = some<E>::N };
    const int64_t groups = (a.c + N - 1) / N;
    GRID_LOOP(i, items) {
        const int64_t at = i % groups * N, row = i / groups * a.c;
        float x[N], gamma[N], beta[N], residual[N] = {};
        get<N, WHOLE>((const E *)a.x + row, at, a.c, x);
        get<N, WHOLE>((const E *)a.gamma, at, a.c, gamma);
        get<N, WHOLE>((const E *)a.beta, at, a.c, beta);
        if (a.residual)
            get<N, WHOLE>((const E *)a.residual + row, at, a.c, residual);
#pragma unroll
        for (int k = 0; k < N; k++) {
            const bool there = WHOLE || at + k < a.c;
            const float hat = there ? (x[k] - mean[at + k]) * rstd[at + k] : 0.0f;
            float y = fmaf(hat, gamma[k], beta[k]);
            if (a.residual)
                y = y + residual[k];
            x[k] = a.relu && y < 0.0f ? 0.0f : y; /* a NaN stays a NaN */
        }
        put<N, WHOLE>((E *)a.y + row, at, a.c, x);
    }
}

template <typename E>
static void post_norm(cudaStream_t q, const struct dpt_batchnorm_forward *a, float *work)
{
    enum { N = some<E>::N };
    const int64_t chunk = chunk_of(a->n), items = a->n * ceil_div(a->c, N);
    const unsigned blocks = (unsigned)ceil_div(a->c, LANES);
    const float *mean = a->mean, *rstd = a->rstd;
    if (a->running_mean) {
        running_statistics<E><<<grid_for(a->c, THREADS), THREADS, 0, q>>>(*a, work, work + a->c);
        mean = work;
        rstd = work + a->c;
    } else {
        norm_sums<E><<<dim3(blocks, (unsigned)ceil_div(a->n, chunk)), THREADS, 0, q>>>(
            a->n, a->c, chunk, (const E *)a->x, work);
        norm_join<<<blocks, THREADS, 0, q>>>(*a, chunk, work);
    }
    const bool whole = are_whole_rows<N, E>(a->c, a->x, a->gamma, a->beta, a->residual, a->y);
    FOR_WHOLE(whole, normalise<E, WHOLE>
              <<<grid_for(items, THREADS), THREADS, 0, q>>>(*a, items, mean, rstd));
}

int64_t dpt_launch_batchnorm_bytes(int64_t n, int64_t c)
{
    return (ceil_div(n, chunk_of(n)) + 1) * 2 * c * (int64_t)sizeof(float);
}

void dpt_launch_batchnorm_forward(void *queue, const struct dpt_batchnorm_forward *a, void *work)
{
    if (a->n * a->c == 0)
        return;
    FOR_ELEM(a->dtype, post_norm<E>((cudaStream_t)queue, a, (float *)work));
}

/* dy, or zero where the relu's output y is not above zero. */
template <typename E>
static __device__ inline float past_relu(const struct dpt_batchnorm_backward &a, int64_t at)
{
    return !a.y || widened(((const E *)a.y)[at]) > 0.0f ? widened(((const E *)a.dy)[at]) : 0.0f;
}

template <typename E>
static __global__ void grad_sums(struct dpt_batchnorm_backward a, int64_t chunk, float *sums)
{
    __shared__ float place[THREADS];
    const int64_t i = CHANNEL, c = a.c, from = blockIdx.y * chunk;
    const int64_t end = from + chunk < a.n ? from + chunk : a.n;
    float dot = 0.0f, sum = 0.0f;
    if (i < c)
        ROW_LOOP(r, from, end) {
            const float hat = (widened(((const E *)a.x)[r * c + i]) - a.mean[i]) * a.rstd[i];
            const float g = past_relu<E>(a, r * c + i);
            dot = fmaf(g, hat, dot);
            sum += g;
        }
    dot = channel_sum(dot, place);
    sum = channel_sum(sum, place);
    if (i < c && threadIdx.x < LANES) {
        sums[blockIdx.y * 2 * c + i] = dot;
        sums[(blockIdx.y * 2 + 1) * c + i] = sum;
    }
}

static __device__ inline void give_gradient(const struct dpt_batchnorm_backward &a, float *to,
                                            int64_t i, float x)
{
    if (to)
        to[i] = a.accumulate ? to[i] + x : x;
}

static __global__ void grad_join(struct dpt_batchnorm_backward a, int64_t chunks, const float *sums,
                                 float *means)
{
    __shared__ float place[THREADS];
    const int64_t i = CHANNEL, c = a.c;
    float dgamma = 0.0f, dbeta = 0.0f;
    if (i < c)
        ROW_LOOP(k, 0, chunks) {
            dgamma += sums[k * 2 * c + i];
            dbeta += sums[(k * 2 + 1) * c + i];
        }
    dgamma = channel_sum(dgamma, place);
    dbeta = channel_sum(dbeta, place);
    if (i < c && threadIdx.x < LANES) {
        means[i] = dgamma / (float)a.n;
        means[c + i] = dbeta / (float)a.n;
        give_gradient(a, a.dgamma, i, dgamma);
        give_gradient(a, a.dbeta, i, dbeta);
        give_gradient(a, a.dmean, i, a.share * a.mean[i]);
        give_gradient(a, a.dvar, i, a.share * a.var[i]);
    }
}

/* dy and dresidual may be the same memory, because each element is read before it is written. */
template <typename E>
static __global__ void norm_grad(struct dpt_batchnorm_backward a, const float *means)
{
    GRID_LOOP(at, a.n * a.c) {
        const int64_t i = at % a.c;
        const float hat = (widened(((const E *)a.x)[at]) - a.mean[i]) * a.rstd[i];
        const float g = past_relu<E>(a, at), d = g - means[a.c + i] - hat * means[i];
        if (a.dresidual)
            ((E *)a.dresidual)[at] = rounded<E>(g);
        ((E *)a.dx)[at] = rounded<E>(a.rstd[i] * widened(((const E *)a.gamma)[i]) * d);
    }
}

void dpt_launch_batchnorm_backward(void *queue, const struct dpt_batchnorm_backward *a, void *work)
{
    cudaStream_t q = (cudaStream_t)queue;
    const int64_t chunk = chunk_of(a->n), chunks = ceil_div(a->n, chunk);
    const unsigned blocks = (unsigned)ceil_div(a->c, LANES);
    float *const means = (float *)work, *const sums = means + 2 * a->c;
    if (a->n * a->c == 0)
        return;
    FOR_ELEM(a->dtype,
             grad_sums<E><<<dim3(blocks, (unsigned)chunks), THREADS, 0, q>>>(*a, chunk, sums));
    grad_join<<<blocks, THREADS, 0, q>>>(*a, chunks, sums, means);
    FOR_ELEM(a->dtype, norm_grad<E><<<grid_for(a->n * a->c, THREADS), THREADS, 0, q>>>(*a, means));
}

/* --- pools: a thread computes one channel of a pixel --- */

template <typename E> static __global__ void maxpool(struct dpt_maxpool a, int64_t items)
{
    GRID_LOOP(i, items) {
        float most = 0.0f;
        int64_t which = -1, from = 0;
        for (int64_t tap = 0; tap < a.of.kernel * a.of.kernel; tap++) {
            const int64_t pixel = pixel_at(a.of, i / a.c, tap);
            if (pixel < 0)
                continue;
            const int64_t at = pixel * a.c + i % a.c;
            const float v = widened(((const E *)a.x)[at]);
            if (which < 0 || v > most || v != v) {
                most = v;
                which = tap;
                from = at;
            }
        }
        ((E *)a.y)[i] = ((const E *)a.x)[from];
        a.taken[i] = (uint8_t)which;
    }
}

void dpt_launch_maxpool_forward(void *queue, const struct dpt_maxpool *a)
{
    const int64_t items = windows_of(a->of) * a->c;
    FOR_ELEM(a->dtype, POST(maxpool<E>, items, *a, items));
}

template <typename E> static __global__ void maxpool_grad(struct dpt_maxpool a, int64_t items)
{
    GRID_LOOP(i, items) {
        float sum = 0.0f;
        for (int64_t tap = a.of.kernel * a.of.kernel - 1; tap >= 0; tap--) {
            const int64_t window = window_at(a.of, i / a.c, tap), at = window * a.c + i % a.c;
            if (window >= 0 && a.taken[at] == tap)
                sum += widened(((const E *)a.dy)[at]);
        }
        ((E *)a.dx)[i] = rounded<E>(sum);
    }
}

void dpt_launch_maxpool_backward(void *queue, const struct dpt_maxpool *a)
{
    const int64_t items = a->of.b * a->of.h * a->of.w * a->c;
    FOR_ELEM(a->dtype, POST(maxpool_grad<E>, items, *a, items));
}

template <typename E> static __global__ void avgpool(struct dpt_avgpool a)
{
    GRID_LOOP(i, a.b * a.c) {
        const E *x = (const E *)a.in + i / a.c * a.pixels * a.c + i % a.c;
        float sum = 0.0f;
#pragma unroll 8
        for (int64_t pixel = 0; pixel < a.pixels; pixel++)
            sum += widened(x[pixel * a.c]);
        ((E *)a.out)[i] = rounded<E>(sum / (float)a.pixels);
    }
}

void dpt_launch_avgpool_forward(void *queue, const struct dpt_avgpool *a)
{
    FOR_ELEM(a->dtype, POST(avgpool<E>, a->b * a->c, *a));
}

template <typename E> static __global__ void avgpool_grad(struct dpt_avgpool a)
{
    GRID_LOOP(i, a.b * a.pixels * a.c) {
        const float dy = widened(((const E *)a.in)[i / a.c / a.pixels * a.c + i % a.c]);
        ((E *)a.out)[i] = rounded<E>(dy / (float)a.pixels);
    }
}

void dpt_launch_avgpool_backward(void *queue, const struct dpt_avgpool *a)
{
    const int64_t n = a->b * a->pixels * a->c;
    FOR_ELEM(a->dtype, POST(avgpool_grad<E>, n, *a));
}
