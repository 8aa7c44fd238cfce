/* Token embeddings, with or without position embeddings.
 *
 * Backward needs no atomics. It orders the positions by (token, position): it sorts tiles of
 * positions, and the place of a position in the order is the number of smaller keys in all tiles.
 * Then it sums the rows of the gradient in that order, in pieces of PIECE places. A token that
 * continues in the next piece has a partial sum in each piece, and these are added in order. */
#include "kernels/cuda/elem.cuh"
#include "kernels/cuda/launch.h"

enum {
    THREADS = 256,
    LANES = 32,
    TILE = 1024, /* positions that a block sorts */
    RANK_THREADS = 128,
    PIECE = 32, /* equal to the lanes of a warp */
    PLACE_THREADS = 128,
    AHEAD = 8 /* rows loaded at once */
};

/* A warp computes a row. Each lane takes N adjacent elements at a time (elem.cuh). */
template <typename E, bool WHOLE>
static __global__ void __launch_bounds__(THREADS, 4)
    embed(struct dpt_embedding_forward a, struct drop d)
{
    enum { N = some<E>::N };
    const int lane = threadIdx.x % LANES;
    const int64_t row = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / LANES, c = a.c;
    if (row >= a.b * a.t)
        return;
    const E *of_token = (const E *)a.wte + a.tokens[row] * c;
    const E *of_place = a.wpe ? (const E *)a.wpe + row % a.t * c : NULL;
#pragma unroll 1
    for (int64_t j = (int64_t)lane * N; j < c; j += LANES * N) {
        float x[N], place[N];
        get<N, WHOLE>(of_token, j, c, x);
        if (of_place) {
            get<N, WHOLE>(of_place, j, c, place);
#pragma unroll
            for (int k = 0; k < N; k++)
                x[k] = x[k] + place[k];
        }
        if (d.on) {
            held<N, E> sum;
            sum.bits = rounded_words<N>(E(), x);
            widen_to(sum, x);
            drop_some<N>(d, (uint64_t)(row * c + j), x);
        }
        put<N, WHOLE>((E *)a.y + row * c, j, c, x);
    }
}

template <typename E> static void post_embed(cudaStream_t q, const struct dpt_embedding_forward *a)
{
    enum { N = some<E>::N };
    const bool whole = are_whole_rows<N, E>(a->c, a->wte, a->wpe, a->y);
    FOR_WHOLE(whole,
              embed<E, WHOLE><<<(unsigned)ceil_div(a->b * a->t, THREADS / LANES), THREADS, 0, q>>>(
                  *a, drop_of(&a->dropout)));
}

void dpt_launch_embedding_forward(void *queue, const struct dpt_embedding_forward *a)
{
    if (a->b * a->t * a->c == 0)
        return;
    FOR_ELEM(a->dtype, post_embed<E>((cudaStream_t)queue, a));
}

/* --- the order of the positions ---
 *
 * The key of a position has its token in the upper half and the position in the lower half, so no
 * two keys are equal. */

static __device__ inline int32_t token_of(uint64_t key)
{
    return (int32_t)(key >> 32);
}

static __device__ inline int32_t position_of(uint64_t key)
{
    return (int32_t)(uint32_t)key;
}

/* A block sorts the keys of TILE positions by a bitonic network (Batcher, 1968). The rest of the
 * last tile is filled with keys that are greater than all others. */
static __global__ void __launch_bounds__(TILE / 2)
    sort_tiles(int64_t n, const int32_t *tokens, uint64_t *keys)
{
    __shared__ uint64_t tile[TILE];
    const int64_t first = (int64_t)blockIdx.x * TILE;
    for (int i = (int)threadIdx.x; i < TILE; i += TILE / 2)
        tile[i] =
            first + i < n ? (uint64_t)tokens[first + i] << 32 | (uint64_t)(first + i) : UINT64_MAX;
    for (int size = 2; size <= TILE; size *= 2)
        for (int half = size / 2; half > 0; half /= 2) {
            __syncthreads();
            const int i = 2 * (int)threadIdx.x - ((int)threadIdx.x & (half - 1));
            const uint64_t low = tile[i], high = tile[i + half];
            if ((low > high) == ((i & size) == 0)) {
                tile[i] = high;
                tile[i + half] = low;
            }
        }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < TILE; i += TILE / 2)
        keys[first + i] = tile[i];
}

