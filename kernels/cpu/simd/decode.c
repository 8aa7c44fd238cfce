/* Kernels for decoding one row at a time: a row times a matrix, the dot products of a row with the
 * rows of a matrix, a softmax. The matrix is read once, without packing or copying. */
#include "kernels/cpu/simd/simd.h"

enum { STRIP = 4 }; /* vectors of columns summed at the same time */

/* Computes `n` vectors of columns from column `at` on. The last vector has `count` lanes. */
INLINE void row_times_strip(const struct dpt_row_times *a, int64_t at, int n, int64_t count)
{
    v16 sum[STRIP];
    for (int s = 0; s < n; s++) {
        int64_t lanes = s + 1 < n ? LANES : count;
        sum[s] = a->bias ? v_get(a->bias + at + s * LANES, lanes, 0.0f) : v_set(0.0f);
    }
    for (int64_t i = 0; i < a->k; i++) {
        const float *w = a->w + i * a->ld + at;
        v16 x = v_set(a->x[i]);
        for (int s = 0; s < n; s++)
            sum[s] = v_fma(x, v_get(w + s * LANES, s + 1 < n ? LANES : count, 0.0f), sum[s]);
    }
    for (int s = 0; s < n; s++)
        v_put(a->y + at + s * LANES, s + 1 < n ? LANES : count, sum[s]);
}

void SIMD(row_times)(const struct dpt_row_times *a)
{
    int64_t at = 0;
    for (; at + STRIP * LANES <= a->cols; at += STRIP * LANES)
        row_times_strip(a, at, STRIP, LANES);
    for (; at < a->cols; at += LANES)
        row_times_strip(a, at, 1, a->cols - at < LANES ? a->cols - at : LANES);
}

void SIMD(dots)(const struct dpt_row_dots *a)
{
    const int64_t n = a->n;
    const float *x = a->x;
    for (int64_t r = 0; r < a->rows; r++) {
        v16 sum[STRIP];
        const float *row = a->w + r * a->ld;
        for (int s = 0; s < STRIP; s++)
            sum[s] = v_set(0.0f);
        int s = 0;
        FOR_LANES(j, count, n) {
            sum[s] = v_fma(v_get(x + j, count, 0.0f), v_get(row + j, count, 0.0f), sum[s]);
            s = (s + 1) % STRIP;
        }
        a->y[r] = a->scale * v_sum(v_add(v_add(sum[0], sum[1]), v_add(sum[2], sum[3])));
    }
}

void SIMD(softmax)(int64_t n, float *x)
{
    v16 most = v_set(-3.0e38f), total = v_set(0.0f);
    FOR_LANES(j, count, n)
        most = v_max(most, v_get(x + j, count, -3.0e38f));
    v16 shift = v_set(v_greatest(most));
    FOR_LANES(j, count, n) {
        v16 p = v_exp(v_sub(v_get(x + j, count, -3.0e38f), shift));
        total = v_add(total, p);
        v_put(x + j, count, p);
    }
    v16 factor = v_set(1.0f / v_sum(total));
    FOR_LANES(j, count, n)
        v_put(x + j, count, v_mul(factor, v_get(x + j, count, 0.0f)));
}
