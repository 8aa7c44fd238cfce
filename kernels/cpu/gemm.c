/* Products cut into tiles: see gemm.h. */
#include "kernels/cpu/gemm.h"

#include "kernels/cpu/onednn.h"

#include <stdatomic.h>
#include <string.h>

enum { TILE_M = DPT_TILE_M, TILE_N = DPT_TILE_N };

/* One product in progress. A thread's part of the workspace has four regions: the tile of c, the
 * operand that the item packs, a tile of b in dense rows, and the library's scratch memory. */
struct product {
    struct dpt_cpu_stream *s;
    const struct dpt_gemm *g;
    int64_t m_tiles, n_tiles;
    bool own;          /* our kernels multiply (panel_product), not the library */
    enum dpt_dtype in; /* the operands' type: g->dtype, or f32 if they are widened */
    bool a_dense;      /* a is multiplied in place */
    /* Each item packs this operand for itself. At most one of the two is set. */
    bool a_own, b_own;
    size_t b_stride; /* bytes from one packed tile of b to the next */
    /* The library's primitives: [0] for whole tiles, [1] for the last tile along m or n. */
    struct dpt_primitive *matmul[2][2], *reorder[2];
    char *a_packed;       /* (m, k) dense, if packed ahead */
    const char *b_packed; /* all tiles, if packed ahead */
    char *b_to;           /* where b is packed to */
    size_t own_at, stage_at, scratch_at;
    struct dpt_workspace w;
    _Atomic int failed; /* the library's first status that is not 0 */
};

static int64_t tile_rows(const struct product *p, int64_t i)
{
    return dpt_min64(TILE_M, p->g->m - i * TILE_M);
}

static int64_t tile_cols(const struct product *p, int64_t j)
{
    return dpt_min64(TILE_N, p->g->n - j * TILE_N);
}

void dpt_gemm_note(_Atomic int *failed, int status)
{
    int none = 0;
    if (status != 0)
        atomic_compare_exchange_strong(failed, &none, status);
}

void dpt_gemm_report(struct dpt_cpu_stream *s, int failed, const char *what)
{
    struct dpt_err err;
    if (failed != 0)
        dpt_stream_fail(&s->base, dpt_onednn_error(failed, what, &err), err.text);
}

struct dpt_primitive *dpt_gemm_primitive(struct dpt_cpu_stream *s,
                                         const struct dpt_primitive_shape *shape)
{
    struct dpt_err err;
    struct dpt_primitive *p = dpt_onednn_primitive(s->gemm, shape, &err);
    if (!p)
        dpt_stream_fail(&s->base, err.status, err.text);
    return p;
}

static char *thread_part(const struct product *p, int thread, size_t at)
{
    return (char *)dpt_workspace_of(&p->w, thread) + at;
}

static size_t in_bytes(const struct product *p, int64_t elements)
{
    return (size_t)elements * dpt_dtype_bytes(p->in);
}

static bool widens_operands(const struct product *p)
{
    return p->in != p->g->dtype;
}

/* Whether tiles of b are copied into dense rows before the library packs them. They are if they
 * must be widened. They also are if the stride between their columns is a multiple of
 * FEW_SETS_BYTES: then a strip of columns falls on few sets of the cache, and the library's packing
 * takes up to six times as long. */
static bool stages_b(const struct product *p)
{
    enum { FEW_SETS_BYTES = 2048 };
    const struct dpt_gemm *g = p->g;
    bool by_column = g->b_row == 1 && g->b_col != 1;
    return !p->own &&
           (widens_operands(p) || (by_column && in_bytes(p, g->b_col) % FEW_SETS_BYTES == 0));
}

/* A part of an operand. Element (i,j) is x[i*row + j*col]; row or col is 1. */
struct operand {
    int64_t rows, cols;
    const void *x;
    int64_t row, col;
};