/* order[i] = the key that has i smaller keys in all sorted tiles. */
static __global__ void rank_keys(int64_t n, const uint64_t *keys, uint64_t *order)
{
    const int64_t tiles = (n + TILE - 1) / TILE;
    const uint64_t key = keys[(int64_t)blockIdx.x * RANK_THREADS + threadIdx.x];
    if (key == UINT64_MAX)
        return;
    int64_t before = 0;
#pragma unroll 8
    for (int64_t t = 0; t < tiles; t++) {
        const uint64_t *tile = keys + t * TILE;
        int at = 0;
#pragma unroll
        for (int half = TILE / 2; half > 0; half /= 2)
            at += tile[at + half - 1] < key ? half : 0;
        before += at + (tile[at] < key);
    }
    order[before] = key;
}

/* --- sums --- */

/* g = the gradient before dropout of the elements `row`, which are elements `at` and on of dy. */
template <int N, typename E>
static __device__ inline void gradient_of(const held<N, E> &row, const struct drop &d, int64_t at,
                                          float g[N])
{
    widen_to(row, g);
    if (d.on)
        drop_some<N>(d, (uint64_t)at, g);
}

/* Stores `sum` to elements [at, at + N) of `to` (n), or adds it to them. */
template <int N, bool WHOLE>
static __device__ inline void put_sums(float *to, int64_t at, int64_t n, bool accumulate,
                                       const float sum[N])
{
#pragma unroll
    for (int k = 0; k < N; k += 4) {
        float x[4] = {};
        if (accumulate)
            get<4, WHOLE>(to, at + k, n, x);
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[i] = accumulate ? x[i] + sum[k + i] : sum[k + i];
        put<4, WHOLE>(to, at + k, n, x);
    }
}

/* Sums each token's rows within a piece. A token that lies whole in the piece goes to dwte. `parts`
 * (pieces, 2, c) gets the others: first the part of a token that began in an earlier piece, then
 * the part of a token that begins here and continues in the next piece. A token that spans the
 * whole piece has the first. Block (x: piece, y: channels). */
template <typename E, bool WHOLE>
static __global__ void sum_pieces(struct dpt_embedding_backward a, struct drop d, int64_t n,
                                  const uint64_t *order, float *parts)
{
    enum { N = some<E>::N };
    /* also the tokens before and after the piece */
    __shared__ int32_t position[PIECE], token[PIECE + 2];
    const int64_t c = a.c, j = ((int64_t)blockIdx.y * LANES + threadIdx.x) * N;
    const int64_t first = (int64_t)blockIdx.x * PIECE;
    const int count = (int)(n - first < PIECE ? n - first : PIECE), lane = (int)threadIdx.x;
    if (lane < count) {
        position[lane] = position_of(order[first + lane]);
        token[lane + 1] = token_of(order[first + lane]);
    }
    if (lane == 0) {
        token[0] = first > 0 ? token_of(order[first - 1]) : -1;
        token[count + 1] = first + count < n ? token_of(order[first + count]) : -1;
    }
    __syncthreads();
    if (j >= c)
        return;
    const E *dy = (const E *)a.dy;
    bool began_before = token[0] == token[1];
    float sum[N] = {};
    for (int at = 0; at < count; at += AHEAD) {
        held<N, E> rows[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            if (at + i < count)
                rows[i] = load<N, WHOLE>(dy + position[at + i] * c, j, c);
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (at + i >= count)
                break;
            const int32_t mine = token[at + i + 1];
            float g[N];
            gradient_of(rows[i], d, position[at + i] * c + j, g);
#pragma unroll
            for (int k = 0; k < N; k++)
                sum[k] += g[k];
            const bool ends = token[at + i + 2] != mine, last = at + i + 1 == count;
            if (!ends && !last)
                continue;
            if (began_before || !ends)
                put_sums<N, WHOLE>(parts + (2 * (int64_t)blockIdx.x + !began_before) * c, j, c,
                                   false, sum);
            else
                put_sums<N, WHOLE>(a.dwte + mine * c, j, c, a.accumulate_wte, sum);
            began_before = false;
#pragma unroll
            for (int k = 0; k < N; k++)
                sum[k] = 0.0f;
        }
    }
}

/* Adds up the parts of a token that begins in a piece and continues in later ones. Block (x: piece,
 * y: channels). */
