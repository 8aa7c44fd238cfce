/* The lanes of lanes.h in plain C, for any machine: an array. The compiler may vectorise it; bits
 * do not change. Included by lanes.h only. */
#ifndef DPT_KERNELS_CPU_SIMD_LANES_PLAIN_H
#define DPT_KERNELS_CPU_SIMD_LANES_PLAIN_H

#include "kernels/half.h"

typedef struct {
    float f[LANES];
} v16;
typedef struct {
    uint32_t u[LANES]; /* 0 or 1 */
} m16;

#define EACH_LANE for (int i = 0; i < LANES; i++)

/* r.lane[i] = x, of a and, for BINARY, b. */
#define UNARY(result, name, type, lane, x)                                                         \
    INLINE result name(type a)                                                                     \
    {                                                                                              \
        result r;                                                                                  \
        EACH_LANE r.lane[i] = x;                                                                   \
        return r;                                                                                  \
    }
#define BINARY(result, name, left, right, lane, x)                                                 \
    INLINE result name(left a, right b)                                                            \
    {                                                                                              \
        result r;                                                                                  \
        EACH_LANE r.lane[i] = x;                                                                   \
        return r;                                                                                  \
    }
UNARY(v16, v_set, float, f, a)
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
INLINE void v_stream(float *p, v16 a)
{
    v_store(p, a);
}
INLINE void v_stream_end(void)
{
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
BINARY(v16, v_add, v16, v16, f, a.f[i] + b.f[i])
BINARY(v16, v_sub, v16, v16, f, a.f[i] - b.f[i])
BINARY(v16, v_mul, v16, v16, f, a.f[i] * b.f[i])
BINARY(v16, v_div, v16, v16, f, a.f[i] / b.f[i])
BINARY(v16, v_max, v16, v16, f, a.f[i] > b.f[i] ? a.f[i] : b.f[i])
BINARY(v16, v_min, v16, v16, f, a.f[i] < b.f[i] ? a.f[i] : b.f[i])
BINARY(m16, v_less, v16, v16, u, a.f[i] < b.f[i])
UNARY(v16, v_sqrt, v16, f, sqrtf(a.f[i]))
UNARY(m16, v_is_nan, v16, u, a.f[i] != a.f[i])
UNARY(m16, m_first, int64_t, u, i < a)
INLINE v16 v_fma(v16 a, v16 b, v16 c)
{
    EACH_LANE c.f[i] = fmaf(a.f[i], b.f[i], c.f[i]);
    return c;
}
INLINE v16 v_select(m16 m, v16 a, v16 b)
{
    EACH_LANE a.f[i] = m.u[i] ? a.f[i] : b.f[i];
    return a;
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
    /* The square of a float is exact in double, so this equals the fma of the other instruction
     * sets. */
    EACH_LANE acc.d[i] += (double)x.f[i] * (double)x.f[i];
    return acc;
}
INLINE void d_store(double *p, d16 a)
{
    memcpy(p, a.d, sizeof a.d);
}

typedef struct {
    uint32_t u[LANES];
} w16;
UNARY(w16, w_set, uint32_t, u, a)
UNARY(w16, w_of_v, v16, u, dpt_f32_bits(a.f[i]))
UNARY(v16, v_of_w, w16, f, dpt_f32_of_bits(a.u[i]))
INLINE w16 w_load(const uint32_t *p)
{
    w16 r;
    memcpy(r.u, p, sizeof r.u);
    return r;
}
BINARY(w16, w_add, w16, w16, u, a.u[i] + b.u[i])
BINARY(w16, w_xor, w16, w16, u, a.u[i] ^ b.u[i])
BINARY(w16, w_and, w16, w16, u, a.u[i] & b.u[i])
BINARY(w16, w_or, w16, w16, u, a.u[i] | b.u[i])
BINARY(w16, w_left, w16, int, u, a.u[i] << b)
BINARY(w16, w_right, w16, int, u, a.u[i] >> b)
INLINE void w_multiply(w16 a, w16 b, w16 *hi, w16 *lo)
{
    EACH_LANE
    {
        uint64_t product = (uint64_t)a.u[i] * b.u[i];
        hi->u[i] = (uint32_t)(product >> 32);
        lo->u[i] = (uint32_t)product;
    }
}
INLINE v16 w_keep(w16 a, w16 b, v16 value)
{
    EACH_LANE value.f[i] = a.u[i] >= b.u[i] ? value.f[i] : 0.0f;
    return value;
}

typedef struct {
    uint16_t u[LANES];
} h16;
INLINE h16 h_load(const uint16_t *p)
{
    h16 r;
    memcpy(r.u, p, sizeof r.u);
    return r;
}
INLINE void h_store(uint16_t *p, h16 a)
{
    memcpy(p, a.u, sizeof a.u);
}
UNARY(w16, w_of_h, h16, u, a.u[i])
UNARY(h16, h_of_w, w16, u, (uint16_t)a.u[i])
UNARY(v16, v_of_f16, h16, f, dpt_f32_of_f16(a.u[i]))
UNARY(h16, f16_of_v, v16, u, dpt_f16_of_f32(a.f[i]))
#define v_store_quarter(p, a, q) memcpy(p, (a).f + 4 * (q), 4 * sizeof(float))
INLINE void v_transpose4(v16 r[4])
{
    for (int q = 0; q < LANES; q += 4)
        for (int i = 0; i < 4; i++)
            for (int j = 0; j < i; j++) {
                float kept = r[i].f[q + j];
                r[i].f[q + j] = r[j].f[q + i];
                r[j].f[q + i] = kept;
            }
}

#endif
