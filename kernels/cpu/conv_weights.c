/* The gradient of a convolution's weight: dw (out, width) = dy^T (out, pixels) times windows of x
 * (pixels, width). Afterwards dw is copied into the layout of the weight, (out, in, kernel,
 * kernel).
 *
 * The pixels are cut into chunks of CHUNK, and the chunks into groups. Shapes alone decide the
 * cuts. An item of work is one group and one tile of columns: it gathers the windows chunk by chunk
 * and adds the chunks' products in order. Then the groups' sums are added in order. */
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/windows.h"

#include <stdatomic.h>

enum { CHUNK = DPT_CONV_PIXELS, TILE_M = DPT_TILE_M, TILE_N = DPT_TILE_N };

struct gradient {
    struct dpt_cpu_stream *s;
    const struct dpt_conv_backward *a;
    struct dpt_cpu_windows windows; /* of x */
    /* The number of windows, which is the length of each sum; the elements of a window. */
    int64_t pixels, width;
    int64_t chunks, per_group, groups, m_tiles, n_tiles;
    bool own;          /* our kernels multiply, not the library (gemm.h) */
    bool whole;        /* a window is one pixel: read in place */
    enum dpt_dtype in; /* the type of the operands */
    /* The library's primitives: [0] for whole tiles and chunks, [1] for the last ones. */
    struct dpt_primitive *matmul[2][2][2], *reorder[2][2];
    char *dy;    /* dy transposed, chunk by chunk: (out, pixels of the chunk) */
    float *sums; /* (groups, out, width) */
    size_t packed_at, stage_at, scratch_at;
    struct dpt_workspace w;
    _Atomic int failed; /* the library's first status that is not 0 */
};

static int64_t chunk_pixels(const struct gradient *g, int64_t chunk)
{
    return dpt_min64(CHUNK, g->pixels - chunk * CHUNK);
}

static int64_t tile_rows(const struct gradient *g, int64_t i)
{
    return dpt_min64(TILE_M, g->a->out - i * TILE_M);
}

static int64_t tile_cols(const struct gradient *g, int64_t j)
{
    return dpt_min64(TILE_N, g->width - j * TILE_N);
}

/* --- items --- */

/* Item: transposes a chunk of dy. */
static void turn_item(void *ctx, int64_t chunk, int thread)
{
    const struct gradient *g = ctx;
    const int64_t out = g->a->out, pixels = chunk_pixels(g, chunk);
    const void *from = dpt_at(g->a->dy, g->a->dtype, chunk * CHUNK * out);
    void *to = dpt_at_out(g->dy, g->in, chunk * CHUNK * out);
    (void)thread;
    if (g->in == DPT_F32)
        g->s->kernels->of[g->a->dtype]->transpose(pixels, out, from, out, to, pixels);
    else
        g->s->kernels->transpose16(pixels, out, from, out, to, pixels);
}

/* Packs tile j of a chunk's windows into the form that the product reads. */
static const char *pack_windows(struct gradient *g, int64_t chunk, int64_t j, char *mine,
                                int thread)
{
    const int64_t first = chunk * CHUNK, pixels = chunk_pixels(g, chunk), cols = tile_cols(g, j);
    char *packed = mine + g->packed_at;
    const void *from = dpt_at(g->a->x, g->a->dtype, first * g->width + j * TILE_N);
    enum dpt_dtype dtype = g->a->dtype;
    int64_t row = g->width;
    if (!g->whole) {
        const struct dpt_windows_part part = {first, pixels, j * TILE_N, cols};
        dpt_cpu_windows_gather(&g->windows, &part, g->in, mine + g->stage_at);
        from = mine + g->stage_at;
        dtype = g->in;
        row = cols;
    }
    if (g->own) {
        g->s->kernels->of[dtype]->panels(&(struct dpt_panels){.k = pixels,
                                                              .cols = cols,
                                                              .b = from,
                                                              .row = row,
                                                              .col = 1,
                                                              .to = (float *)(void *)packed});
        return packed;
    }
    const void *const arguments[] = {from, packed, mine + g->scratch_at};
    const struct dpt_primitive *reorder = g->reorder[j == g->n_tiles - 1][chunk == g->chunks - 1];
    dpt_gemm_note(&g->failed, dpt_onednn_run(g->s->gemm, reorder, thread, arguments));
    return packed;
}

