/* Layer norm over rows, and its gradient (Ba et al. 2016). RMS norm is the same with zero in place
 * of the mean and of beta: x - 0 and x + 0 are exact. */
#include "kernels/cpu/simd/elem.h"

INLINE float row_mean(const elem *x, int64_t c, float inv_c)
{
    v16 sum = v_set(0.0f);
    FOR_LANES(j, n, c)
        sum = v_add(sum, e_get(x + j, n, 0.0f));
    return v_sum(sum) * inv_c;
}

void ELEM(norm)(const struct dpt_layernorm_forward *a, int64_t first, int64_t end)
{
    const int64_t c = a->c;
    const elem *gamma = a->gamma, *beta = a->beta;
    const float inv_c = 1.0f / (float)c;
    for (int64_t r = first; r < end; r++) {
        const elem *x = (const elem *)a->x + r * c;
        elem *y = (elem *)a->y + r * c;
        const float mean = a->mean ? row_mean(x, c, inv_c) : 0.0f;
        const v16 mean16 = v_set(mean);
        v16 squares = v_set(0.0f);
        FOR_LANES(j, n, c) {
            v16 d = v_sub(e_get(x + j, n, mean), mean16);
            squares = v_fma(d, d, squares);
        }
        const float rstd = 1.0f / sqrtf(v_sum(squares) * inv_c + a->eps);
        const v16 rstd16 = v_set(rstd);
        FOR_LANES(j, n, c) {
            v16 hat = v_mul(v_sub(e_get(x + j, n, 0.0f), mean16), rstd16);
            v16 shift = beta ? e_get(beta + j, n, 0.0f) : v_set(0.0f);
            e_put(y + j, n, v_fma(hat, e_get(gamma + j, n, 0.0f), shift));
        }
        if (a->mean)
            a->mean[r] = mean;
        a->rstd[r] = rstd;
    }
}

void ELEM(norm_grad)(const struct dpt_layernorm_backward *a, int64_t first, int64_t end,
                     float *dgamma, float *dbeta)
{
    const int64_t c = a->c;
    const elem *gamma = a->gamma;
    const float inv_c = 1.0f / (float)c;
    SIMD(fill)(c, 0.0f, dgamma);
    if (a->mean)
        SIMD(fill)(c, 0.0f, dbeta);
    for (int64_t r = first; r < end; r++) {
        const elem *x = (const elem *)a->x + r * c, *dy = (const elem *)a->dy + r * c;
        elem *dx = (elem *)a->dx + r * c;
        const v16 mean = v_set(a->mean ? a->mean[r] : 0.0f), rstd = v_set(a->rstd[r]);
        v16 sum = v_set(0.0f), dot = v_set(0.0f);
        FOR_LANES(j, n, c) {
            v16 hat = v_mul(v_sub(e_get(x + j, n, 0.0f), mean), rstd);
            v16 g = e_get(dy + j, n, 0.0f);
            v16 weighted = v_mul(g, e_get(gamma + j, n, 0.0f));
            sum = v_add(sum, weighted);
            dot = v_fma(weighted, hat, dot);
            v_put(dgamma + j, n, v_fma(g, hat, v_get(dgamma + j, n, 0.0f)));
            if (a->mean)
                v_put(dbeta + j, n, v_add(v_get(dbeta + j, n, 0.0f), g));
        }
        const v16 mean_sum = v_set(a->mean ? v_sum(sum) * inv_c : 0.0f);
        const v16 mean_dot = v_set(v_sum(dot) * inv_c);
        FOR_LANES(j, n, c) {
            v16 hat = v_mul(v_sub(e_get(x + j, n, 0.0f), mean), rstd);
            v16 weighted = v_mul(e_get(dy + j, n, 0.0f), e_get(gamma + j, n, 0.0f));
            v16 d = v_mul(rstd, v_sub(v_sub(weighted, mean_sum), v_mul(hat, mean_dot)));
            if (a->add_dx)
                d = v_add(e_get(dx + j, n, 0.0f), d);
            e_put(dx + j, n, d);
        }
    }
}