/* to (rows, cols) dense = the operand, widened if the product reads f32. */
static void make_dense(const struct product *p, const struct operand *o, char *to)
{
    const enum dpt_dtype dtype = p->g->dtype;
    const struct dpt_cpu_kernels *kernels = p->s->kernels;
    bool transposed = o->row == 1 && o->col != 1;
    if (transposed && p->in == DPT_F32) {
        kernels->of[dtype]->transpose(o->cols, o->rows, o->x, o->col, (float *)(void *)to, o->cols);
        return;
    }
    if (transposed) {
        kernels->transpose16(o->cols, o->rows, o->x, o->col, (uint16_t *)(void *)to, o->cols);
        return;
    }
    for (int64_t i = 0; i < o->rows; i++) {
        const void *from = dpt_at(o->x, dtype, i * o->row);
        char *dense = to + in_bytes(p, i * o->cols);
        if (widens_operands(p))
            kernels->of[dtype]->widen(o->cols, from, (float *)(void *)dense);
        else
            memcpy(dense, from, in_bytes(p, o->cols));
    }
}

static void pack_b(struct product *p, int64_t j, char *to, int thread)
{
    const struct dpt_gemm *g = p->g;
    const void *from = dpt_at(g->b, g->dtype, j * TILE_N * g->b_col);
    if (p->own) {
        p->s->kernels->of[g->dtype]->panels(&(struct dpt_panels){.k = g->k,
                                                                 .cols = tile_cols(p, j),
                                                                 .b = from,
                                                                 .row = g->b_row,
                                                                 .col = g->b_col,
                                                                 .to = (float *)(void *)to});
        return;
    }
    if (stages_b(p)) {
        char *stage = thread_part(p, thread, p->stage_at);
        make_dense(p, &(struct operand){g->k, tile_cols(p, j), from, g->b_row, g->b_col}, stage);
        from = stage;
    }
    const void *const arguments[] = {from, to, thread_part(p, thread, p->scratch_at)};
    dpt_gemm_note(&p->failed,
                  dpt_onednn_run(p->s->gemm, p->reorder[j == p->n_tiles - 1], thread, arguments));
}

/* to (rows of tile i, k) dense = tile i of a. */
static void pack_a(const struct product *p, int64_t i, char *to)
{
    const struct dpt_gemm *g = p->g;
    if (g->rows)
        g->rows->gather(g->rows->ctx, i * TILE_M, tile_rows(p, i), p->in, to);
    else
        make_dense(p,
                   &(struct operand){tile_rows(p, i), g->k,
                                     dpt_at(g->a, g->dtype, i * TILE_M * g->a_row), g->a_row,
                                     g->a_col},
                   to);
}

static const char *a_ready(const struct product *p, int64_t i)
{
    return (p->a_dense ? (const char *)p->g->a : p->a_packed) + in_bytes(p, i * TILE_M * p->g->k);
}

static const char *b_ready(const struct product *p, int64_t j)
{
    return p->b_packed + (size_t)j * p->b_stride;
}

/* Multiplies tile i of a and tile j of b, both packed. Returns the product (rows of tile i, columns
 * of tile j), dense, at the beginning of the thread's part of the workspace. */
static const float *multiply_tile(struct product *p, int64_t i, int64_t j, const char *a,
                                  const char *b, int thread)
{
    float *c = (float *)(void *)thread_part(p, thread, 0);
    if (p->own) {
        p->s->kernels->panel_product(
            &(struct dpt_panel_product){.rows = tile_rows(p, i),
                                        .cols = tile_cols(p, j),
                                        .k = p->g->k,
                                        .a = (const float *)(const void *)a,
                                        .b = (const float *)(const void *)b,
                                        .c = c});
        return c;
    }
    const void *const arguments[] = {a, b, c, thread_part(p, thread, p->scratch_at)};
    const struct dpt_primitive *matmul = p->matmul[i == p->m_tiles - 1][j == p->n_tiles - 1];
    dpt_gemm_note(&p->failed, dpt_onednn_run(p->s->gemm, matmul, thread, arguments));
    return c;
}

/* Stores a tile row by row, because dpt_gemm_rows.place gives each row's place in c. */
static void store_rows(const struct product *p, int64_t i, const struct dpt_tile *tile)
{
    const struct dpt_gemm_store *out = &p->g->store;
    for (int64_t r = 0; r < tile->rows; r++) {
        const int64_t row = p->g->rows->place(p->g->rows->ctx, i * TILE_M + r);
        struct dpt_tile one = *tile;
        one.tile += r * tile->cols;
        one.rows = 1;
        one.c = dpt_at_out(tile->c, out->dtype, (row - i * TILE_M) * out->ldc);
        p->s->kernels->of[out->dtype]->tile_store(&one);
    }
}