static void multiply_tile(struct gradient *g, const int64_t at[3], const char *b, char *mine,
                          int thread)
{
    const int64_t i = at[0], j = at[1], chunk = at[2], pixels = chunk_pixels(g, chunk);
    const char *dy = dpt_at(g->dy, g->in, chunk * CHUNK * g->a->out + i * TILE_M * pixels);
    float *c = (float *)(void *)mine;
    if (g->own) {
        g->s->kernels->panel_product(
            &(struct dpt_panel_product){.rows = tile_rows(g, i),
                                        .cols = tile_cols(g, j),
                                        .k = pixels,
                                        .a = (const float *)(const void *)dy,
                                        .b = (const float *)(const void *)b,
                                        .c = c});
        return;
    }
    const void *const arguments[] = {dy, b, c, mine + g->scratch_at};
    const struct dpt_primitive *matmul =
        g->matmul[i == g->m_tiles - 1][j == g->n_tiles - 1][chunk == g->chunks - 1];
    dpt_gemm_note(&g->failed, dpt_onednn_run(g->s->gemm, matmul, thread, arguments));
}

/* Item: one tile of columns of one group. */
static void sum_item(void *ctx, int64_t item, int thread)
{
    struct gradient *g = ctx;
    const int64_t j = item % g->n_tiles, group = item / g->n_tiles, first = group * g->per_group;
    const int64_t end = dpt_min64(g->chunks, first + g->per_group);
    char *mine = dpt_workspace_of(&g->w, thread);
    float *sums = g->sums + group * g->a->out * g->width + j * TILE_N;
    for (int64_t chunk = first; chunk < end; chunk++) {
        const char *b = pack_windows(g, chunk, j, mine, thread);
        for (int64_t i = 0; i < g->m_tiles; i++) {
            multiply_tile(g, (const int64_t[3]){i, j, chunk}, b, mine, thread);
            g->s->kernels->of[DPT_F32]->tile_store(
                &(struct dpt_tile){.tile = (const float *)(const void *)mine,
                                   .rows = tile_rows(g, i),
                                   .cols = tile_cols(g, j),
                                   .c = sums + i * TILE_M * g->width,
                                   .ldc = g->width,
                                   .accumulate = chunk > first});
        }
    }
}

/* Item: one output channel. Adds the groups' sums and writes them in the layout of the weight. */
static void join_item(void *ctx, int64_t item, int thread)
{
    const struct gradient *g = ctx;
    const int64_t in = g->a->in, taps = g->a->of.kernel * g->a->of.kernel;
    float *sum = g->sums + item * g->width, *dw = g->a->dw + item * g->width;
    (void)thread;
    for (int64_t group = 1; group < g->groups; group++)
        g->s->kernels->of[DPT_F32]->add(g->width, sum, sum + group * g->a->out * g->width, sum);
    for (int64_t i = 0; i < in; i++)
        for (int64_t tap = 0; tap < taps; tap++) {
            float *to = dw + i * taps + tap;
            *to = g->a->accumulate ? *to + sum[tap * in + i] : sum[tap * in + i];
        }
}

/* --- primitives and workspace --- */

