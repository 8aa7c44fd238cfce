/* The head's softmax. One block computes a row of logits. Its threads take the elements in a fixed
 * pattern, and their sums are joined in a fixed tree.
 *
 * A row that fits into a multiprocessor's shared memory is read once, and its gradient is computed
 * from there. One block per multiprocessor loops over rows. As soon as a thread has written the
 * gradient of a word, it asks for the word of the block's next row that goes to the same place. So
 * up to a whole row of loads and stores is always under way, although no other block runs on the
 * multiprocessor. Rows that do not fit are read twice, by several blocks at once that hide each
 * other's waiting. */
#include "kernels/cuda/elem.cuh"
#include "kernels/cuda/fetch.cuh"
#include "kernels/cuda/launch.h"

enum {
    LONG_ROW = 4096, /* a row of this many logits or more needs a larger block */
    THREADS_SHORT = 128,
    THREADS_LONG = 512,
    THREADS_SHARED = 1024,   /* threads of a block, if a row is in shared memory */
    THREADS_RESIDENT = 1536, /* threads of a multiprocessor, if it is not */
    WARP = 32,
    WORD = 4,            /* logits in one access */
    AHEAD = 4,           /* accesses under way at once per thread: a group */
    GROUPS = 4,          /* groups of a row in shared memory */
    ROW_UNIT = 2 * WORD, /* the unit of a row's beginning and padded end */
    ROW_MAX = 1 << 30,   /* logits: their indices are ints */
    SHARED_ROW_MAX = GROUPS * AHEAD * THREADS_SHARED * WORD, /* logits */
    SHARED_REST = 1024 /* bytes of a block's shared memory that a row leaves free */
};

#define LEAST (-3.0e38f) /* below any logit, and finite, so that LEAST - LEAST is not NaN */

/* The sum of e^(x - most) over some logits. `most` is at least the greatest of them. */
struct exp_sum {
    float most, sum;
};

/* The threads of a block share it. */
struct place {
    struct exp_sum of_warp[WARP];
    int beaten; /* a logit is greater than the target's */
};

/* e^x by the device's own power of two: within a few units of the last place for x in [-87, 0], and
 * 0 below. */
static __device__ inline float fast_exp(float x)
{
    const float power = x * 1.44269504088896341f;
#ifdef __CUDA_ARCH__
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(power));
    return y;
#else
    return exp2f(power);
#endif
}

/* STRIDE: the logits from one word of a thread to its next word. GROUP: the logits of one group of
 * all threads. */
template <int THREADS> struct pattern {
    enum { STRIDE = THREADS * WORD, GROUP = AHEAD * STRIDE };
};

/* Reads the words at `at`, at + STRIDE, ... of a row. Elements behind the row's v logits become
 * LEAST. WHOLE: there are no such elements. */
template <int THREADS, bool WHOLE>
static __device__ inline void read_words(const float *row, int at, int v, float ret[AHEAD][WORD])
{
#pragma unroll
    for (int i = 0; i < AHEAD; i++, at += pattern<THREADS>::STRIDE) {
        if (WHOLE || at < v)
            get<WORD, true>(row, at, v, ret[i]);
#pragma unroll
        for (int k = 0; k < WORD; k++)
            ret[i][k] = WHOLE || at + k < v ? ret[i][k] : LEAST;
    }
}

template <int THREADS, bool WHOLE>
static __device__ inline void add_words(const float x[AHEAD][WORD], int at, int v,
                                        struct exp_sum *to)
{
    float most = to->most;
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
#pragma unroll
        for (int k = 0; k < WORD; k++)
            most = fmaxf(most, x[i][k]);
    to->sum *= fast_exp(to->most - most);
    to->most = most;
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
        if (WHOLE || at + i * pattern<THREADS>::STRIDE < v)
#pragma unroll
            for (int k = 0; k < WORD; k++)
                to->sum += fast_exp(x[i][k] - most);
}

/* The sum over the warp's lanes. Each lane gets the result. */
static __device__ inline struct exp_sum warp_exp_sum(struct exp_sum s)
{
    const float most = group_max<WARP>(s.most);
    return {most, group_sum<WARP>(s.sum * fast_exp(s.most - most))};
}

