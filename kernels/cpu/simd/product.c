/* A small matrix product for the tiles of attention. A block of rows by up to four vectors of
 * columns is summed in registers. */
#include "kernels/cpu/simd/sanitizer.h"
#include "kernels/cpu/simd/simd.h"

/* Block sizes that fill the register file: 32 vectors of 16 lanes, or 16 of 8. They do not change
 * bits. */
#if defined(DPT_ISA_AVX512)
enum { ROWS = 6, VECTORS = 4 };
#elif defined(DPT_ISA_AVX2)
enum { ROWS = 3, VECTORS = 2 };
#else
enum { ROWS = 1, VECTORS = 1 };
#endif

/* `rows` and `vectors` are constants at each call, so the compiler unrolls all loops except the
 * loop over k. */
INLINE void product_block(const struct simd_product *p, bool accumulate, int64_t i, int64_t j,
                          const int rows, const int vectors)
{
    v16 sum[ROWS][VECTORS];
    const float *a = p->a + i * p->a_row, *b = p->b + j;
    float *c = p->c + i * p->ldc + j;
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++)
            sum[r][v] = accumulate ? v_load(c + r * p->ldc + v * LANES) : v_set(0.0f);
    for (int64_t k = 0; k < p->k; k++) {
        v16 from[VECTORS];
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++)
            from[v] = v_load(b + k * p->ldb + v * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            v16 x = v_set(a[r * p->a_row + k * p->a_col]);
#pragma GCC unroll 8
            for (int v = 0; v < vectors; v++)
                sum[r][v] = v_fma(x, from[v], sum[r][v]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++)
            v_store(c + r * p->ldc + v * LANES, sum[r][v]);
}

INLINE void product_columns(const struct simd_product *p, bool accumulate, int64_t j,
                            const int vectors)
{
    int64_t i = 0;
    for (; i + ROWS <= p->rows; i += ROWS)
        product_block(p, accumulate, i, j, ROWS, vectors);
    for (; i < p->rows; i++)
        product_block(p, accumulate, i, j, 1, vectors);
}

static void tell_operands(const struct simd_product *p, bool accumulate)
{
    const bool by_rows = p->a_col == 1;
    const int64_t lines = by_rows ? p->rows : p->k, ld = by_rows ? p->a_row : p->a_col;
    DPT_ASSERT(by_rows || p->a_row == 1);
    for (int64_t i = 0; i < lines; i++)
        tell_range(p->a + i * ld, by_rows ? p->k : p->rows, false);
    for (int64_t i = 0; i < p->k; i++)
        tell_range(p->b + i * p->ldb, p->cols, false);
    for (int64_t i = 0; i < p->rows; i++) {
        if (accumulate)
            tell_range(p->c + i * p->ldc, p->cols, false);
        tell_range(p->c + i * p->ldc, p->cols, true);
    }
}

void SIMD(product)(const struct simd_product *p, bool accumulate)
{
    if (DPT_TELLS)
        tell_operands(p, accumulate);
    int64_t j = 0;
    for (; j + VECTORS * LANES <= p->cols; j += VECTORS * LANES)
        product_columns(p, accumulate, j, VECTORS);
    for (; j < p->cols; j += LANES)
        product_columns(p, accumulate, j, 1);
}
