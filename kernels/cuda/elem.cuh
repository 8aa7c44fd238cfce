/* Common parts of the kernels: elements of f32, bf16 and fp16 as kernels/half.h defines them, the
 * exponential of the CPU's kernels, GELU, dropout's factors, and sums in fixed trees.
 *
 * The files that include this are compiled with -fmad=false. A fused multiply-add is used only
 * where the source has one, so it is the same on every device. */
#ifndef DPT_KERNELS_CUDA_ELEM_CUH
#define DPT_KERNELS_CUDA_ELEM_CUH

#include "base/draw.h"
#include "kernels/half.h"
#include "kernels/ops.h"

#include <cuda_runtime.h>

struct bf16 {
    uint16_t bits;
};
struct f16 {
    uint16_t bits;
};

__device__ inline float widened(float x)
{
    return x;
}
__device__ inline float widened(bf16 x)
{
    return dpt_f32_of_bf16(x.bits);
}
__device__ inline float widened(f16 x) /* a NaN stays a NaN, its payload may change */
{
#ifdef __CUDA_ARCH__
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
#else
    return dpt_f32_of_f16(x.bits);
#endif
}

template <typename E> __device__ inline E rounded(float x);
template <> __device__ inline float rounded<float>(float x)
{
    return x;
}
template <> __device__ inline bf16 rounded<bf16>(float x)
{
    return bf16{dpt_bf16_of_f32(x)};
}
template <> __device__ inline f16 rounded<f16>(float x)
{
    return f16{dpt_f16_of_f32(x)};
}

/* Two floats, rounded to the nearest even, in one word: the first in the lower half. A NaN stays a
 * NaN; its payload may change. */
#ifdef __CUDA_ARCH__
__device__ inline uint32_t pair_of(bf16, float first, float second)
{
    uint32_t word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
    return word;
}
__device__ inline uint32_t pair_of(f16, float first, float second)
{
    uint32_t word;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
    return word;
}
#else
template <typename E> __device__ inline uint32_t pair_of(E, float first, float second)
{
    return (uint32_t)rounded<E>(first).bits | (uint32_t)rounded<E>(second).bits << 16;
}
#endif

/* The number of elements that a thread reads or writes at once: sixteen bytes for every type. */
template <typename E> struct some {
    enum { N = 16 / sizeof(E) };
};

template <int BYTES> struct alignas(BYTES) words {
    uint32_t w[BYTES / 4];
};

/* N elements as they are in memory, for a thread that loads early and computes late. */
template <int N, typename E> struct held {
    static_assert(N * sizeof(E) <= 16, "one access");
    words<N * sizeof(E)> bits;
};

/* Loads elements [at, at + N) of n, with zeros past the end. WHOLE: p is aligned to N elements, n
 * is a multiple of N, and at < n. Then there is no branch, so a thread can have many loads under
 * way. */
template <int N, bool WHOLE, typename E>
__device__ inline struct held<N, E> load(const E *p, int64_t at, int64_t n) {
    struct held<N, E> h;
    if (WHOLE) {
        h.bits = *(const words<N * sizeof(E)> *)(p + at);
        return h;
    }
    E e[N] = {};
#pragma unroll
    for (int k = 0; k < N; k++)
        if (at + k < n)
            e[k] = p[at + k];
    memcpy(&h.bits, e, sizeof e);
    return h;
}

template <int N, typename E>
__device__ inline void widen_to(const struct held<N, E> &h, float x[N])
{
    E e[N];
    memcpy(e, &h.bits, sizeof e);
#pragma unroll
    for (int k = 0; k < N; k++)
        x[k] = widened(e[k]);
}

/* Loads and widens at once. */
template <int N, bool WHOLE, typename E>
__device__ inline void get(const E *p, int64_t at, int64_t n, float x[N])
{
    widen_to(load<N, WHOLE>(p, at, n), x);
}

template <int N, typename E>
__device__ inline words<N * sizeof(E)> rounded_words(E, const float x[N])
{
    words<N * sizeof(E)> bits;
#pragma unroll
    for (int k = 0; k < N; k += 2)
        bits.w[k / 2] = pair_of(E(), x[k], x[k + 1]);
    return bits;
}

template <int N> __device__ inline words<N * sizeof(float)> rounded_words(float, const float x[N])
{
    words<N * sizeof(float)> bits;
    memcpy(&bits, x, sizeof bits);
    return bits;
}

