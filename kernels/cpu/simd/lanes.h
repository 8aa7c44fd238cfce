/* Sixteen lanes of f32, the unit of all our kernels. The files that include this are compiled once
 * for each instruction set, with DPT_ISA_PLAIN, DPT_ISA_AVX2 or DPT_ISA_AVX512 defined and with the
 * matching flags of the compiler.
 *
 * Every operation gives the same bits in all three: IEEE operations and fma; min and max as in x86
 * (the second operand if either is NaN); joins of lanes in one fixed tree. */
#ifndef DPT_KERNELS_CPU_SIMD_LANES_H
#define DPT_KERNELS_CPU_SIMD_LANES_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(DPT_ISA_AVX512)
#define DPT_ISA_NAME(name) name##_avx512
#elif defined(DPT_ISA_AVX2)
#define DPT_ISA_NAME(name) name##_avx2
#elif defined(DPT_ISA_PLAIN)
#define DPT_ISA_NAME(name) name##_plain
#else
#error "no instruction set"
#endif

enum { LANES = 16 };

#ifdef DPT_SIMD_CALLS
#define INLINE static inline __attribute__((unused))
#else
#define INLINE static inline __attribute__((always_inline))
#endif

#if !defined(DPT_ISA_PLAIN)
#include <immintrin.h>

/* Sixteen lanes of uint16_t. */
typedef struct {
    __m256i v;
} h16;
INLINE h16 h_load(const uint16_t *p)
{
    return (h16){_mm256_loadu_si256((const __m256i *)(const void *)p)};
}
INLINE void h_store(uint16_t *p, h16 a)
{
    _mm256_storeu_si256((__m256i *)(void *)p, a.v);
}
INLINE void v_stream_end(void)
{
    _mm_sfence();
}
#endif

/* *_part reads or writes the first n lanes, 0 <= n <= 16. In a vector that it returns, the other
 * lanes are `fill`, or 0 for 16-bit lanes. */
#if defined(DPT_ISA_AVX512)
#include "kernels/cpu/simd/lanes_avx512.h"
#elif defined(DPT_ISA_AVX2)
#include "kernels/cpu/simd/lanes_avx2.h"
#else
#include "kernels/cpu/simd/lanes_plain.h"
#endif

/* --- the same in every instruction set --- */

#if !defined(DPT_ISA_AVX512)
INLINE h16 h_load_part(const uint16_t *p, int64_t n)
{
    uint16_t u[LANES] = {0};
    memcpy(u, p, (size_t)n * sizeof *u);
    return h_load(u);
}
INLINE void h_store_part(uint16_t *p, int64_t n, h16 a)
{
    uint16_t u[LANES];
    h_store(u, a);
    memcpy(p, u, (size_t)n * sizeof *u);
}
#endif

/* Joins the lanes in one fixed tree: halves, then quarters, eighths, pairs. */
#define JOIN(type, name, vector, store, joined)                                                    \
    INLINE type name(vector a)                                                                     \
    {                                                                                              \
        type x[LANES];                                                                             \
        store(x, a);                                                                               \
        for (int half = LANES / 2; half > 0; half /= 2)                                            \
            for (int i = 0; i < half; i++)                                                         \
                x[i] = joined;                                                                     \
        return x[0];                                                                               \
    }
JOIN(float, v_sum, v16, v_store, x[i] + x[i + half])
JOIN(float, v_greatest, v16, v_store, x[i] > x[i + half] ? x[i] : x[i + half])
JOIN(double, d_sum, d16, d_store, x[i] + x[i + half])

/* Rounds to bf16 (kernels/half.h). No other place in our kernels does. */
INLINE h16 bf16_of_v(v16 a)
{
    w16 u = w_of_v(a);
    w16 even = w_and(w_right(u, 16), w_set(1));
    w16 rounded = w_add(w_add(u, w_set(0x7fff)), even);
    v16 quiet = v_of_w(w_or(u, w_set(0x400000)));
    return h_of_w(w_right(w_of_v(v_select(v_is_nan(a), quiet, v_of_w(rounded))), 16));
}

INLINE v16 v_of_bf16(h16 a)
{
    return v_of_w(w_left(w_of_h(a), 16));
}

/* 2^n, where n is in the low bits of t = 1.5*2^23 + n. */
INLINE v16 v_exp2_of_magic(v16 t)
{
    return v_of_w(w_add(w_left(w_of_v(t), 23), w_set(0x3f800000)));
}

/* e^x within 1.5 ulp; 0 below -87.33 (no subnormal results), 2.4e38 above 88.37; NaN stays NaN.
 * Range reduction and polynomial as in Cephes' expf (Moshier). */
INLINE v16 v_exp(v16 x)
{
    const v16 low = v_set(-87.33654f), magic = v_set(12582912.0f);
    m16 under = v_less(x, low);
    x = v_min(v_set(88.37f), v_max(low, x));
    v16 t = v_fma(x, v_set(1.44269504088896341f), magic);
    v16 n = v_sub(t, magic);
    v16 r = v_fma(n, v_set(-0.693359375f), x);
    r = v_fma(n, v_set(2.12194440e-4f), r);
    v16 p = v_set(1.9875691500e-4f);
    p = v_fma(p, r, v_set(1.3981999507e-3f));
    p = v_fma(p, r, v_set(8.3334519073e-3f));
    p = v_fma(p, r, v_set(4.1665795894e-2f));
    p = v_fma(p, r, v_set(1.6666665459e-1f));
    p = v_fma(p, r, v_set(5.0000001201e-1f));
    p = v_fma(p, v_mul(r, r), r);
    p = v_add(p, v_set(1.0f));
    return v_select(under, v_set(0.0f), v_mul(p, v_exp2_of_magic(t)));
}

/* Loops over [0, n) in groups of lanes that begin at `at`. `count` is 16 except in the last
 * group. */
#define FOR_LANES(at, count, n)                                                                    \
    for (int64_t at = 0, count = (n) < LANES ? (n) : LANES; at < (n);                              \
         at += LANES, count = (n)-at < LANES ? (n)-at : LANES)

/* Loads `count` lanes; only the last group of a row is masked. */
INLINE v16 v_get(const float *p, int64_t count, float fill)
{
    return count == LANES ? v_load(p) : v_load_part(p, count, fill);
}

INLINE void v_put(float *p, int64_t count, v16 a)
{
    if (count == LANES)
        v_store(p, a);
    else
        v_store_part(p, count, a);
}

#endif