static bool make_primitives(struct gradient *g, size_t *ret_packed, size_t *ret_scratch)
{
    *ret_packed = *ret_scratch = 0;
    dpt_gemm_thread_begin();
    for (int which = 0; which < 8; which++) {
        const int i = which >> 2, j = which >> 1 & 1, k = which & 1;
        const int64_t rows = tile_rows(g, i ? g->m_tiles - 1 : 0),
                      cols = tile_cols(g, j ? g->n_tiles - 1 : 0),
                      pixels = chunk_pixels(g, k ? g->chunks - 1 : 0);
        struct dpt_primitive **matmul = &g->matmul[i][j][k], **reorder = &g->reorder[j][k];
        *matmul = dpt_gemm_primitive(
            g->s,
            &(struct dpt_primitive_shape){.operands = g->in, .m = rows, .n = cols, .k = pixels});
        *reorder = dpt_gemm_primitive(
            g->s, &(struct dpt_primitive_shape){.operands = g->in,
                                                .n = cols,
                                                .k = pixels,
                                                .b_row = g->whole ? g->width : cols,
                                                .b_col = 1});
        if (!*matmul || !*reorder)
            return false;
        const size_t sizes[] = {dpt_onednn_scratch_bytes(*matmul),
                                dpt_onednn_scratch_bytes(*reorder)};
        for (int s = 0; s < 2; s++)
            *ret_scratch = sizes[s] > *ret_scratch ? sizes[s] : *ret_scratch;
        const size_t bytes = dpt_onednn_b_bytes(*reorder);
        *ret_packed = bytes > *ret_packed ? bytes : *ret_packed;
    }
    return true;
}

/* False when the op ends here: the stream prepares, or an error occurred. */
static bool gradient_workspace(struct gradient *g)
{
    const size_t element = dpt_dtype_bytes(g->in);
    const size_t dy = dpt_round64((size_t)(g->pixels * g->a->out) * element);
    const size_t sums = (size_t)(g->groups * g->a->out * g->width) * sizeof(float);
    size_t packed = CHUNK * TILE_N * sizeof(float), scratch = 0;
    if (!g->own && !make_primitives(g, &packed, &scratch))
        return false;
    g->packed_at = TILE_M * TILE_N * sizeof(float);
    g->stage_at = g->packed_at + dpt_round64(packed);
    g->scratch_at = g->stage_at + (g->whole ? 0 : dpt_round64(CHUNK * TILE_N * element));
    if (!dpt_cpu_workspace(g->s, DPT_WORKSPACE_OP, dy + sums, g->scratch_at + scratch, &g->w))
        return false;
    g->dy = g->w.shared;
    g->sums = (float *)(void *)(g->w.shared + dy);
    return true;
}

void dpt_cpu_conv_weight_gradient(struct dpt_cpu_stream *s, const struct dpt_conv_backward *a)
{
    struct gradient g = {.s = s,
                         .a = a,
                         .windows = dpt_cpu_conv_windows(s, &a->of, a->in, a->dtype, a->x),
                         .own = !dpt_onednn_multiplies(s->gemm),
                         .in = dpt_onednn_operands(s->gemm, a->dtype)};
    g.pixels = dpt_cpu_windows_rows(&g.windows);
    g.width = dpt_cpu_windows_width(&g.windows);
    /* The library packs only elements of the operands' type. Our panels accept every type. */
    g.whole = dpt_cpu_windows_are_pixels(&g.windows) && (g.own || g.in == a->dtype);
    g.chunks = dpt_ceil_div(g.pixels, CHUNK);
    DPT_ASSERT(g.chunks > 0);
    g.m_tiles = dpt_ceil_div(a->out, TILE_M);
    g.n_tiles = dpt_ceil_div(g.width, TILE_N);
    g.per_group = dpt_ceil_div(g.chunks, dpt_ceil_div(DPT_CONV_ITEMS, g.n_tiles));
    g.groups = dpt_ceil_div(g.chunks, g.per_group);
    if (s->base.error.status != DPT_OK || !gradient_workspace(&g))
        return;
    dpt_pool_run(s->pool, g.chunks, turn_item, &g);
    dpt_pool_run(s->pool, g.groups * g.n_tiles, sum_item, &g);
    dpt_pool_run(s->pool, a->out, join_item, &g);
    dpt_gemm_report(s, atomic_load(&g.failed), "a convolution");
}