/* Rounds x and stores it to elements [at, at + N) of n. WHOLE as for load. */
template <int N, bool WHOLE, typename E>
__device__ inline void put(E *p, int64_t at, int64_t n, const float x[N])
{
    static_assert(N * sizeof(E) <= 16, "one access");
    if (WHOLE) {
        *(words<N * sizeof(E)> *)(p + at) = rounded_words<N>(E(), x);
    } else {
#pragma unroll
        for (int k = 0; k < N; k++)
            if (at + k < n)
                p[at + k] = rounded<E>(x[k]);
    }
}

/* Runs the statement with WHOLE as a constant. */
#define FOR_WHOLE(whole, ...)                                                                      \
    if (whole) {                                                                                   \
        constexpr bool WHOLE = true;                                                               \
        __VA_ARGS__;                                                                               \
    } else {                                                                                       \
        constexpr bool WHOLE = false;                                                              \
        __VA_ARGS__;                                                                               \
    }

template <int N, typename E> inline bool is_whole(const E *p)
{
    return (uintptr_t)p % (N * sizeof(E)) == 0;
}

/* Whether the rows of all these tensors, of c elements each, begin at a multiple of N elements.
 * NULL counts as aligned. */
template <int N, typename E, typename... P> inline bool are_whole_rows(int64_t c, P... tensors)
{
    return c % N == 0 && (is_whole<N>((const E *)tensors) && ...);
}

/* Runs the statement with E as the type of elements. */
#define FOR_ELEM(dtype, ...)                                                                       \
    switch (dtype) {                                                                               \
    case DPT_BF16: {                                                                               \
        typedef bf16 E;                                                                            \
        __VA_ARGS__;                                                                               \
    } break;                                                                                       \
    case DPT_F16: {                                                                                \
        typedef f16 E;                                                                             \
        __VA_ARGS__;                                                                               \
    } break;                                                                                       \
    default: {                                                                                     \
        typedef float E;                                                                           \
        __VA_ARGS__;                                                                               \
    }                                                                                              \
    }

/* Element i of p, for kernels that are not compiled once per type. All threads take the same
 * branch. */
__device__ inline float element(const void *p, enum dpt_dtype dtype, int64_t i)
{
    if (dtype == DPT_F32)
        return ((const float *)p)[i];
    const uint16_t half = ((const uint16_t *)p)[i];
    return dtype == DPT_BF16 ? dpt_f32_of_bf16(half) : dpt_f32_of_f16(half);
}

__device__ inline void set_element(void *p, enum dpt_dtype dtype, int64_t i, float x)
{
    if (dtype == DPT_F32)
        ((float *)p)[i] = x;
    else
        ((uint16_t *)p)[i] = dtype == DPT_BF16 ? dpt_bf16_of_f32(x) : dpt_f16_of_f32(x);
}

/* e^x by the polynomial of kernels/cpu/simd/lanes.h: 0 below -87.33, NaN stays NaN. */
__device__ inline float exp_of(float x)
{
    const float magic = 12582912.0f, least = -87.33654f;
    const float bounded = fminf(fmaxf(x, least), 88.37f); /* least for a NaN */
    const float t = fmaf(bounded, 1.44269504088896341f, magic), n = t - magic;
    float r = fmaf(n, -0.693359375f, bounded);
    r = fmaf(n, 2.12194440e-4f, r);
    float p = 1.9875691500e-4f;
    p = fmaf(p, r, 1.3981999507e-3f);
    p = fmaf(p, r, 8.3334519073e-3f);
    p = fmaf(p, r, 4.1665795894e-2f);
    p = fmaf(p, r, 1.6666665459e-1f);
    p = fmaf(p, r, 5.0000001201e-1f);
    p = fmaf(p, r * r, r) + 1.0f;
    p *= __uint_as_float((__float_as_uint(t) << 23) + 0x3f800000u);
    p = x < least ? 0.0f : p;
    return x != x ? x : p;
}

/* 2^x, at most 2^126, and 1/x, by one instruction each. GELU and SwiGLU use them, because otherwise
 * the arithmetic would limit their speed and not the memory. Relative errors are about 2^-22 and
 * 2^-23. Subnormal results are 0, and 2^NaN is 2^126. The bits depend on the kind of device. */
