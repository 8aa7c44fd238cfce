/* Batch norm (Ioffe & Szegedy 2015) over rows of channels, and max pooling. */
#include "kernels/cpu/simd/elem.h"

/* Sums the squared distances to the mean of these rows, so that a mean far from zero costs no
 * digits. */
void ELEM(batchnorm_sums)(const struct dpt_batchnorm_forward *a, int64_t first, int64_t end,
                          float *sums, float *squares)
{
    const elem *x = a->x;
    const float inv_rows = 1.0f / (float)(end - first);
    FOR_LANES(j, n, a->c) {
        v16 sum = v_set(0.0f), square = v_set(0.0f);
        for (int64_t r = first; r < end; r++)
            sum = v_add(sum, e_get(x + r * a->c + j, n, 0.0f));
        const v16 mean = v_mul(sum, v_set(inv_rows));
        for (int64_t r = first; r < end; r++) {
            const v16 d = v_sub(e_get(x + r * a->c + j, n, 0.0f), mean);
            square = v_fma(d, d, square);
        }
        v_put(sums + j, n, sum);
        v_put(squares + j, n, square);
    }
}

void ELEM(batchnorm)(const struct dpt_batchnorm_forward *a, int64_t first, int64_t end,
                     const float *mean, const float *rstd)
{
    const elem *gamma = a->gamma, *beta = a->beta;
    const v16 zero = v_set(0.0f);
    for (int64_t r = first; r < end; r++) {
        const elem *x = (const elem *)a->x + r * a->c;
        const elem *residual = a->residual ? (const elem *)a->residual + r * a->c : NULL;
        elem *y = (elem *)a->y + r * a->c;
        FOR_LANES(j, n, a->c) {
            const v16 centred = v_sub(e_get(x + j, n, 0.0f), v_get(mean + j, n, 0.0f));
            const v16 hat = v_mul(centred, v_get(rstd + j, n, 0.0f));
            v16 v = v_fma(hat, e_get(gamma + j, n, 0.0f), e_get(beta + j, n, 0.0f));
            if (residual)
                v = v_add(v, e_get(residual + j, n, 0.0f));
            if (a->relu)
                v = v_max(zero, v); /* a NaN stays a NaN */
            e_put(y + j, n, v);
        }
    }
}

/* dy, or zero where the relu's output y is not above zero. */
INLINE v16 past_relu(const struct dpt_batchnorm_backward *a, int64_t at, int64_t n)
{
    const v16 dy = e_get((const elem *)a->dy + at, n, 0.0f);
    if (!a->y)
        return dy;
    const v16 y = e_get((const elem *)a->y + at, n, 0.0f);
    return v_select(v_less(v_set(0.0f), y), dy, v_set(0.0f));
}

void ELEM(batchnorm_grad_sums)(const struct dpt_batchnorm_backward *a, int64_t first, int64_t end,
                               float *dgamma, float *dbeta)
{
    FOR_LANES(j, n, a->c) {
        const v16 mean = v_get(a->mean + j, n, 0.0f), rstd = v_get(a->rstd + j, n, 0.0f);
        v16 dot = v_set(0.0f), sum = v_set(0.0f);
        for (int64_t r = first; r < end; r++) {
            const int64_t at = r * a->c + j;
            const v16 hat = v_mul(v_sub(e_get((const elem *)a->x + at, n, 0.0f), mean), rstd);
            const v16 g = past_relu(a, at, n);
            dot = v_fma(g, hat, dot);
            sum = v_add(sum, g);
        }
        v_put(dgamma + j, n, dot);
        v_put(dbeta + j, n, sum);
    }
}

void ELEM(batchnorm_grad)(const struct dpt_batchnorm_backward *a, int64_t first, int64_t end,
                          const float *mean_dgamma, const float *mean_dbeta)
{
    for (int64_t r = first; r < end; r++)
        FOR_LANES(j, n, a->c) {
            const int64_t at = r * a->c + j;
            const v16 mean = v_get(a->mean + j, n, 0.0f), rstd = v_get(a->rstd + j, n, 0.0f);
            const v16 hat = v_mul(v_sub(e_get((const elem *)a->x + at, n, 0.0f), mean), rstd);
            const v16 g = past_relu(a, at, n);
            const v16 flat = v_sub(g, v_get(mean_dbeta + j, n, 0.0f));
            const v16 d = v_sub(flat, v_mul(hat, v_get(mean_dgamma + j, n, 0.0f)));
            const v16 factor = v_mul(rstd, e_get((const elem *)a->gamma + j, n, 0.0f));
            if (a->dresidual)
                e_put((elem *)a->dresidual + at, n, g);
            e_put((elem *)a->dx + at, n, v_mul(factor, d));
        }
}

/* Stores the indices of pixels as bytes. The kernel computes with them as floats. */
INLINE void put_numbers(uint8_t *to, int64_t n, v16 numbers)
{
    float f[LANES];
    v_store(f, numbers);
    for (int64_t i = 0; i < n; i++)
        to[i] = (uint8_t)f[i];
}

INLINE v16 get_numbers(const uint8_t *from, int64_t n)
{
    float f[LANES] = {0};
    for (int64_t i = 0; i < n; i++)
        f[i] = (float)from[i];
    return v_load(f);
}

void ELEM(maxpool)(const struct dpt_maxpool_pixel *a)
{
    FOR_LANES(j, n, a->c) {
        v16 most = e_get((const elem *)a->x[0] + j, n, 0.0f), which = v_set((float)a->number[0]);
        for (int i = 1; i < a->count; i++) {
            const v16 x = e_get((const elem *)a->x[i] + j, n, 0.0f);
            const v16 number = v_set((float)a->number[i]);
            const m16 nan = v_is_nan(x), more = v_less(most, x);
            most = v_select(nan, x, v_select(more, x, most));
            which = v_select(nan, number, v_select(more, number, which));
        }
        e_put((elem *)a->y + j, n, most);
        put_numbers(a->taken + j, n, which);
    }
}

void ELEM(maxpool_grad)(const struct dpt_maxpool_grad_pixel *a)
{
    const v16 zero = v_set(0.0f);
    FOR_LANES(j, n, a->c) {
        v16 sum = zero;
        for (int i = 0; i < a->count; i++) {
            const v16 which = get_numbers(a->taken[i] + j, n), number = v_set((float)a->number[i]);
            const m16 other = v_less(which, number), another = v_less(number, which);
            const v16 dy = e_get((const elem *)a->dy[i] + j, n, 0.0f);
            sum = v_add(sum, v_select(other, zero, v_select(another, zero, dy)));
        }
        e_put((elem *)a->dx + j, n, sum);
    }
}