static void multiply_and_store(struct product *p, int64_t i, int64_t j, const char *a,
                               const char *b, int thread)
{
    const struct dpt_gemm_store *out = &p->g->store;
    int64_t at = i * TILE_M * out->ldc + j * TILE_N;
    const struct dpt_tile tile = {.tile = multiply_tile(p, i, j, a, b, thread),
                                  .rows = tile_rows(p, i),
                                  .cols = tile_cols(p, j),
                                  .c = dpt_at_out(out->c, out->dtype, at),
                                  .ldc = out->ldc,
                                  .bias = dpt_at(out->bias, out->dtype, j * TILE_N),
                                  .gelu = dpt_at_out(out->gelu, out->dtype, at),
                                  .accumulate = out->accumulate,
                                  .stream = out->stream};
    if (p->g->rows && p->g->rows->place)
        store_rows(p, i, &tile);
    else
        p->s->kernels->of[out->dtype]->tile_store(&tile);
}

/* Items: first the tiles of b that are packed ahead, then the tiles of a. */
static void pack_item(void *ctx, int64_t item, int thread)
{
    struct product *p = ctx;
    int64_t b_items = p->b_to ? p->n_tiles : 0;
    if (item < b_items)
        pack_b(p, item, p->b_to + (size_t)item * p->b_stride, thread);
    else
        pack_a(p, item - b_items, p->a_packed + in_bytes(p, (item - b_items) * TILE_M * p->g->k));
}

static void multiply_item(void *ctx, int64_t item, int thread)
{
    struct product *p = ctx;
    char *own = thread_part(p, thread, p->own_at);
    if (p->b_own) {
        pack_b(p, item, own, thread);
        for (int64_t i = 0; i < p->m_tiles; i++)
            multiply_and_store(p, i, item, a_ready(p, i), own, thread);
    } else if (p->a_own) {
        pack_a(p, item, own);
        for (int64_t j = 0; j < p->n_tiles; j++)
            multiply_and_store(p, item, j, own, b_ready(p, j), thread);
    } else {
        int64_t i = item % p->m_tiles, j = item / p->m_tiles;
        multiply_and_store(p, i, j, a_ready(p, i), b_ready(p, j), thread);
    }
}

static bool product_reorders(struct product *p)
{
    dpt_gemm_thread_begin();
    for (int j = 0; j < 2; j++) {
        const int64_t cols = tile_cols(p, j ? p->n_tiles - 1 : 0);
        p->reorder[j] = dpt_gemm_primitive(
            p->s, &(struct dpt_primitive_shape){.operands = p->in,
                                                .n = cols,
                                                .k = p->g->k,
                                                .b_row = stages_b(p) ? cols : p->g->b_row,
                                                .b_col = stages_b(p) ? 1 : p->g->b_col});
        if (!p->reorder[j])
            return false;
    }
    return true;
}

/* Bytes of a packed tile of b. No tile is larger than the first. */
static size_t packed_tile_bytes(const struct product *p)
{
    if (!p->own)
        return dpt_onednn_b_bytes(p->reorder[0]);
    return (size_t)(dpt_ceil_div(tile_cols(p, 0), DPT_PANEL_COLUMNS) * DPT_PANEL_COLUMNS *
                    p->g->k) *
           sizeof(float);
}

/* Fills p except for its matmuls and workspace, which packing b does not need. False, with the
 * stream's error set, when the library fails. */
static bool product_init(struct product *p, struct dpt_cpu_stream *s, const struct dpt_gemm *g)
{
    *p = (struct product){.s = s,
                          .g = g,
                          .m_tiles = dpt_ceil_div(g->m, TILE_M),
                          .n_tiles = dpt_ceil_div(g->n, TILE_N),
                          .own = !dpt_onednn_multiplies(s->gemm),
                          .in = dpt_onednn_operands(s->gemm, g->dtype)};
    DPT_ASSERT((g->rows || g->a_row == 1 || g->a_col == 1) && (g->b_row == 1 || g->b_col == 1));
    p->a_dense = !g->rows && g->a_row == g->k && g->a_col == 1 && !widens_operands(p);
    p->b_own = !g->b_packed && !g->rows && p->n_tiles >= DPT_PACK_AHEAD_TILES;
    p->a_own = g->rows || (!p->b_own && !p->a_dense && p->m_tiles >= DPT_PACK_AHEAD_TILES);
    if (!p->own && !product_reorders(p))
        return false;
    p->b_stride = dpt_round64(packed_tile_bytes(p));
    return true;
}

