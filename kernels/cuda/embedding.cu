/* Token embeddings, with or without those of positions.
 *
 * Backward needs no atomics: the positions are put in the order of (token, position), each by
 * counting how many come before it, and one block then adds up the rows of a token in the order of
 * its positions. Counting compares every position with every other, 1e9 comparisons for 32,768
 * positions, and needs no sort. */
#include "kernels/cuda/elem.cuh"
#include "kernels/cuda/launch.h"

enum {
    THREADS = 256,
    CHANNELS = 128,
    AHEAD = 8 /* rows whose loads are under way at once */
};

template <typename E> static __global__ void embed(struct dpt_embedding_forward a, struct drop d)
{
    const E *wte = (const E *)a.wte, *wpe = (const E *)a.wpe;
    E *y = (E *)a.y;
    GRID_LOOP(i, a.b * a.t * a.c)
    {
        const int64_t row = i / a.c, channel = i % a.c;
        E x = wte[a.tokens[row] * a.c + channel];
        if (wpe)
            x = rounded<E>(widened(x) + widened(wpe[row % a.t * a.c + channel]));
        if (d.on)
            x = rounded<E>(widened(x) * drop_factor(d, (uint64_t)i));
        y[i] = x;
    }
}

int dpt_launch_embedding_forward(void *queue, const struct dpt_embedding_forward *a)
{
    const int64_t n = a->b * a->t * a->c;
    if (n == 0)
        return 0;
    FOR_ELEM(a->dtype, embed<E>
             <<<grid_for(n, THREADS), THREADS, 0, (cudaStream_t)queue>>>(*a, drop_of(&a->dropout)));
    return cudaGetLastError();
}

/* order[number of positions that come before i] = i. */
static __global__ void rank_positions(int32_t n, const int32_t *tokens, int32_t *order)
{
    __shared__ int32_t tile[THREADS];
    const int32_t i = (int32_t)(blockIdx.x * THREADS + threadIdx.x);
    const int32_t token = i < n ? tokens[i] : 0;
    int32_t before = 0;
    for (int32_t at = 0; at < n; at += THREADS) {
        if (at + (int32_t)threadIdx.x < n)
            tile[threadIdx.x] = tokens[at + threadIdx.x];
        __syncthreads();
        const int32_t count = n - at < THREADS ? n - at : THREADS;
#pragma unroll 8
        for (int32_t j = 0; j < count; j++)
            before += tile[j] < token || (tile[j] == token && at + j < i);
        __syncthreads();
    }
    if (i < n)
        order[before] = i;
}

template <typename E>
static __device__ float gradient_at(const struct dpt_embedding_backward &a, const struct drop &d,
                                    int64_t i)
{
    const float g = widened(((const E *)a.dy)[i]);
    return d.on ? g * drop_factor(d, (uint64_t)i) : g;
}

/* Block (x: place in the order, y: channels): does the token whose first position is there. */
template <typename E>
static __global__ void sum_tokens(struct dpt_embedding_backward a, struct drop d, int64_t n,
                                  const int32_t *order)
{
    const int64_t at = blockIdx.x, channel = (int64_t)blockIdx.y * CHANNELS + threadIdx.x;
    const int32_t token = a.tokens[order[at]];
    if (channel >= a.c || (at > 0 && a.tokens[order[at - 1]] == token))
        return;
    float sum = gradient_at<E>(a, d, order[at] * a.c + channel);
    bool more = true;
    for (int64_t next = at + 1; more; next += AHEAD) {
        int32_t place[AHEAD];
        bool is_it[AHEAD];
        float g[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            place[k] = next + k < n ? order[next + k] : -1;
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            is_it[k] = place[k] >= 0 && a.tokens[place[k]] == token;
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            g[k] = is_it[k] ? gradient_at<E>(a, d, place[k] * a.c + channel) : 0.0f;
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            sum = is_it[k] ? sum + g[k] : sum;
        more = is_it[AHEAD - 1];
    }
    float *to = a.dwte + token * a.c + channel;
    *to = a.accumulate_wte ? *to + sum : sum;
}

template <typename E>
static __global__ void sum_places(struct dpt_embedding_backward a, struct drop d)
{
    const int64_t rows = a.t * a.c;
    GRID_LOOP(i, rows)
    {
        float sum = gradient_at<E>(a, d, i);
#pragma unroll 8
        for (int64_t b = 1; b < a.b; b++)
            sum += gradient_at<E>(a, d, b * rows + i);
        a.dwpe[i] = a.accumulate_wpe ? a.dwpe[i] + sum : sum;
    }
}

int64_t dpt_launch_embedding_backward_ints(int64_t n)
{
    return n;
}

int dpt_launch_embedding_backward(void *queue, const struct dpt_embedding_backward *a,
                                  int32_t *work)
{
    cudaStream_t q = (cudaStream_t)queue;
    const int64_t n = a->b * a->t;
    const struct drop d = drop_of(&a->dropout);
    cudaError_t error = cudaSuccess;
    if (!a->accumulate_wte)
        error = cudaMemsetAsync(a->dwte, 0, (size_t)(a->v * a->c) * sizeof(float), q);
    const int64_t beyond = n > 0 ? a->t : 0; /* rows of wpe from here on get nothing */
    if (error == cudaSuccess && a->dwpe && !a->accumulate_wpe && a->context > beyond)
        error = cudaMemsetAsync(a->dwpe + beyond * a->c, 0,
                                (size_t)((a->context - beyond) * a->c) * sizeof(float), q);
    if (error != cudaSuccess || n == 0 || a->c == 0)
        return error;
    rank_positions<<<(unsigned)ceil_div(n, THREADS), THREADS, 0, q>>>((int32_t)n, a->tokens, work);
    const dim3 grid((unsigned)n, (unsigned)ceil_div(a->c, CHANNELS));
    FOR_ELEM(a->dtype, sum_tokens<E><<<grid, CHANNELS, 0, q>>>(*a, d, n, work));
    if (a->dwpe)
        FOR_ELEM(a->dtype, sum_places<E><<<grid_for(a->t * a->c, THREADS), THREADS, 0, q>>>(*a, d));
    return cudaGetLastError();
}
