/* Kernels over elements of f32: filling, AdamW, SGD, sums of squares, the head's softmax. */
#include "kernels/cpu/simd/simd.h"

void SIMD(fill)(int64_t n, float value, float *dst)
{
    v16 v = v_set(value);
    FOR_LANES(j, count, n)
        v_put(dst + j, count, v);
}

void SIMD(adamw)(const struct dpt_adamw *a)
{
    const v16 scale = v_set(a->grad_scale);
    const v16 decay = v_set(a->l2 ? a->weight_decay : a->lr * a->weight_decay);
    const bool l2 = a->l2;
    const v16 b1 = v_set(a->beta1), b1_rest = v_set(1.0f - a->beta1);
    const v16 b2 = v_set(a->beta2), b2_rest = v_set(1.0f - a->beta2);
    const v16 bias1 = v_set(a->bias1), bias2 = v_set(a->bias2), eps = v_set(a->eps),
              lr = v_set(a->lr);
    FOR_LANES(j, count, a->n) {
        v16 g = v_mul(v_get(a->grad + j, count, 0.0f), scale);
        v16 p = v_get(a->param + j, count, 0.0f);
        if (l2)
            g = v_fma(decay, p, g);
        v16 m = v_fma(b1, v_get(a->m + j, count, 0.0f), v_mul(b1_rest, g));
        v16 v = v_fma(b2, v_get(a->v + j, count, 0.0f), v_mul(b2_rest, v_mul(g, g)));
        if (!l2)
            p = v_sub(p, v_mul(decay, p));
        v16 step = v_div(v_div(m, bias1), v_add(v_sqrt(v_div(v, bias2)), eps));
        p = v_sub(p, v_mul(lr, step));
        v_put(a->param + j, count, p);
        v_put(a->m + j, count, m);
        v_put(a->v + j, count, v);
    }
}

void SIMD(sgd)(const struct dpt_sgd *a)
{
    const v16 scale = v_set(a->grad_scale), decay = v_set(a->weight_decay);
    const v16 momentum = v_set(a->momentum), lr = v_set(a->lr);
    const bool keeps = a->momentum > 0.0f;
    FOR_LANES(j, count, a->n) {
        v16 p = v_get(a->param + j, count, 0.0f);
        v16 g = v_fma(decay, p, v_mul(v_get(a->grad + j, count, 0.0f), scale));
        v16 step = g;
        if (keeps) {
            v16 m = v_fma(momentum, v_get(a->m + j, count, 0.0f), g);
            v_put(a->m + j, count, m);
            step = a->nesterov ? v_fma(momentum, m, g) : m;
        }
        v_put(a->param + j, count, v_sub(p, v_mul(lr, step)));
    }
}

double SIMD(sumsq)(int64_t n, const float *x)
{
    /* Two chains of 16 doubles that are joined at the end, so that additions need not wait for each
     * other. */
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

void SIMD(softmax_part)(int64_t n, const float *x, float *max, float *sum)
{
    v16 most = v_set(*max);
    FOR_LANES(j, count, n)
        most = v_max(most, v_get(x + j, count, *max));
    float new_max = v_greatest(most);
    v16 shift = v_set(new_max), total = v_set(0.0f);
    FOR_LANES(j, count, n)
        total = v_add(total, v_exp(v_sub(v_get(x + j, count, -INFINITY), shift)));
    float factor[LANES];
    v_store(factor, v_exp(v_set(*max - new_max)));
    *sum = fmaf(*sum, factor[0], v_sum(total));
    *max = new_max;
}