static bool product_matmuls(struct product *p)
{
    for (int i = 0; i < 2 && !p->own; i++)
        for (int j = 0; j < 2; j++) {
            p->matmul[i][j] = dpt_gemm_primitive(
                p->s, &(struct dpt_primitive_shape){.operands = p->in,
                                                    .m = tile_rows(p, i ? p->m_tiles - 1 : 0),
                                                    .n = tile_cols(p, j ? p->n_tiles - 1 : 0),
                                                    .k = p->g->k});
            if (!p->matmul[i][j])
                return false;
        }
    return true;
}

static size_t scratch_bytes(const struct product *p)
{
    size_t most = 0;
    for (int j = 0; j < 2; j++)
        for (int i = 0; i < 3; i++) {
            const struct dpt_primitive *of = i < 2 ? p->matmul[i][j] : p->reorder[j];
            size_t bytes = of ? dpt_onednn_scratch_bytes(of) : 0;
            most = bytes > most ? bytes : most;
        }
    return most;
}

/* Lays out the workspace. False when the product ends here: the stream prepares, or an error
 * occurred. */
static bool product_workspace(struct product *p)
{
    const struct dpt_gemm *g = p->g;
    bool b_ahead = !p->b_own && !g->b_packed && !p->b_to, a_ahead = !p->a_own && !p->a_dense;
    size_t b_all = b_ahead ? (size_t)p->n_tiles * p->b_stride : 0;
    size_t a_all = a_ahead ? in_bytes(p, g->m * g->k) : 0;
    size_t own = p->b_own ? p->b_stride : 0;
    if (p->a_own)
        own = in_bytes(p, TILE_M * g->k);
    size_t stage = stages_b(p) ? in_bytes(p, TILE_N * g->k) : 0;
    p->own_at = TILE_M * TILE_N * sizeof(float);
    p->stage_at = p->own_at + dpt_round64(own);
    p->scratch_at = p->stage_at + dpt_round64(stage);
    if (!dpt_cpu_workspace(p->s, DPT_WORKSPACE_GEMM, b_all + a_all,
                           p->scratch_at + scratch_bytes(p), &p->w))
        return false;
    if (b_ahead)
        p->b_to = p->w.shared;
    p->b_packed = b_ahead ? p->w.shared : g->b_packed;
    p->a_packed = a_ahead ? p->w.shared + b_all : NULL;
    return true;
}

void dpt_cpu_gemm(struct dpt_cpu_stream *s, const struct dpt_gemm *g)
{
    struct product p;
    if (s->base.error.status != DPT_OK || g->m == 0 || g->n == 0 || !product_init(&p, s, g) ||
        !product_matmuls(&p) || !product_workspace(&p))
        return;
    dpt_pool_run(s->pool, (p.b_to ? p.n_tiles : 0) + (p.a_packed ? p.m_tiles : 0), pack_item, &p);
    int64_t items = p.m_tiles * p.n_tiles;
    if (p.b_own)
        items = p.n_tiles;
    else if (p.a_own)
        items = p.m_tiles;
    dpt_pool_run(s->pool, items, multiply_item, &p);
    dpt_gemm_report(s, atomic_load(&p.failed), "a product");
}

size_t dpt_cpu_gemm_packed_bytes(struct dpt_cpu_stream *s, const struct dpt_gemm *g)
{
    struct product p;
    return product_init(&p, s, g) ? (size_t)p.n_tiles * p.b_stride : 0;
}

void dpt_cpu_gemm_pack(struct dpt_cpu_stream *s, const struct dpt_gemm *g, void *ret_packed)
{
    struct product p;
    if (s->base.error.status != DPT_OK || !product_init(&p, s, g))
        return;
    p.b_to = ret_packed;
    p.b_own = p.a_own = false;
    if (!product_workspace(&p))
        return;
    dpt_pool_run(s->pool, p.n_tiles, pack_item, &p);
    dpt_gemm_report(s, atomic_load(&p.failed), "a product");
}
