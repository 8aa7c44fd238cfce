/* The lanes of lanes.h for any machine: vectors of the compiler (gcc's vector_size), which become
 * the vectors or scalars that the machine has. Included by lanes.h only. */
#ifndef DPT_KERNELS_CPU_SIMD_LANES_PLAIN_H
#define DPT_KERNELS_CPU_SIMD_LANES_PLAIN_H

#include "kernels/half.h"

#define VECTOR(type) type __attribute__((vector_size(LANES * sizeof(type))))
typedef struct {
    VECTOR(float) f;
} v16;
typedef struct {
    VECTOR(int32_t) i; /* 0 or -1 */
} m16;
typedef struct {
    VECTOR(double) d;
} d16;
typedef struct {
    VECTOR(uint32_t) u;
} w16;
typedef struct {
    VECTOR(uint16_t) u;
} h16;

#define EACH_LANE for (int i = 0; i < LANES; i++)

/* `name` returns x, of a and, for BINARY, b: the vector itself, or with _LANES its lane i. OPERATOR
 * applies one to each lane. */
#define UNARY(result, name, type, x)                                                               \
    INLINE result name(type a)                                                                     \
    {                                                                                              \
        return (result){x};                                                                        \
    }
#define BINARY(result, name, left, right, x)                                                       \
    INLINE result name(left a, right b)                                                            \
    {                                                                                              \
        return (result){x};                                                                        \
    }
#define OPERATOR(vector, name, member, op)                                                         \
    INLINE vector name(vector a, vector b)                                                         \
    {                                                                                              \
        return (vector){a.member op b.member};                                                     \
    }
#define UNARY_LANES(result, name, type, member, x)                                                 \
    INLINE result name(type a)                                                                     \
    {                                                                                              \
        result r;                                                                                  \
        EACH_LANE r.member[i] = x;                                                                 \
        return r;                                                                                  \
    }

UNARY_LANES(v16, v_set, float, f, a)
INLINE v16 v_load(const float *p)
{
    v16 r;
    memcpy(&r.f, p, sizeof r.f);
    return r;
}
INLINE void v_store(float *p, v16 a)
{
    memcpy(p, &a.f, sizeof a.f);
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
INLINE v16 v_select(m16 m, v16 a, v16 b)
{
    const m16 x = {(VECTOR(int32_t))a.f}, y = {(VECTOR(int32_t))b.f};
    return (v16){(VECTOR(float))((x.i & m.i) | (y.i & ~m.i))};
}
OPERATOR(v16, v_add, f, +)
OPERATOR(v16, v_sub, f, -)
OPERATOR(v16, v_mul, f, *)
OPERATOR(v16, v_div, f, /)
BINARY(m16, v_less, v16, v16, a.f < b.f)
UNARY(m16, v_is_nan, v16, a.f != a.f)
INLINE v16 v_max(v16 a, v16 b)
{
    return v_select(v_less(b, a), a, b);
}
INLINE v16 v_min(v16 a, v16 b)
{
    return v_select(v_less(a, b), a, b);
}
UNARY_LANES(v16, v_sqrt, v16, f, sqrtf(a.f[i]))
UNARY_LANES(m16, m_first, int64_t, i, -(i < a))
/* Where fmaf is a function of the C library, one copy of its 16 calls is enough. */
#ifdef __FP_FAST_FMAF
INLINE
#else
__attribute__((noinline, unused)) static
#endif
v16 v_fma(v16 a, v16 b, v16 c)
{
    EACH_LANE c.f[i] = fmaf(a.f[i], b.f[i], c.f[i]);
    return c;
}

INLINE d16 d_zero(void)
{
    return (d16){{0}};
}
INLINE d16 d_add_square(d16 acc, v16 x)
{
    /* The square of a float is exact in double, so this equals the fma of the other instruction
     * sets. */
    const d16 wide = {__builtin_convertvector(x.f, VECTOR(double))};
    return (d16){acc.d + wide.d * wide.d};
}
INLINE void d_store(double *p, d16 a)
{
    memcpy(p, &a.d, sizeof a.d);
}

UNARY_LANES(w16, w_set, uint32_t, u, a)
UNARY(w16, w_of_v, v16, (VECTOR(uint32_t))a.f)
UNARY(v16, v_of_w, w16, (VECTOR(float))a.u)
INLINE w16 w_load(const uint32_t *p)
{
    w16 r;
    memcpy(&r.u, p, sizeof r.u);
    return r;
}
OPERATOR(w16, w_add, u, +)
OPERATOR(w16, w_xor, u, ^)
OPERATOR(w16, w_and, u, &)
OPERATOR(w16, w_or, u, |)
BINARY(w16, w_left, w16, int, a.u << (uint32_t)b)
BINARY(w16, w_right, w16, int, a.u >> (uint32_t)b)
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
    const m16 kept = {(VECTOR(int32_t))(a.u >= b.u)};
    return v_select(kept, value, v_set(0.0f));
}

INLINE h16 h_load(const uint16_t *p)
{
    h16 r;
    memcpy(&r.u, p, sizeof r.u);
    return r;
}
INLINE void h_store(uint16_t *p, h16 a)
{
    memcpy(p, &a.u, sizeof a.u);
}
UNARY(w16, w_of_h, h16, __builtin_convertvector(a.u, VECTOR(uint32_t)))
UNARY(h16, h_of_w, w16, __builtin_convertvector(a.u, VECTOR(uint16_t)))
UNARY_LANES(v16, v_of_f16, h16, f, dpt_f32_of_f16(a.u[i]))
UNARY_LANES(h16, f16_of_v, v16, u, dpt_f16_of_f32(a.f[i]))
#define v_store_quarter(p, a, q) memcpy(p, (const float *)&(a).f + 4 * (q), 4 * sizeof(float))
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
