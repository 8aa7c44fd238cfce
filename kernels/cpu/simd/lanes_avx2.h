/* The lanes of lanes.h in AVX2 and FMA: two registers, low and high. Included by lanes.h only. */
#ifndef DPT_KERNELS_CPU_SIMD_LANES_AVX2_H
#define DPT_KERNELS_CPU_SIMD_LANES_AVX2_H

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
INLINE void v_stream(float *p, v16 a)
{
    _mm256_stream_ps(p, a.l);
    _mm256_stream_ps(p + 8, a.h);
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
#define BINARY(type, name, operation)                                                              \
    INLINE type name(type a, type b)                                                               \
    {                                                                                              \
        return (type){operation(a.l, b.l), operation(a.h, b.h)};                                   \
    }
#define UNARY(result, name, type, operation)                                                       \
    INLINE result name(type a)                                                                     \
    {                                                                                              \
        return (result){operation(a.l), operation(a.h)};                                           \
    }
BINARY(v16, v_add, _mm256_add_ps)
BINARY(v16, v_sub, _mm256_sub_ps)
BINARY(v16, v_mul, _mm256_mul_ps)
BINARY(v16, v_div, _mm256_div_ps)
BINARY(v16, v_max, _mm256_max_ps)
BINARY(v16, v_min, _mm256_min_ps)
UNARY(v16, v_sqrt, v16, _mm256_sqrt_ps)
INLINE v16 v_fma(v16 a, v16 b, v16 c)
{
    return (v16){_mm256_fmadd_ps(a.l, b.l, c.l), _mm256_fmadd_ps(a.h, b.h, c.h)};
}
INLINE m16 v_less(v16 a, v16 b)
{
    return (m16){_mm256_cmp_ps(a.l, b.l, _CMP_LT_OQ), _mm256_cmp_ps(a.h, b.h, _CMP_LT_OQ)};
}
INLINE v16 v_select(m16 m, v16 a, v16 b)
{
    return (v16){_mm256_blendv_ps(b.l, a.l, m.l), _mm256_blendv_ps(b.h, a.h, m.h)};
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

typedef struct {
    __m256i l, h;
} w16;
INLINE w16 w_set(uint32_t x)
{
    return (w16){_mm256_set1_epi32((int)x), _mm256_set1_epi32((int)x)};
}
INLINE w16 w_load(const uint32_t *p)
{
    return (w16){_mm256_loadu_si256((const __m256i *)(const void *)p),
                 _mm256_loadu_si256((const __m256i *)(const void *)(p + 8))};
}
BINARY(w16, w_add, _mm256_add_epi32)
BINARY(w16, w_xor, _mm256_xor_si256)
BINARY(w16, w_and, _mm256_and_si256)
BINARY(w16, w_or, _mm256_or_si256)
INLINE void multiply8(__m256i a, __m256i b, __m256i *hi, __m256i *lo)
{
    __m256i even = _mm256_mul_epu32(a, b);
    __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), _mm256_srli_epi64(b, 32));
    *hi = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
    *lo = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
}
INLINE void w_multiply(w16 a, w16 b, w16 *hi, w16 *lo)
{
    multiply8(a.l, b.l, &hi->l, &lo->l);
    multiply8(a.h, b.h, &hi->h, &lo->h);
}
INLINE __m256 keep8(__m256i a, __m256i b, __m256 value)
{
    __m256i kept = _mm256_cmpeq_epi32(_mm256_max_epu32(a, b), a);
    return _mm256_and_ps(_mm256_castsi256_ps(kept), value);
}
INLINE v16 w_keep(w16 a, w16 b, v16 value)
{
    return (v16){keep8(a.l, b.l, value.l), keep8(a.h, b.h, value.h)};
}
#define w_left(a, n)  ((w16){_mm256_slli_epi32((a).l, n), _mm256_slli_epi32((a).h, n)})
#define w_right(a, n) ((w16){_mm256_srli_epi32((a).l, n), _mm256_srli_epi32((a).h, n)})
UNARY(w16, w_of_v, v16, _mm256_castps_si256)
UNARY(v16, v_of_w, w16, _mm256_castsi256_ps)
INLINE m16 v_is_nan(v16 a)
{
    return (m16){_mm256_cmp_ps(a.l, a.l, _CMP_UNORD_Q), _mm256_cmp_ps(a.h, a.h, _CMP_UNORD_Q)};
}
INLINE m16 m_first(int64_t n)
{
    return (m16){_mm256_castsi256_ps(lane_mask(n, 0)), _mm256_castsi256_ps(lane_mask(n, 8))};
}

INLINE w16 w_of_h(h16 a)
{
    return (w16){_mm256_cvtepu16_epi32(_mm256_castsi256_si128(a.v)),
                 _mm256_cvtepu16_epi32(_mm256_extracti128_si256(a.v, 1))};
}
INLINE h16 h_of_w(w16 a)
{
    const __m256i low = _mm256_set1_epi32(0xffff);
    __m256i packed = _mm256_packus_epi32(_mm256_and_si256(a.l, low), _mm256_and_si256(a.h, low));
    return (h16){_mm256_permute4x64_epi64(packed, 0xd8)};
}
INLINE v16 v_of_f16(h16 a)
{
    return (v16){_mm256_cvtph_ps(_mm256_castsi256_si128(a.v)),
                 _mm256_cvtph_ps(_mm256_extracti128_si256(a.v, 1))};
}
INLINE h16 f16_of_v(v16 a)
{
    __m128i l = _mm256_cvtps_ph(a.l, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m128i h = _mm256_cvtps_ph(a.h, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return (h16){_mm256_set_m128i(h, l)};
}
#define v_store_quarter(p, a, q)                                                                   \
    _mm_storeu_ps(p, _mm256_extractf128_ps((q) < 2 ? (a).l : (a).h, (q)&1))
INLINE void transpose4x8(__m256 *r0, __m256 *r1, __m256 *r2, __m256 *r3)
{
    __m256 a = _mm256_unpacklo_ps(*r0, *r1), b = _mm256_unpackhi_ps(*r0, *r1);
    __m256 c = _mm256_unpacklo_ps(*r2, *r3), d = _mm256_unpackhi_ps(*r2, *r3);
    *r0 = _mm256_shuffle_ps(a, c, 0x44);
    *r1 = _mm256_shuffle_ps(a, c, 0xee);
    *r2 = _mm256_shuffle_ps(b, d, 0x44);
    *r3 = _mm256_shuffle_ps(b, d, 0xee);
}
INLINE void v_transpose4(v16 r[4])
{
    transpose4x8(&r[0].l, &r[1].l, &r[2].l, &r[3].l);
    transpose4x8(&r[0].h, &r[1].h, &r[2].h, &r[3].h);
}

#endif
