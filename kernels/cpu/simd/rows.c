/* Kernels around the products: panels of b, the store of a tile, transposition, sums of columns,
 * the gradient of the head's softmax. */
#include "kernels/cpu/simd/elem.h"

#if defined(DPT_ELEM_F32)
/* Stores a tile past the caches if it may: a weight gradient is not read again before the caches
 * have been filled with other data. False: the tile is not of this kind, and nothing was stored. */
static bool stream_tile(const struct dpt_tile *t)
{
    bool plain = !t->bias && !t->accumulate && !t->gelu;
    if (!t->stream || !plain || t->cols % LANES != 0 || t->ldc % LANES != 0 ||
        (uintptr_t)t->c % (LANES * sizeof(float)) != 0)
        return false;
    for (int64_t r = 0; r < t->rows; r++)
        for (int64_t j = 0; j < t->cols; j += LANES)
            v_stream((float *)t->c + r * t->ldc + j, v_load(t->tile + r * t->cols + j));
    v_stream_end();
    return true;
}
#else
static bool stream_tile(const struct dpt_tile *t)
{
    (void)t;
    return false;
}
#endif

void ELEM(tile_store)(const struct dpt_tile *t)
{
    const elem *bias = t->bias;
    if (stream_tile(t))
        return;
    for (int64_t r = 0; r < t->rows; r++) {
        const float *from = t->tile + r * t->cols;
        elem *to = (elem *)t->c + r * t->ldc;
        FOR_LANES(j, n, t->cols) {
            v16 x = v_get(from + j, n, 0.0f);
            if (bias)
                x = v_add(x, e_get(bias + j, n, 0.0f));
            if (t->accumulate)
                x = v_add(e_get(to + j, n, 0.0f), x);
            e_put(to + j, n, x);
            if (t->gelu)
                e_put((elem *)t->gelu + r * t->ldc + j, n, v_gelu(e_stored(x)));
        }
    }
}

/* Transposes 4 rows of 16 columns. */
INLINE void transpose_block(const elem *src, int64_t ld, float *dst, int64_t ld_dst)
{
    v16 r[4];
    for (int i = 0; i < 4; i++)
        r[i] = e_load(src + i * ld);
    v_transpose4(r);
    for (int j = 0; j < 4; j++) {
        v_store_quarter(dst + j * ld_dst, r[j], 0);
        v_store_quarter(dst + (4 + j) * ld_dst, r[j], 1);
        v_store_quarter(dst + (8 + j) * ld_dst, r[j], 2);
        v_store_quarter(dst + (12 + j) * ld_dst, r[j], 3);
    }
}

/* Transposes strips of 16 columns. Each cache line of src is read whole, and the 16 lines of dst
 * that are written stay in the cache. */
void ELEM(transpose)(int64_t rows, int64_t cols, const void *src_elems, int64_t ld, float *dst,
                     int64_t ld_dst)
{
    const elem *src = src_elems;
    int64_t whole_rows = rows / 4 * 4, whole_cols = cols / LANES * LANES;
    for (int64_t j = 0; j < whole_cols; j += LANES)
        for (int64_t i = 0; i < whole_rows; i += 4)
            transpose_block(src + i * ld + j, ld, dst + j * ld_dst + i, ld_dst);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = i < whole_rows ? whole_cols : 0; j < cols; j++)
            v_store_part(dst + j * ld_dst + i, 1, e_get(src + i * ld + j, 1, 0.0f));
}

/* b by rows: each row is read whole, and one vector goes to each panel. b by columns: the columns
 * of one panel are transposed at a time. */
void ELEM(panels)(const struct dpt_panels *a)
{
    const elem *b = a->b;
    for (int64_t i = 0; a->col == 1 && i < a->k; i++)
        FOR_LANES(j, n, a->cols)
            v_store(a->to + j * a->k + i * LANES, e_get(b + i * a->row + j, n, 0.0f));
    if (a->col == 1)
        return;
    FOR_LANES(j, n, a->cols) {
        if (n < LANES)
            SIMD(fill)(a->k * LANES, 0.0f, a->to + j * a->k);
        ELEM(transpose)(n, a->k, b + j * a->col, a->col, a->to + j * a->k, LANES);
    }
}

void ELEM(column_sums)(int64_t rows, int64_t cols, const void *x_elems, int64_t ld, bool accumulate,
                       float *ret)
{
    const elem *x = x_elems;
    FOR_LANES(j, n, cols) {
        v16 sum = v_set(0.0f);
        for (int64_t r = 0; r < rows; r++)
            sum = v_add(sum, e_get(x + r * ld + j, n, 0.0f));
        if (accumulate)
            sum = v_add(v_get(ret + j, n, 0.0f), sum);
        v_put(ret + j, n, sum);
    }
}

void ELEM(softmax_grad)(int64_t n, const float *x, float lse, float scale, void *ret_elems)
{
    elem *ret = ret_elems;
    v16 shift = v_set(lse), factor = v_set(scale);
    FOR_LANES(j, count, n) {
        v16 p = v_exp(v_sub(v_get(x + j, count, 0.0f), shift));
        e_put(ret + j, count, v_mul(p, factor));
    }
}
