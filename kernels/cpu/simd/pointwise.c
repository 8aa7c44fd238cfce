/* Kernels over elements: GELU, dropped sums, AdamW. */
#include "kernels/cpu/simd/simd.h"

void SIMD(gelu)(int64_t n, const float *x, float *y)
{
    FOR_LANES(j, count, n)
    {
        v_put(y + j, count, v_gelu(v_get(x + j, count, 0.0f)));
    }
}

/* d/dx x s(2u) = s + x s (1-s) 2u', s the logistic function, 2u' = 2 sqrt(2/pi) (1 + 3*0.044715
 * x^2). */
void SIMD(gelu_grad)(int64_t n, const float *x, const float *dy, float *dx)
{
    const v16 one = v_set(1.0f), a = v_set(1.5957691216057308f),
              b = v_set(1.5957691216057308f * 0.044715f),
              b3 = v_set(1.5957691216057308f * 3.0f * 0.044715f);
    FOR_LANES(j, count, n)
    {
        v16 v = v_get(x + j, count, 0.0f), square = v_mul(v, v);
        v16 e = v_exp(v_mul(v_sub(v_set(0.0f), v), v_fma(b, square, a)));
        v16 s = v_div(one, v_add(one, e));
        /* 1-s = e s: no cancellation. Where e is huge, s is tiny, and e*s is 1 as it should be. */
        v16 slope = v_fma(v_mul(v_mul(v, s), v_mul(e, s)), v_fma(b3, square, a), s);
        v_put(dx + j, count, v_mul(v_get(dy + j, count, 0.0f), slope));
    }
}

void SIMD(add)(int64_t n, const float *a, const float *b, float *dst)
{
    FOR_LANES(j, count, n)
    {
        v_put(dst + j, count, v_add(v_get(a + j, count, 0.0f), v_get(b + j, count, 0.0f)));
    }
}

void SIMD(fill)(int64_t n, float value, float *dst)
{
    v16 v = v_set(value);
    FOR_LANES(j, count, n)
    {
        v_put(dst + j, count, v);
    }
}

void SIMD(drop_add)(int64_t n, const struct dpt_dropout *d, uint64_t first, const float *a,
                    const float *b, float *y)
{
    enum { PART = 256 };
    float factors[PART];
    for (int64_t at = 0; at < n; at += PART) {
        int64_t part = n - at < PART ? n - at : PART;
        SIMD(drop_factors)(part, d, first + (uint64_t)at, factors);
        FOR_LANES(j, count, part)
        {
            v16 x = v_mul(v_get(b + at + j, count, 0.0f), v_get(factors + j, count, 0.0f));
            if (a)
                x = v_add(v_get(a + at + j, count, 0.0f), x);
            v_put(y + at + j, count, x);
        }
    }
}

void SIMD(adamw)(const struct dpt_adamw *a)
{
    const v16 scale = v_set(a->grad_scale), decay = v_set(a->lr * a->weight_decay);
    const v16 b1 = v_set(a->beta1), b1_rest = v_set(1.0f - a->beta1);
    const v16 b2 = v_set(a->beta2), b2_rest = v_set(1.0f - a->beta2);
    const v16 bias1 = v_set(a->bias1), bias2 = v_set(a->bias2), eps = v_set(a->eps),
              lr = v_set(a->lr);
    FOR_LANES(j, count, a->n)
    {
        v16 g = v_mul(v_get(a->grad + j, count, 0.0f), scale);
        v16 p = v_get(a->param + j, count, 0.0f);
        v16 m = v_fma(b1, v_get(a->m + j, count, 0.0f), v_mul(b1_rest, g));
        v16 v = v_fma(b2, v_get(a->v + j, count, 0.0f), v_mul(b2_rest, v_mul(g, g)));
        p = v_sub(p, v_mul(decay, p));
        v16 step = v_div(v_div(m, bias1), v_add(v_sqrt(v_div(v, bias2)), eps));
        p = v_sub(p, v_mul(lr, step));
        v_put(a->param + j, count, p);
        v_put(a->m + j, count, m);
        v_put(a->v + j, count, v);
    }
}

double SIMD(sumsq)(int64_t n, const float *x)
{
    /* Two chains of 16 doubles, joined at the end, so that additions need not wait for each other.
     */
    d16 even = d_zero(), odd = d_zero();
    int64_t j = 0;
    for (; j + 2 * LANES <= n; j += 2 * LANES) {
        even = d_add_square(even, v_load(x + j));
        odd = d_add_square(odd, v_load(x + j + LANES));
    }
    if (j < n)
        even = d_add_square(even, v_get(x + j, n - j < LANES ? n - j : LANES, 0.0f));
    if (j + LANES < n)
        odd = d_add_square(odd, v_get(x + j + LANES, n - j - LANES, 0.0f));
    return d_sum(even) + d_sum(odd);
}
