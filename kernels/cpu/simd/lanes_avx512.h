/* The lanes of lanes.h in AVX-512: one register. Included by lanes.h only. */
#ifndef DPT_KERNELS_CPU_SIMD_LANES_AVX512_H
#define DPT_KERNELS_CPU_SIMD_LANES_AVX512_H

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
/* Stores past the caches; p is aligned to 64. v_stream_end orders the store before later stores. */
INLINE void v_stream(float *p, v16 a)
{
    _mm512_stream_ps(p, a.v);
}
/* A mask that is set in the first n lanes. */
INLINE m16 m_first(int64_t n)
{
    return (m16)((1u << n) - 1u);
}
INLINE v16 v_load_part(const float *p, int64_t n, float fill)
{
    return (v16){_mm512_mask_loadu_ps(_mm512_set1_ps(fill), m_first(n), p)};
}
INLINE void v_store_part(float *p, int64_t n, v16 a)
{
    _mm512_mask_storeu_ps(p, m_first(n), a.v);
}
#define BINARY(type, name, operation)                                                              \
    INLINE type name(type a, type b)                                                               \
    {                                                                                              \
        return (type){operation(a.v, b.v)};                                                        \
    }
#define UNARY(result, name, type, operation)                                                       \
    INLINE result name(type a)                                                                     \
    {                                                                                              \
        return (result){operation(a.v)};                                                           \
    }
BINARY(v16, v_add, _mm512_add_ps)
BINARY(v16, v_sub, _mm512_sub_ps)
BINARY(v16, v_mul, _mm512_mul_ps)
BINARY(v16, v_div, _mm512_div_ps)
BINARY(v16, v_max, _mm512_max_ps)
BINARY(v16, v_min, _mm512_min_ps)
UNARY(v16, v_sqrt, v16, _mm512_sqrt_ps)
INLINE v16 v_fma(v16 a, v16 b, v16 c)
{
    return (v16){_mm512_fmadd_ps(a.v, b.v, c.v)};
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
/* Sixteen lanes of double. */
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

/* Sixteen lanes of uint32_t. */
typedef struct {
    __m512i v;
} w16;
INLINE w16 w_set(uint32_t x)
{
    return (w16){_mm512_set1_epi32((int)x)};
}
INLINE w16 w_load(const uint32_t *p)
{
    return (w16){_mm512_loadu_si512(p)};
}
BINARY(w16, w_add, _mm512_add_epi32)
BINARY(w16, w_xor, _mm512_xor_si512)
BINARY(w16, w_and, _mm512_and_si512)
BINARY(w16, w_or, _mm512_or_si512)
/* Both halves of the 64-bit products. */
INLINE void w_multiply(w16 a, w16 b, w16 *hi, w16 *lo)
{
    __m512i even = _mm512_mul_epu32(a.v, b.v);
    __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(a.v, 32), _mm512_srli_epi64(b.v, 32));
    hi->v = _mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
    lo->v = _mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32));
}
/* where a >= b: value, else 0 */
INLINE v16 w_keep(w16 a, w16 b, v16 value)
{
    return (v16){_mm512_maskz_mov_ps(_mm512_cmpge_epu32_mask(a.v, b.v), value.v)};
}
#define w_left(a, n)  ((w16){_mm512_slli_epi32((a).v, n)})
#define w_right(a, n) ((w16){_mm512_srli_epi32((a).v, n)})
UNARY(w16, w_of_v, v16, _mm512_castps_si512)
UNARY(v16, v_of_w, w16, _mm512_castsi512_ps)
INLINE m16 v_is_nan(v16 a)
{
    return _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
}

INLINE h16 h_load_part(const uint16_t *p, int64_t n)
{
    return (h16){_mm256_maskz_loadu_epi16(m_first(n), p)};
}
INLINE void h_store_part(uint16_t *p, int64_t n, h16 a)
{
    _mm256_mask_storeu_epi16(p, m_first(n), a.v);
}
UNARY(w16, w_of_h, h16, _mm512_cvtepu16_epi32)
UNARY(h16, h_of_w, w16, _mm512_cvtepi32_epi16) /* the low halves */
UNARY(v16, v_of_f16, h16, _mm512_cvtph_ps)
INLINE h16 f16_of_v(v16 a)
{
    return (h16){_mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
/* Lanes 4q … 4q+3, q a constant. */
#define v_store_quarter(p, a, q) _mm_storeu_ps(p, _mm512_extractf32x4_ps((a).v, q))
/* Transposes the 4 x 4 blocks that lanes 4q … 4q+3 of four vectors make. */
INLINE void v_transpose4(v16 r[4])
{
    __m512 a = _mm512_unpacklo_ps(r[0].v, r[1].v), b = _mm512_unpackhi_ps(r[0].v, r[1].v);
    __m512 c = _mm512_unpacklo_ps(r[2].v, r[3].v), d = _mm512_unpackhi_ps(r[2].v, r[3].v);
    r[0].v = _mm512_shuffle_ps(a, c, 0x44);
    r[1].v = _mm512_shuffle_ps(a, c, 0xee);
    r[2].v = _mm512_shuffle_ps(b, d, 0x44);
    r[3].v = _mm512_shuffle_ps(b, d, 0xee);
}

#endif