/* The sum over the block's threads. Each thread gets the result, and `beaten` becomes 0. The call
 * has one barrier: a thread's writes before the call are visible to the block after it. Another
 * barrier must come before the next call. */
template <int THREADS>
static __device__ inline struct exp_sum block_exp_sum(struct exp_sum s, struct place *place)
{
    const int lane = threadIdx.x % WARP;
    s = warp_exp_sum(s);
    if (lane == 0)
        place->of_warp[threadIdx.x / WARP] = s;
    if (threadIdx.x == 0)
        place->beaten = 0;
    __syncthreads();
    s = {LEAST, 0.0f};
    if (lane < THREADS / WARP)
        s = place->of_warp[lane];
    return warp_exp_sum(s);
}

/* Stores the loss of row r, and in `right` whether the target is the first of its greatest
 * logits. */
template <int THREADS>
static __device__ inline void give_loss(const struct dpt_launch_softmax &a, int64_t r,
                                        const float *row, int target, struct exp_sum s,
                                        struct place *place)
{
    const float at_target = row[target];
    if (a.right) {
        bool beaten = false;
        for (int i = threadIdx.x; i < a.v; i += THREADS)
            beaten = beaten || !(i < target ? row[i] < at_target : row[i] <= at_target);
        if (beaten)
            place->beaten = 1; /* every thread writes the same value */
        __syncthreads();
    }
    if (threadIdx.x > 0)
        return;
    a.loss[r] = logf(s.sum) + (s.most - at_target);
    if (a.right)
        a.right[r] = place->beaten ? 0.0f : 1.0f;
}

/* Writes the gradients of the words that read_words read into a row of ld elements. The probability
 * of LEAST is 0, and so is the gradient of the padding. */
template <int THREADS, bool WHOLE, typename E>
static __device__ inline void write_slopes(const struct dpt_launch_softmax &a, int target,
                                           struct exp_sum s, int at, float x[AHEAD][WORD], E *row)
{
    const int ld = (int)a.ld;
    const float dloss = a.dloss, factor = dloss / s.sum;
#pragma unroll
    for (int i = 0; i < AHEAD; i++, at += pattern<THREADS>::STRIDE) {
#pragma unroll
        for (int k = 0; k < WORD; k++)
            x[i][k] = fast_exp(x[i][k] - s.most) * factor;
        if ((unsigned)(target - at) < WORD)
#pragma unroll
            for (int k = 0; k < WORD; k++)
                x[i][k] -= at + k == target ? dloss : 0.0f;
        if (WHOLE || at < ld)
            put<WORD, true>(row, at, ld, x[i]);
    }
}

/* dlogits may share the memory of the logits. The gradients of a group are written to the place of
 * the group or before it, after the whole group has been read. */
template <typename E, int THREADS>
static __global__ void __launch_bounds__(THREADS, THREADS_RESIDENT / THREADS)
    softmax_loss(struct dpt_launch_softmax a)
{
    enum { GROUP = pattern<THREADS>::GROUP };
    __shared__ struct place place;
    const int v = (int)a.v, ld = (int)a.ld, mine = threadIdx.x * WORD;
    const int target = a.targets[blockIdx.x];
    const float *row = a.logits + blockIdx.x * a.ld;
    struct exp_sum s = {LEAST, 0.0f};
    float x[AHEAD][WORD];
    for (int base = 0; base < v; base += GROUP)
        FOR_WHOLE(base + GROUP <= v, read_words<THREADS, WHOLE>(row, base + mine, v, x);
                  add_words<THREADS, WHOLE>(x, base + mine, v, &s));
    s = block_exp_sum<THREADS>(s, &place);
    give_loss<THREADS>(a, blockIdx.x, row, target, s, &place);
    if (!a.dlogits)
        return;
    E *to = (E *)a.dlogits + blockIdx.x * a.dlogits_ld;
    for (int base = 0; base < ld; base += GROUP)
        FOR_WHOLE(base + GROUP <= v, read_words<THREADS, WHOLE>(row, base + mine, v, x);
                  __syncthreads(); write_slopes<THREADS, WHOLE>(a, target, s, base + mine, x, to));
}

/* Begins to copy the thread's words of a group of a row of v logits to their place in shared
 * memory. v = 0: copies none. */
