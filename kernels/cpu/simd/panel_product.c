/* The product of one tile with panels of b, in the order of Goto & van de Geijn (Anatomy of
 * High-Performance Matrix Multiplication, 2008). DEPTH rows of a panel stay in the first-level
 * cache while all rows of a pass over them. The same DEPTH columns of a stay in the second-level
 * cache while all panels pass. */
#include "kernels/cpu/simd/sanitizer.h"
#include "kernels/cpu/simd/simd.h"

/* HEIGHT sums of 16 lanes, a row of b and an element of a fill 16 registers of 8 lanes. DEPTH rows
 * of a panel take 16 KiB. HEIGHT does not change bits; DEPTH does, and is part of panel_product's
 * contract. */
enum { HEIGHT = 6, DEPTH = DPT_PANEL_DEPTH };

/* A part of a panel: rows at … at+depth-1. It contributes to `columns` columns of the result from
 * `column` on. b_next is the part that is multiplied next. */
struct part {
    const struct dpt_panel_product *p;
    int64_t at, depth, column, columns;
    const float *b, *b_next;
};

/* `rows` is a constant at each call, so the compiler unrolls all loops except the loop over k. */
INLINE void panel_block(const struct part *part, int64_t i, const int rows)
{
    v16 sum[HEIGHT];
    const int64_t lda = part->p->k, ldc = part->p->cols;
    const float *a = part->p->a + i * lda + part->at, *b = part->b;
    float *c = part->p->c + i * ldc + part->column;
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
        sum[r] = v_set(0.0f);
#pragma GCC unroll 4
    for (int64_t k = 0; k < part->depth; k++) {
        const v16 from = v_load(b + k * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++)
            sum[r] = v_fma(v_set(a[r * lda + k]), from, sum[r]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
        if (part->at > 0)
            sum[r] = v_add(v_get(c + r * ldc, part->columns, 0.0f), sum[r]);
        v_put(c + r * ldc, part->columns, sum[r]);
    }
}

static void panel_block_of(const struct part *part, int64_t i, int64_t rows)
{
    switch (rows) {
    case 1:
        panel_block(part, i, 1);
        break;
    case 2:
        panel_block(part, i, 2);
        break;
    case 3:
        panel_block(part, i, 3);
        break;
    case 4:
        panel_block(part, i, 4);
        break;
    case 5:
        panel_block(part, i, 5);
        break;
    default:
        panel_block(part, i, HEIGHT);
    }
}

/* Prefetches the next part, because a tile's b is larger than the second-level cache. Each row of
 * the result prefetches two rows of the part, so a tile of DEPTH / 2 rows prefetches all of it. */
static void fetch_ahead(const struct part *part, int64_t i, int64_t rows)
{
    for (int64_t k = 2 * i; part->b_next && k < 2 * (i + rows) && k < part->depth; k++)
        __builtin_prefetch(part->b_next + k * LANES);
}

static void multiply_part(const struct part *part)
{
    /* All blocks have nearly the same height. In a low block the additions would wait for each
     * other. */
    int64_t blocks = (part->p->rows + HEIGHT - 1) / HEIGHT;
    for (int64_t i = 0, rows; i < part->p->rows; i += rows, blocks--) {
        rows = (part->p->rows - i + blocks - 1) / blocks;
        fetch_ahead(part, i, rows);
        panel_block_of(part, i, rows);
    }
}

static void tell_operands(const struct dpt_panel_product *p)
{
    const int64_t panels = (p->cols + LANES - 1) / LANES;
    tell_range(p->a, p->rows * p->k, false);
    tell_range(p->b, panels * LANES * p->k, false);
    tell_range(p->c, p->rows * p->cols, true);
}

void SIMD(panel_product)(const struct dpt_panel_product *p)
{
    if (DPT_TELLS)
        tell_operands(p);
    for (int64_t at = 0; at < p->k; at += DEPTH) {
        struct part part = {.p = p, .at = at, .depth = p->k - at < DEPTH ? p->k - at : DEPTH};
        FOR_LANES(j, n, p->cols) {
            part.column = j;
            part.columns = n;
            part.b = p->b + j * p->k + at * LANES;
            part.b_next = j + LANES < p->cols ? part.b + p->k * LANES : NULL;
            if (!part.b_next && at + DEPTH < p->k)
                part.b_next = p->b + (at + DEPTH) * LANES;
            multiply_part(&part);
        }
    }
}