static __global__ void join_pieces(struct dpt_embedding_backward a, int64_t n,
                                   const uint64_t *order, const float *parts)
{
    const int64_t c = a.c, j = (int64_t)blockIdx.y * PLACE_THREADS + threadIdx.x;
    const int64_t piece = blockIdx.x, next = (piece + 1) * PIECE, pieces = (n + PIECE - 1) / PIECE;
    if (j >= c || next >= n)
        return;
    const int32_t token = token_of(order[next]);
    const bool begins_here = piece == 0 || token_of(order[piece * PIECE - 1]) != token;
    if (token_of(order[next - 1]) != token || !begins_here)
        return;
    float sum = parts[(2 * piece + 1) * c + j];
    bool more = true;
    for (int64_t p = piece + 1; more; p += AHEAD) {
        bool is_it[AHEAD];
        float part[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            is_it[k] = p + k < pieces && token_of(order[(p + k) * PIECE]) == token;
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            part[k] = is_it[k] ? parts[2 * (p + k) * c + j] : 0.0f;
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            sum = is_it[k] ? sum + part[k] : sum;
        more = is_it[AHEAD - 1];
    }
    float *to = a.dwte + token * c + j;
    *to = a.accumulate_wte ? *to + sum : sum;
}

template <typename E, bool WHOLE>
static __global__ void sum_places(struct dpt_embedding_backward a, struct drop d)
{
    enum { N = some<E>::N };
    const int64_t n = a.t * a.c;
    const E *dy = (const E *)a.dy;
    GRID_LOOP(g, (n + N - 1) / N) {
        const int64_t at = g * N;
        float sum[N] = {};
#pragma unroll 8
        for (int64_t b = 0; b < a.b; b++) {
            float one[N];
            gradient_of(load<N, WHOLE>(dy + b * n, at, n), d, b * n + at, one);
#pragma unroll
            for (int k = 0; k < N; k++)
                sum[k] += one[k];
        }
        put_sums<N, WHOLE>(a.dwpe, at, n, a.accumulate_wpe, sum);
    }
}

/* The parts of the workspace. `parts` takes a multiple of 8 bytes, so the 8-byte keys behind it are
 * aligned. */
struct work {
    float *parts;
    uint64_t *order, *keys;
    int64_t bytes;
};

static struct work work_at(void *p, int64_t n, int64_t c)
{
    const int64_t parts = 2 * ceil_div(n, PIECE) * c * (int64_t)sizeof(float);
    const int64_t order = n * (int64_t)sizeof(uint64_t);
    struct work w;
    w.parts = (float *)p;
    w.order = (uint64_t *)((char *)p + parts);
    w.keys = w.order + n;
    w.bytes = parts + order + ceil_div(n, TILE) * TILE * (int64_t)sizeof(uint64_t);
    return w;
}

int64_t dpt_launch_embedding_backward_bytes(int64_t n, int64_t c)
{
    return work_at(NULL, n, c).bytes;
}

template <typename E>
static void post_sums(cudaStream_t q, const struct dpt_embedding_backward *a, const struct work *w)
{
    enum { N = some<E>::N };
    const int64_t n = a->b * a->t, pieces = ceil_div(n, PIECE), c = a->c;
    const struct drop d = drop_of(&a->dropout);
    const bool whole = c % N == 0 && is_whole<N>((const E *)a->dy) && is_whole<4>(w->parts) &&
                       is_whole<4>(a->dwte) && is_whole<4>(a->dwpe);
    const dim3 grid((unsigned)pieces, (unsigned)ceil_div(c, LANES * N)),
        join_grid((unsigned)pieces, (unsigned)ceil_div(c, PLACE_THREADS));
    FOR_WHOLE(whole, sum_pieces<E, WHOLE><<<grid, LANES, 0, q>>>(*a, d, n, w->order, w->parts));
    join_pieces<<<join_grid, PLACE_THREADS, 0, q>>>(*a, n, w->order, w->parts);
    if (a->dwpe) {
        const unsigned places_grid = grid_for(ceil_div(a->t * c, N), PLACE_THREADS);
        FOR_WHOLE(whole, sum_places<E, WHOLE><<<places_grid, PLACE_THREADS, 0, q>>>(*a, d));
    }
}

void dpt_launch_embedding_backward(void *queue, const struct dpt_embedding_backward *a, void *work)
{
    cudaStream_t q = (cudaStream_t)queue;
    const int64_t n = a->b * a->t;
    const struct work w = work_at(work, n, a->c);
    if (!a->accumulate_wte)
        (void)cudaMemsetAsync(a->dwte, 0, (size_t)(a->v * a->c) * sizeof(float), q);
    const int64_t beyond = n > 0 ? a->t : 0; /* rows of dwpe from here on have no gradient */
    if (a->dwpe && !a->accumulate_wpe && a->context > beyond)
        (void)cudaMemsetAsync(a->dwpe + beyond * a->c, 0,
                              (size_t)((a->context - beyond) * a->c) * sizeof(float), q);
    if (n == 0 || a->c == 0)
        return;
    const unsigned tiles = (unsigned)ceil_div(n, TILE);
    sort_tiles<<<tiles, TILE / 2, 0, q>>>(n, a->tokens, w.keys);
    rank_keys<<<tiles *(TILE / RANK_THREADS), RANK_THREADS, 0, q>>>(n, w.keys, w.order);
    FOR_ELEM(a->dtype, post_sums<E>(q, a, &w));
}