template <bool WHOLE>
static __device__ inline void fetch_words(const float *from, int at, int v, float *row)
{
#pragma unroll
    for (int i = 0; i < AHEAD; i++, at += pattern<THREADS_SHARED>::STRIDE)
        if (WHOLE || at < v)
            fetch_16_bytes(row + at, from + at);
    fetch_group();
}

/* A thread reads and replaces only the words that it fetched. Of other threads' words it reads the
 * target and the words to compare with the target. dlogits may share the memory of the logits: a
 * row is written only after the whole row has been fetched. */
template <typename E>
static __global__ void __launch_bounds__(THREADS_SHARED)
    softmax_loss_shared(struct dpt_launch_softmax a)
{
    enum { GROUP = pattern<THREADS_SHARED>::GROUP };
    typedef words<WORD * sizeof(float)> four_logits;
    extern __shared__ four_logits memory[];
    __shared__ struct place place;
    float *row = (float *)memory, x[AHEAD][WORD];
    const int v = (int)a.v, mine = threadIdx.x * WORD;
#pragma unroll 1
    for (int g = 0; g < GROUPS; g++)
        fetch_words<false>(a.logits + blockIdx.x * a.ld, g * GROUP + mine, v, row);
    for (int64_t r = blockIdx.x; r < a.rows; r += gridDim.x) {
        const int target = a.targets[r];
        struct exp_sum s = {LEAST, 0.0f};
#pragma unroll 1
        for (int g = 0; g < GROUPS; g++) {
            const int at = g * GROUP + mine;
            await_fetched<GROUPS - 1>();
            /* An empty group, so that GROUPS - 1 groups are always newer than the next one. */
            fetch_group();
            FOR_WHOLE((g + 1) * GROUP <= v, read_words<THREADS_SHARED, WHOLE>(row, at, v, x);
                      add_words<THREADS_SHARED, WHOLE>(x, at, v, &s));
        }
        s = block_exp_sum<THREADS_SHARED>(s, &place);
        give_loss<THREADS_SHARED>(a, r, row, target, s, &place);
        __syncthreads(); /* no thread still reads words that others fetched */
        const int64_t next = r + gridDim.x;
        const float *from = a.logits + next * a.ld;
        const int next_v = next < a.rows ? v : 0;
        E *to = a.dlogits ? (E *)a.dlogits + r * a.dlogits_ld : NULL;
#pragma unroll 1
        for (int g = 0; g < GROUPS; g++) {
            const int at = g * GROUP + mine;
            if (to)
                FOR_WHOLE((g + 1) * GROUP <= v, read_words<THREADS_SHARED, WHOLE>(row, at, v, x);
                          write_slopes<THREADS_SHARED, WHOLE>(a, target, s, at, x, to));
            FOR_WHOLE((g + 1) * GROUP <= next_v, fetch_words<WHOLE>(from, at, next_v, row));
        }
    }
}

template <typename E> static void post_softmax(cudaStream_t q, const struct dpt_launch_softmax *a)
{
    const unsigned rows = (unsigned)a->rows;
    const int row_bytes = (int)(a->ld < SHARED_ROW_MAX ? a->ld * sizeof(float) : INT32_MAX / 2);
    if (a->v < LONG_ROW) {
        softmax_loss<E, THREADS_SHORT><<<rows, THREADS_SHORT, 0, q>>>(*a);
    } else if (row_bytes + SHARED_REST > a->shared_bytes) {
        softmax_loss<E, THREADS_LONG><<<rows, THREADS_LONG, 0, q>>>(*a);
    } else {
        const unsigned most = (unsigned)a->multiprocessors;
        post_with_shared(softmax_loss_shared<E>, a, rows < most ? rows : most, THREADS_SHARED,
                         row_bytes, q);
    }
}

int dpt_launch_softmax_loss(void *queue, const struct dpt_launch_softmax *a)
{
    if (a->rows == 0)
        return 0;
    if (a->ld % ROW_UNIT != 0 || a->dlogits_ld % ROW_UNIT != 0 || a->ld > ROW_MAX)
        return cudaErrorInvalidValue;
    FOR_ELEM(a->dtype, post_softmax<E>((cudaStream_t)queue, a));
    return cudaGetLastError();
}
