/* Kernels around the products: a tile's way into the result, transposition, sums of columns,
 * softmax of the head. */
#include "kernels/cpu/simd/simd.h"

/* Weight gradients are not read again before the caches have seen much else. */
static void stream_tile(const struct dpt_tile *t)
{
    for (int64_t r = 0; r < t->rows; r++)
        for (int64_t j = 0; j < t->cols; j += LANES)
            v_stream(t->c + r * t->ldc + j, v_load(t->tile + r * t->cols + j));
    v_stream_end();
}

void SIMD(tile_store)(const struct dpt_tile *t)
{
    bool plain = !t->bias && !t->accumulate && !t->gelu;
    if (t->stream && plain && t->cols % LANES == 0 && t->ldc % LANES == 0 &&
        (uintptr_t)t->c % (LANES * sizeof(float)) == 0) {
        stream_tile(t);
        return;
    }
    for (int64_t r = 0; r < t->rows; r++) {
        const float *from = t->tile + r * t->cols;
        float *to = t->c + r * t->ldc;
        FOR_LANES(j, n, t->cols)
        {
            v16 x = v_get(from + j, n, 0.0f);
            if (t->bias)
                x = v_add(x, v_get(t->bias + j, n, 0.0f));
            if (t->accumulate)
                x = v_add(v_get(to + j, n, 0.0f), x);
            v_put(to + j, n, x);
            if (t->gelu)
                v_put(t->gelu + r * t->ldc + j, n, v_gelu(x));
        }
    }
}

/* 4 rows of 16 columns. */
INLINE void transpose_block(const float *src, int64_t ld, float *dst, int64_t ld_dst)
{
    v16 r[4];
    for (int i = 0; i < 4; i++)
        r[i] = v_load(src + i * ld);
    v_transpose4(r);
    for (int j = 0; j < 4; j++) {
        v_store_quarter(dst + j * ld_dst, r[j], 0);
        v_store_quarter(dst + (4 + j) * ld_dst, r[j], 1);
        v_store_quarter(dst + (8 + j) * ld_dst, r[j], 2);
        v_store_quarter(dst + (12 + j) * ld_dst, r[j], 3);
    }
}

/* By strips of 16 columns: each line of src is read whole, and the 16 lines of dst being written
 * stay in the cache. */
void SIMD(transpose)(int64_t rows, int64_t cols, const float *src, int64_t ld, float *dst,
                     int64_t ld_dst)
{
    int64_t whole_rows = rows / 4 * 4, whole_cols = cols / LANES * LANES;
    for (int64_t j = 0; j < whole_cols; j += LANES)
        for (int64_t i = 0; i < whole_rows; i += 4)
            transpose_block(src + i * ld + j, ld, dst + j * ld_dst + i, ld_dst);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = i < whole_rows ? whole_cols : 0; j < cols; j++)
            dst[j * ld_dst + i] = src[i * ld + j];
}

void SIMD(column_sums)(int64_t rows, int64_t cols, const float *x, int64_t ld, bool accumulate,
                       float *ret)
{
    FOR_LANES(j, n, cols)
    {
        v16 sum = v_set(0.0f);
        for (int64_t r = 0; r < rows; r++)
            sum = v_add(sum, v_get(x + r * ld + j, n, 0.0f));
        if (accumulate)
            sum = v_add(v_get(ret + j, n, 0.0f), sum);
        v_put(ret + j, n, sum);
    }
}

void SIMD(softmax_part)(int64_t n, const float *x, float *max, float *sum)
{
    v16 most = v_set(*max);
    FOR_LANES(j, count, n)
    {
        most = v_max(most, v_get(x + j, count, *max));
    }
    float new_max = v_greatest(most);
    v16 shift = v_set(new_max), total = v_set(0.0f);
    FOR_LANES(j, count, n)
    {
        total = v_add(total, v_exp(v_sub(v_get(x + j, count, -INFINITY), shift)));
    }
    float factor[LANES];
    v_store(factor, v_exp(v_set(*max - new_max)));
    *sum = fmaf(*sum, factor[0], v_sum(total));
    *max = new_max;
}

void SIMD(softmax_grad)(int64_t n, float *x, float lse, float scale)
{
    v16 shift = v_set(lse), factor = v_set(scale);
    FOR_LANES(j, count, n)
    {
        v16 p = v_exp(v_sub(v_get(x + j, count, 0.0f), shift));
        v_put(x + j, count, v_mul(p, factor));
    }
}
