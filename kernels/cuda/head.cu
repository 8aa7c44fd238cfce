/* The head's softmax: one block a row of logits, so that what is read twice is near the second
 * time. Threads take elements in a fixed pattern and are joined in a fixed tree. And the rows of
 * last tokens, which are copied as they are. */
#include "kernels/cuda/elem.cuh"
#include "kernels/cuda/launch.h"

enum {
    LONG_ROW = 4096, /* logits, from which on a block has THREADS_LONG */
    THREADS_SHORT = 128,
    THREADS_LONG = 1024,
    THREADS_ROWS = 256, /* that copy rows */
    WORD = 4,           /* logits in one access */
    AHEAD = 4,          /* accesses of a thread that are under way at once */
    ROW_UNIT = 2 * WORD /* rows begin, and end behind their padding, at multiples of it */
};

/* Of elements [at, at + WORD) of a row; those past the end are `least`. */
static __device__ inline void load_logits(const float *x, int64_t at, int64_t v, float least,
                                          float ret[WORD])
{
#pragma unroll
    for (int k = 0; k < WORD; k++)
        ret[k] = least;
    if (at < v)
        get<WORD, true>(x, at, v, ret);
#pragma unroll
    for (int k = 0; k < WORD; k++)
        ret[k] = at + k < v ? ret[k] : least;
}

/* The log of the sum of e^x over the row; every thread has it. */
template <int THREADS>
static __device__ float log_sum_exp(const float *x, int64_t v, float place[THREADS])
{
    const int64_t stride = THREADS * WORD; /* what the block reads at once */
    const float least = -3.0e38f;          /* finite, so that most - most is never NaN */
    float most = least, sum = 0.0f;
    for (int64_t base = 0; base < v; base += AHEAD * stride) {
        float ahead[AHEAD][WORD], highest = most;
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            load_logits(x, base + i * stride + threadIdx.x * WORD, v, least, ahead[i]);
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
#pragma unroll
            for (int k = 0; k < WORD; k++)
                highest = fmaxf(highest, ahead[i][k]);
        sum *= exp_of(most - highest);
        most = highest;
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (base + i * stride >= v) /* nobody has any */
                break;
#pragma unroll
            for (int k = 0; k < WORD; k++)
                sum += exp_of(ahead[i][k] - most);
        }
    }
    /* A thread without elements has counted what is past the end; that is nothing beside any. */
    const float row_most = block_max<THREADS>(most, place);
    const float row_sum = block_sum<THREADS>(sum * exp_of(most - row_most), place);
    return row_most + (float)log((double)row_sum);
}

/* dlogits may lie where the logits do: what is written of a tile lies at or before it, and all of
 * the tile has been read by then. */
template <typename E, int THREADS>
static __device__ void write_slopes(const struct dpt_launch_softmax &a, const float *x, E *to,
                                    int64_t target, float lse)
{
    enum { N = some<E>::N };
    for (int64_t base = 0; base < a.ld; base += THREADS * N) {
        const int64_t at = base + threadIdx.x * N;
        float g[N];
#pragma unroll
        for (int k = 0; k < N; k += WORD)
            load_logits(x, at + k, a.v, 0.0f, g + k);
        __syncthreads();
        if (at >= a.ld)
            continue;
#pragma unroll
        for (int k = 0; k < N; k++) {
            g[k] = at + k < a.v ? exp_of(g[k] - lse) * a.dloss : 0.0f;
            g[k] -= at + k == target ? a.dloss : 0.0f;
        }
        put<N, true>(to, at, a.ld, g);
    }
}

/* Whether the target is the first of the row's greatest logits; every thread knows. */
template <int THREADS>
static __device__ bool predicts(const float *x, int64_t v, int64_t target, float place[THREADS])
{
    const float at_target = x[target];
    float beaten = 0.0f;
    for (int64_t i = threadIdx.x; i < v; i += THREADS)
        if (!(i < target ? x[i] < at_target : x[i] <= at_target))
            beaten = 1.0f;
    return !(block_max<THREADS>(beaten, place) > 0.0f);
}

template <typename E, int THREADS>
static __global__ void __launch_bounds__(THREADS) softmax_loss(struct dpt_launch_softmax a)
{
    __shared__ float place[THREADS];
    const int64_t r = blockIdx.x, target = a.targets[r];
    const float *x = a.logits + r * a.ld;
    const float lse = log_sum_exp<THREADS>(x, a.v, place);
    if (threadIdx.x == 0)
        a.loss[r] = lse - x[target];
    if (a.right) {
        const bool right = predicts<THREADS>(x, a.v, target, place);
        if (threadIdx.x == 0)
            a.right[r] = right ? 1.0f : 0.0f;
    }
    if (!a.dlogits)
        return;
    __syncthreads(); /* x[target] is read before it is overwritten */
    write_slopes<E, THREADS>(a, x, (E *)a.dlogits + r * a.dlogits_ld, target, lse);
}

template <typename E> static void post(cudaStream_t q, const struct dpt_launch_softmax *a)
{
    if (a->v < LONG_ROW)
        softmax_loss<E, THREADS_SHORT><<<(unsigned)a->rows, THREADS_SHORT, 0, q>>>(*a);
    else
        softmax_loss<E, THREADS_LONG><<<(unsigned)a->rows, THREADS_LONG, 0, q>>>(*a);
}

int dpt_launch_softmax_loss(void *queue, const struct dpt_launch_softmax *a)
{
    if (a->rows == 0)
        return 0;
    if (a->ld % ROW_UNIT != 0 || a->dlogits_ld % ROW_UNIT != 0)
        return cudaErrorInvalidValue;
    FOR_ELEM(a->dtype, post<E>((cudaStream_t)queue, a));
    return cudaGetLastError();
}

template <typename E> static __global__ void last_token(struct dpt_last_token a)
{
    const E *x = (const E *)a.x;
    E *y = (E *)a.y;
    GRID_LOOP(i, a.b * a.c)
    {
        const int64_t sample = i / a.c;
        y[i] = x[(sample * a.t + a.lengths[sample] - 1) * a.c + i % a.c];
    }
}

int dpt_launch_last_token(void *queue, const struct dpt_last_token *a)
{
    const int64_t n = a->b * a->c;
    if (n == 0)
        return 0;
    FOR_ELEM(a->dtype, last_token<E>
             <<<grid_for(n, THREADS_ROWS), THREADS_ROWS, 0, (cudaStream_t)queue>>>(*a));
    return cudaGetLastError();
}

template <typename E> static __global__ void last_token_grad(struct dpt_last_token a)
{
    const E *dy = (const E *)a.x;
    E *dx = (E *)a.y;
    GRID_LOOP(i, a.b * a.t * a.c)
    {
        const int64_t row = i / a.c, sample = row / a.t;
        const bool last = row % a.t == a.lengths[sample] - 1;
        dx[i] = last ? dy[sample * a.c + i % a.c] : rounded<E>(0.0f);
    }
}

int dpt_launch_last_token_grad(void *queue, const struct dpt_last_token *a)
{
    const int64_t n = a->b * a->t * a->c;
    if (n == 0)
        return 0;
    FOR_ELEM(a->dtype, last_token_grad<E>
             <<<grid_for(n, THREADS_ROWS), THREADS_ROWS, 0, (cudaStream_t)queue>>>(*a));
    return cudaGetLastError();
}