#ifdef __CUDA_ARCH__
__device__ inline float exp2_near(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(fminf(x, 126.0f)));
    return y;
}
__device__ inline float reciprocal_near(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#else
__device__ inline float exp2_near(float x)
{
    return exp2f(fminf(x, 126.0f));
}
__device__ inline float reciprocal_near(float x)
{
    return 1.0f / x;
}
#endif

/* log2(e), and the sigmoid's argument in the tanh form of GELU, x (GELU_A + GELU_B x^2). */
#define LOG2_E 1.44269504088896341
#define GELU_A 1.5957691216057308
#define GELU_B (GELU_A * 0.044715)

/* x * sigmoid(2u), the tanh form of GELU. */
__device__ inline float gelu_of(float x)
{
    const float a = (float)(-LOG2_E * GELU_A), b = (float)(-LOG2_E * GELU_B);
    return x * reciprocal_near(1.0f + exp2_near(x * fmaf(b, x * x, a)));
}

/* Dropout for kernels: a word is compared with `below`; a kept element is multiplied by `keep`. */
struct drop {
    struct dpt_rng_key key;
    uint64_t first;
    uint32_t below;
    float keep;
    bool on;
};

inline struct drop drop_of(const struct dpt_dropout *d)
{
    struct drop r;
    r.key = d->key;
    r.first = d->first;
    r.on = d->p > 0.0f;
    r.below = r.on ? (uint32_t)((double)d->p * 4294967296.0) : 0;
    r.keep = r.on ? 1.0f / (1.0f - d->p) : 1.0f;
    return r;
}

/* words[which], without indexing registers. */
__device__ inline uint32_t word_of(const uint32_t words[4], uint32_t which)
{
    const uint32_t low = which & 1 ? words[1] : words[0], high = which & 1 ? words[3] : words[2];
    return which & 2 ? high : low;
}

/* The factor of element `i` of the tensor: 0 or 1/(1-p). */
__device__ inline float drop_factor(const struct drop &d, uint64_t i)
{
    uint32_t words[4];
    i += d.first;
    dpt_philox(d.key, i / 4, words);
    return word_of(words, (uint32_t)(i % 4)) >= d.below ? d.keep : 0.0f;
}

/* Multiplies x[k] by the factor of element i + k. Draws each word once. */
template <int N> __device__ inline void drop_some(const struct drop &d, uint64_t i, float x[N])
{
    i += d.first;
    const uint32_t skip = (uint32_t)(i % 4);
#pragma unroll 1
    for (uint32_t block = 0; block < (skip + N + 3) / 4; block++) {
        uint32_t words[4];
        dpt_philox(d.key, i / 4 + block, words);
#pragma unroll
        for (uint32_t k = 0; k < N; k++) {
            if ((skip + k) / 4 == block)
                x[k] *= word_of(words, (skip + k) % 4) >= d.below ? d.keep : 0.0f;
        }
    }
}

/* The sum over a group of WIDTH adjacent lanes, a power of two, in one fixed tree. Every lane gets
 * the sum of its group. All lanes of the warp must call it. */
template <int WIDTH> __device__ inline float group_sum(float x)
{
#pragma unroll
    for (int half = WIDTH / 2; half > 0; half /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, half);
    return x;
}

template <int WIDTH> __device__ inline float group_max(float x)
{
#pragma unroll
    for (int half = WIDTH / 2; half > 0; half /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, half));
    return x;
}

struct plus {
    template <typename T> static __device__ inline T of(T a, T b)
    {
        return a + b;
    }
};
struct greatest {
    static __device__ inline float of(float a, float b)
    {
        return fmaxf(a, b);
    }
};

/* OP over the values of a block's THREADS threads, a power of two, in one fixed tree. Every thread
 * gets the result. `place` holds THREADS values and may be used again after the call. */
template <int THREADS, typename OP, typename T> __device__ inline T block_reduce(T x, T *place)
{
    place[threadIdx.x] = x;
    __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half)
            place[threadIdx.x] = OP::of(place[threadIdx.x], place[threadIdx.x + half]);
        __syncthreads();
    }
    const T result = place[0];
    __syncthreads();
    return result;
}

inline int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* The number of blocks, at least one, for a loop over `items` in strides of the grid. An item's
 * result does not depend on its thread. */
inline unsigned grid_for(int64_t items, int threads)
{
    const int64_t blocks_max = 1 << 20, blocks = ceil_div(items, threads);
    return (unsigned)(blocks < 1 ? 1 : blocks < blocks_max ? blocks : blocks_max);
}

/* Posts a kernel with THREADS threads per block that loop over `items` in strides of the grid. */
#define POST(kernel, items, ...)                                                                   \
    kernel<<<grid_for(items, THREADS), THREADS, 0, (cudaStream_t)queue>>>(__VA_ARGS__)

/* Posts a kernel that needs more shared memory than a block gets by default. */
template <typename ARGS>
inline void post_with_shared(void (*kernel)(ARGS), const ARGS *a, unsigned blocks, int threads,
                             int bytes, void *queue)
{
    if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) ==
        cudaSuccess)
        kernel<<<blocks, threads, (size_t)bytes, (cudaStream_t)queue>>>(*a);
}

#define GRID_LOOP(i, n)                                                                            \
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < (n);                      \
         i += (int64_t)gridDim.x * blockDim.x)

#endif
