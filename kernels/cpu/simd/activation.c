/* Kernels over elements of one type: GELU, SwiGLU, scaling, sums, sums with dropout, conversion. */
#include "kernels/cpu/simd/elem.h"

void ELEM(gelu)(int64_t n, const void *x_elems, void *y_elems)
{
    const elem *x = x_elems;
    elem *y = y_elems;
    FOR_LANES(j, count, n)
        e_put(y + j, count, v_gelu(e_get(x + j, count, 0.0f)));
}

/* The slope of GELU: d/dx x s(2u) = s + x s (1-s) 2u', where s is the logistic function and 2u' = 2
 * sqrt(2/pi) (1 + 3*0.044715 x^2). */
void ELEM(gelu_grad)(int64_t n, const void *x_elems, const void *dy_elems, void *dx_elems)
{
    const elem *x = x_elems, *dy = dy_elems;
    elem *dx = dx_elems;
    const v16 one = v_set(1.0f), a = v_set(1.5957691216057308f),
              b = v_set(1.5957691216057308f * 0.044715f),
              b3 = v_set(1.5957691216057308f * 3.0f * 0.044715f);
    FOR_LANES(j, count, n) {
        v16 v = e_get(x + j, count, 0.0f), square = v_mul(v, v);
        v16 e = v_exp(v_mul(v_sub(v_set(0.0f), v), v_fma(b, square, a)));
        v16 s = v_div(one, v_add(one, e));
        /* 1-s is computed as e s, so that nothing cancels. If e is huge, s is tiny, and e*s is 1,
         * as it should be. */
        v16 slope = v_fma(v_mul(v_mul(v, s), v_mul(e, s)), v_fma(b3, square, a), s);
        e_put(dx + j, count, v_mul(e_get(dy + j, count, 0.0f), slope));
    }
}

void ELEM(swiglu)(int64_t n, const void *gate_elems, const void *up_elems, void *y_elems)
{
    const elem *gate = gate_elems, *up = up_elems;
    elem *y = y_elems;
    const v16 zero = v_set(0.0f), one = v_set(1.0f);
    FOR_LANES(j, count, n) {
        v16 g = e_get(gate + j, count, 0.0f);
        v16 silu = v_div(g, v_add(one, v_exp(v_sub(zero, g))));
        e_put(y + j, count, v_mul(silu, e_get(up + j, count, 0.0f)));
    }
}

/* The slope of silu: d/dg g s(g) = s + g s (1-s), where s is the logistic function. 1-s is computed
 * as e s, as in gelu_grad. */
void ELEM(swiglu_grad)(int64_t n, const void *gate_elems, const void *up_elems,
                       const void *dy_elems, void *dgate_elems, void *dup_elems)
{
    const elem *gate = gate_elems, *up = up_elems, *dy = dy_elems;
    elem *dgate = dgate_elems, *dup = dup_elems;
    const v16 zero = v_set(0.0f), one = v_set(1.0f);
    FOR_LANES(j, count, n) {
        v16 g = e_get(gate + j, count, 0.0f), d = e_get(dy + j, count, 0.0f);
        v16 e = v_exp(v_sub(zero, g)), s = v_div(one, v_add(one, e));
        v16 silu = v_mul(g, s), slope = v_fma(silu, v_mul(e, s), s);
        e_put(dgate + j, count, v_mul(v_mul(d, e_get(up + j, count, 0.0f)), slope));
        e_put(dup + j, count, v_mul(d, silu));
    }
}

void ELEM(scale)(int64_t n, float factor, void *x_elems)
{
    elem *x = x_elems;
    const v16 by = v_set(factor);
    FOR_LANES(j, count, n)
        e_put(x + j, count, v_mul(e_get(x + j, count, 0.0f), by));
}

void ELEM(add)(int64_t n, const void *a_elems, const void *b_elems, void *dst_elems)
{
    const elem *a = a_elems, *b = b_elems;
    elem *dst = dst_elems;
    FOR_LANES(j, count, n)
        e_put(dst + j, count, v_add(e_get(a + j, count, 0.0f), e_get(b + j, count, 0.0f)));
}

void ELEM(drop_add)(int64_t n, const struct dpt_dropout *d, uint64_t first, const void *a_elems,
                    const void *b_elems, void *y_elems)
{
    enum { PART = 256 };
    const elem *a = a_elems, *b = b_elems;
    elem *y = y_elems;
    float factors[PART];
    for (int64_t at = 0; at < n; at += PART) {
        int64_t part = n - at < PART ? n - at : PART;
        SIMD(drop_factors)(part, d, first + (uint64_t)at, factors);
        FOR_LANES(j, count, part) {
            v16 x = v_mul(e_get(b + at + j, count, 0.0f), v_get(factors + j, count, 0.0f));
            if (a)
                x = v_add(e_get(a + at + j, count, 0.0f), x);
            e_put(y + at + j, count, x);
        }
    }
}

void ELEM(widen)(int64_t n, const void *x_elems, float *y)
{
    const elem *x = x_elems;
    FOR_LANES(j, count, n)
        v_put(y + j, count, e_get(x + j, count, 0.0f));
}

void ELEM(narrow)(int64_t n, const float *x, void *y_elems)
{
    elem *y = y_elems;
    FOR_LANES(j, count, n)
        e_put(y + j, count, v_get(x + j, count, 0.0f));
}
