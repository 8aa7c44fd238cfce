/* Sixteen lanes of f32, the unit in which every own kernel is written. Included by files that are
 * compiled once for each instruction set, with DPT_ISA_PLAIN, DPT_ISA_AVX2 or DPT_ISA_AVX512
 * defined and the compiler's flags set to match.
 *
 * Every operation gives the same bits in all three: IEEE operations and fma, min and max as x86 has
 * them (the second operand when either is NaN), and joins of lanes in one fixed tree. */
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

#define INLINE static inline __attribute__((always_inline))

/* n lanes, 0 <= n <= 16, are read or written by *_part; lanes not read are `fill`. */
#if defined(DPT_ISA_AVX512)

#include <immintrin.h>

typedef struct {
    __m512 v;
} v16;
typedef __mmask16 m16;

INLINE v16 v_set(float x)
{
    return (v16){_mm512_set1_ps(x)};
}
INLINE v16 v_load(const float *p)
{
    return (v16){_mm512_loadu_ps(p)};
}
INLINE void v_store(float *p, v16 a)
{
    _mm512_storeu_ps(p, a.v);
}
INLINE __mmask16 first_lanes(int64_t n)
{
    return (__mmask16)((1u << n) - 1u);
}
INLINE v16 v_load_part(const float *p, int64_t n, float fill)
{
    return (v16){_mm512_mask_loadu_ps(_mm512_set1_ps(fill), first_lanes(n), p)};
}
INLINE void v_store_part(float *p, int64_t n, v16 a)
{
    _mm512_mask_storeu_ps(p, first_lanes(n), a.v);
}
INLINE v16 v_add(v16 a, v16 b)
{
    return (v16){_mm512_add_ps(a.v, b.v)};
}
INLINE v16 v_sub(v16 a, v16 b)
{
    return (v16){_mm512_sub_ps(a.v, b.v)};
}
INLINE v16 v_mul(v16 a, v16 b)
{
    return (v16){_mm512_mul_ps(a.v, b.v)};
}
INLINE v16 v_div(v16 a, v16 b)
{
    return (v16){_mm512_div_ps(a.v, b.v)};
}
INLINE v16 v_sqrt(v16 a)
{
    return (v16){_mm512_sqrt_ps(a.v)};
}
INLINE v16 v_fma(v16 a, v16 b, v16 c)
{
    return (v16){_mm512_fmadd_ps(a.v, b.v, c.v)};
}
INLINE v16 v_max(v16 a, v16 b)
{
    return (v16){_mm512_max_ps(a.v, b.v)};
}
INLINE v16 v_min(v16 a, v16 b)
{
    return (v16){_mm512_min_ps(a.v, b.v)};
}
/* a < b, false where either is NaN */
INLINE m16 v_less(v16 a, v16 b)
{
    return _mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ);
}
/* where set: a, else b */
INLINE v16 v_select(m16 m, v16 a, v16 b)
{
    return (v16){_mm512_mask_blend_ps(m, b.v, a.v)};
}
/* 2^n for the n left in the low bits of the sum 1.5*2^23 + n */
INLINE v16 v_exp2_of_magic(v16 t)
{
    __m512i i = _mm512_slli_epi32(_mm512_castps_si512(t.v), 23);
    return (v16){_mm512_castsi512_ps(_mm512_add_epi32(i, _mm512_set1_epi32(0x3f800000)))};
}
/* Four accumulators of four doubles… here two of eight; lane l of the sum is lane l of x. */
typedef struct {
    __m512d lo, hi;
} d16;
INLINE d16 d_zero(void)
{
    return (d16){_mm512_setzero_pd(), _mm512_setzero_pd()};
}
/* acc + x*x in double */
INLINE d16 d_add_square(d16 acc, v16 x)
{
    __m512d lo = _mm512_cvtps_pd(_mm512_castps512_ps256(x.v));
    __m512d hi = _mm512_cvtps_pd(_mm512_extractf32x8_ps(x.v, 1));
    return (d16){_mm512_fmadd_pd(lo, lo, acc.lo), _mm512_fmadd_pd(hi, hi, acc.hi)};
}
INLINE void d_store(double *p, d16 a)
{
    _mm512_storeu_pd(p, a.lo);
    _mm512_storeu_pd(p + 8, a.hi);
}

#elif defined(DPT_ISA_AVX2)

#include <immintrin.h>

typedef struct {
    __m256 l, h;
} v16;
typedef struct {
    __m256 l, h;
} m16;

