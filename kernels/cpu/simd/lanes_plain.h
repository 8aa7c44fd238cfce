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
#define BINARY(type, name, lane, x)                                                                \
    INLINE type name(type a, type b)                                                               \
    {                                                                                              \
        EACH_LANE a.lane[i] = x;                                                                   \
        return a;                                                                                  \
    }
BINARY(v16, v_add, f, a.f[i] + b.f[i])
BINARY(v16, v_sub, f, a.f[i] - b.f[i])
BINARY(v16, v_mul, f, a.f[i] * b.f[i])
BINARY(v16, v_div, f, a.f[i] / b.f[i])
BINARY(v16, v_max, f, a.f[i] > b.f[i] ? a.f[i] : b.f[i])
BINARY(v16, v_min, f, a.f[i] < b.f[i] ? a.f[i] : b.f[i])
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

typedef struct {
    uint32_t u[LANES];
} w16;
INLINE w16 w_set(uint32_t x)
{
    w16 r;
    EACH_LANE r.u[i] = x;
    return r;
}
INLINE w16 w_load(const uint32_t *p)
{
    w16 r;
    memcpy(r.u, p, sizeof r.u);
    return r;
}
BINARY(w16, w_add, u, a.u[i] + b.u[i])
BINARY(w16, w_xor, u, a.u[i] ^ b.u[i])
BINARY(w16, w_and, u, a.u[i] & b.u[i])
BINARY(w16, w_or, u, a.u[i] | b.u[i])
INLINE w16 w_left(w16 a, int n)
{
    EACH_LANE a.u[i] <<= n;
    return a;
}
INLINE w16 w_right(w16 a, int n)
{
    EACH_LANE a.u[i] >>= n;
    return a;
}
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
INLINE w16 w_of_v(v16 a)
{
    w16 r;
    memcpy(r.u, a.f, sizeof r.u);
    return r;
}
INLINE v16 v_of_w(w16 a)
{
    v16 r;
    memcpy(r.f, a.u, sizeof r.f);
    return r;
}
INLINE m16 v_is_nan(v16 a)
{
    m16 r;
    EACH_LANE r.u[i] = a.f[i] != a.f[i];
    return r;
}
INLINE m16 m_first(int64_t n)
{
    m16 r;
    EACH_LANE r.u[i] = i < n;
    return r;
}

typedef struct {
    uint16_t u[LANES];
} h16;
INLINE h16 h_load_part(const uint16_t *p, int64_t n)
{
    h16 r = {{0}};
    memcpy(r.u, p, (size_t)n * sizeof *p);
    return r;
}
INLINE h16 h_load(const uint16_t *p)
{
    return h_load_part(p, LANES);
}
INLINE void h_store_part(uint16_t *p, int64_t n, h16 a)
{
    memcpy(p, a.u, (size_t)n * sizeof *p);
}
INLINE void h_store(uint16_t *p, h16 a)
{
    h_store_part(p, LANES, a);
}
INLINE w16 w_of_h(h16 a)
{
    w16 r;
    EACH_LANE r.u[i] = a.u[i];
    return r;
}
INLINE h16 h_of_w(w16 a)
{
    h16 r;
    EACH_LANE r.u[i] = (uint16_t)a.u[i];
    return r;
}
INLINE v16 v_of_f16(h16 a)
{
    v16 r;
    EACH_LANE r.f[i] = dpt_f32_of_f16(a.u[i]);
    return r;
}
INLINE h16 f16_of_v(v16 a)
{
    h16 r;
    EACH_LANE r.u[i] = dpt_f16_of_f32(a.f[i]);
    return r;
}
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