INLINE v16 v_set(float x)
{
    return (v16){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
INLINE v16 v_load(const float *p)
{
    return (v16){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
INLINE void v_store(float *p, v16 a)
{
    _mm256_storeu_ps(p, a.l);
    _mm256_storeu_ps(p + 8, a.h);
}
INLINE __m256i lane_mask(int64_t n, int from)
{
    const __m256i at = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n - from), at);
}
INLINE v16 v_load_part(const float *p, int64_t n, float fill)
{
    __m256i ml = lane_mask(n, 0), mh = lane_mask(n, 8);
    __m256 f = _mm256_set1_ps(fill);
    return (v16){_mm256_blendv_ps(f, _mm256_maskload_ps(p, ml), _mm256_castsi256_ps(ml)),
                 _mm256_blendv_ps(f, _mm256_maskload_ps(p + 8, mh), _mm256_castsi256_ps(mh))};
}
INLINE void v_store_part(float *p, int64_t n, v16 a)
{
    _mm256_maskstore_ps(p, lane_mask(n, 0), a.l);
    _mm256_maskstore_ps(p + 8, lane_mask(n, 8), a.h);
}
INLINE v16 v_add(v16 a, v16 b)
{
    return (v16){_mm256_add_ps(a.l, b.l), _mm256_add_ps(a.h, b.h)};
}
INLINE v16 v_sub(v16 a, v16 b)
{
    return (v16){_mm256_sub_ps(a.l, b.l), _mm256_sub_ps(a.h, b.h)};
}
INLINE v16 v_mul(v16 a, v16 b)
{
    return (v16){_mm256_mul_ps(a.l, b.l), _mm256_mul_ps(a.h, b.h)};
}
INLINE v16 v_div(v16 a, v16 b)
{
    return (v16){_mm256_div_ps(a.l, b.l), _mm256_div_ps(a.h, b.h)};
}
INLINE v16 v_sqrt(v16 a)
{
    return (v16){_mm256_sqrt_ps(a.l), _mm256_sqrt_ps(a.h)};
}
INLINE v16 v_fma(v16 a, v16 b, v16 c)
{
    return (v16){_mm256_fmadd_ps(a.l, b.l, c.l), _mm256_fmadd_ps(a.h, b.h, c.h)};
}
INLINE v16 v_max(v16 a, v16 b)
{
    return (v16){_mm256_max_ps(a.l, b.l), _mm256_max_ps(a.h, b.h)};
}
INLINE v16 v_min(v16 a, v16 b)
{
    return (v16){_mm256_min_ps(a.l, b.l), _mm256_min_ps(a.h, b.h)};
}
INLINE m16 v_less(v16 a, v16 b)
{
    return (m16){_mm256_cmp_ps(a.l, b.l, _CMP_LT_OQ), _mm256_cmp_ps(a.h, b.h, _CMP_LT_OQ)};
}
INLINE v16 v_select(m16 m, v16 a, v16 b)
{
    return (v16){_mm256_blendv_ps(b.l, a.l, m.l), _mm256_blendv_ps(b.h, a.h, m.h)};
}
INLINE __m256 exp2_of_magic8(__m256 t)
{
    __m256i i = _mm256_slli_epi32(_mm256_castps_si256(t), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(i, _mm256_set1_epi32(0x3f800000)));
}
INLINE v16 v_exp2_of_magic(v16 t)
{
    return (v16){exp2_of_magic8(t.l), exp2_of_magic8(t.h)};
}
typedef struct {
    __m256d q[4];
} d16;
INLINE d16 d_zero(void)
{
    __m256d z = _mm256_setzero_pd();
    return (d16){{z, z, z, z}};
}
INLINE d16 d_add_square(d16 acc, v16 x)
{
    __m256d a = _mm256_cvtps_pd(_mm256_castps256_ps128(x.l));
    __m256d b = _mm256_cvtps_pd(_mm256_extractf128_ps(x.l, 1));
    __m256d c = _mm256_cvtps_pd(_mm256_castps256_ps128(x.h));
    __m256d d = _mm256_cvtps_pd(_mm256_extractf128_ps(x.h, 1));
    return (d16){{_mm256_fmadd_pd(a, a, acc.q[0]), _mm256_fmadd_pd(b, b, acc.q[1]),
                  _mm256_fmadd_pd(c, c, acc.q[2]), _mm256_fmadd_pd(d, d, acc.q[3])}};
}
INLINE void d_store(double *p, d16 a)
{
    for (int i = 0; i < 4; i++)
        _mm256_storeu_pd(p + 4 * i, a.q[i]);
}

#else

typedef struct {
    float f[LANES];
} v16;
typedef struct {
    uint32_t u[LANES]; /* 0 or 1 */
} m16;

#define EACH_LANE for (int i = 0; i < LANES; i++)

INLINE v16 v_set(float x)
{
    v16 r;
    EACH_LANE r.f[i] = x;
    return r;
}
INLINE v16 v_load(const float *p)
{
    v16 r;
    memcpy(r.f, p, sizeof r.f);
    return r;
}
INLINE void v_store(float *p, v16 a)
{
    memcpy(p, a.f, sizeof a.f);
}
INLINE v16 v_load_part(const float *p, int64_t n, float fill)
{
    v16 r;
    EACH_LANE r.f[i] = i < n ? p[i] : fill;
    return r;
}
INLINE void v_store_part(float *p, int64_t n, v16 a)
{
    for (int64_t i = 0; i < n; i++)
        p[i] = a.f[i];
}
INLINE v16 v_add(v16 a, v16 b)
{
    EACH_LANE a.f[i] = a.f[i] + b.f[i];
    return a;
}
INLINE v16 v_sub(v16 a, v16 b)
{
    EACH_LANE a.f[i] = a.f[i] - b.f[i];
    return a;
}
INLINE v16 v_mul(v16 a, v16 b)
{
    EACH_LANE a.f[i] = a.f[i] * b.f[i];
    return a;
}
INLINE v16 v_div(v16 a, v16 b)
{
    EACH_LANE a.f[i] = a.f[i] / b.f[i];
    return a;
}
INLINE v16 v_sqrt(v16 a)
{
    EACH_LANE a.f[i] = sqrtf(a.f[i]);
    return a;
}
INLINE v16 v_fma(v16 a, v16 b, v16 c)
{
    EACH_LANE c.f[i] = fmaf(a.f[i], b.f[i], c.f[i]);
    return c;
}
INLINE v16 v_max(v16 a, v16 b)
{
    EACH_LANE a.f[i] = a.f[i] > b.f[i] ? a.f[i] : b.f[i];
    return a;
}
INLINE v16 v_min(v16 a, v16 b)
{
    EACH_LANE a.f[i] = a.f[i] < b.f[i] ? a.f[i] : b.f[i];
    return a;
}
INLINE m16 v_less(v16 a, v16 b)
{
    m16 r;
    EACH_LANE r.u[i] = a.f[i] < b.f[i];
    return r;
}
INLINE v16 v_select(m16 m, v16 a, v16 b)
{
    EACH_LANE a.f[i] = m.u[i] ? a.f[i] : b.f[i];
    return a;
}
INLINE v16 v_exp2_of_magic(v16 t)
{
    uint32_t u[LANES];
    memcpy(u, t.f, sizeof u);
    EACH_LANE u[i] = (u[i] << 23) + 0x3f800000u;
    memcpy(t.f, u, sizeof u);
    return t;
}
typedef struct {
    double d[LANES];
} d16;
INLINE d16 d_zero(void)
{
    d16 r;
    EACH_LANE r.d[i] = 0.0;
    return r;
}
INLINE d16 d_add_square(d16 acc, v16 x)
{
    /* The square of a float is exact in double, so this is the fma of the other two. */
    EACH_LANE acc.d[i] += (double)x.f[i] * (double)x.f[i];
    return acc;
}
INLINE void d_store(double *p, d16 a)
{
    memcpy(p, a.d, sizeof a.d);
}

#endif

/* --- the same in every instruction set --- */

/* Sum and maximum of the lanes: halves are joined, then quarters, eighths, pairs. */
INLINE float v_sum(v16 a)
{
    float f[LANES];
    v_store(f, a);
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            f[i] = f[i] + f[i + half];
    return f[0];
}

INLINE float v_greatest(v16 a)
{
    float f[LANES];
    v_store(f, a);
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            f[i] = f[i] > f[i + half] ? f[i] : f[i + half];
    return f[0];
}

INLINE double d_sum(d16 a)
{
    double d[LANES];
    d_store(d, a);
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            d[i] = d[i] + d[i + half];
    return d[0];
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

/* Runs STATEMENT(at, count) over [0, n): count is 16 but for the last. */
#define FOR_LANES(at, count, n)                                                                    \
    for (int64_t at = 0, count = (n) < LANES ? (n) : LANES; at < (n);                              \
         at += LANES, count = (n)-at < LANES ? (n)-at : LANES)

/* A load that is masked only in a row's last lanes. */
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
