/* Products through oneDNN: the only file that includes its header. Works with oneDNN 2.5 and later,
 * and 3.x.
 *
 * A product is cut into tiles of at most TILE_M x TILE_N results. For each tile size there is one
 * matmul primitive, made for a single thread, with dense a and c and with b in the blocked form
 * that the library prefers ("any"); reorder primitives bring b's tiles into that form and own
 * kernels transpose a where it is not dense. This is as fast as the library's own threading (within
 * 1%, Zen 4: 117 GFLOP/s a core), and makes bits independent of threads by construction. dnnl_sgemm
 * would allocate packing buffers in each call; with user scratchpads and our packing nothing is
 * allocated but the small nodes that cells.c takes care of. */
#include "kernels/cpu/cells.h"
#include "kernels/cpu/gemm.h"

#include <oneapi/dnnl/dnnl.h>

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* TILE_N is a multiple of the 64 columns in which the library blocks b. A tile of b with k = 768
 * and one of c stay in a second-level cache of 1 MiB. PACK_AHEAD_TILES: with fewer tiles along a
 * side than this, operands are packed ahead in a loop of their own, so that several threads can
 * share one; with more, each item packs its own, while it is in the cache. */
enum { TILE_M = 128, TILE_N = 192, PACK_AHEAD_TILES = 32, PRIMITIVES_MAX = 1024 };

/* The OpenMP build of oneDNN asks OpenMP how many threads it may use, when a primitive is made and
 * when it runs. Weak: other builds do not have it. */
extern void omp_set_num_threads(int n) __attribute__((weak));

#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t owned_md;
typedef const_dnnl_memory_desc_t borrowed_md;
#else
typedef dnnl_memory_desc_t owned_md;
typedef const dnnl_memory_desc_t *borrowed_md;
#endif

/* One argument of a primitive: a memory object for each thread, its pointer set before each run. */
enum { ARGS_MAX = 4 };

/* A primitive with its arguments. Matmul: a, b, c, scratchpad; reorder: from, to, scratchpad. */
struct primitive {
    int64_t m, n, k;      /* of the tile; a reorder has m = 0 */
    int64_t b_row, b_col; /* source strides of a reorder */
    dnnl_primitive_desc_t desc;
    dnnl_primitive_t primitive;
    int args;
    int arg_ids[ARGS_MAX];
    dnnl_memory_t *memories; /* (threads, ARGS_MAX) */
    size_t b_bytes;          /* size of b in its blocked form */
    size_t scratch_bytes;
};

struct dpt_gemm_engine {
    dnnl_engine_t engine;
    dnnl_stream_t *streams; /* one a thread */
    int threads;
    int count;
    struct primitive primitives[PRIMITIVES_MAX];
};

static enum dpt_status translate(dnnl_status_t status, const char *what, struct dpt_err *err)
{
    if (status == dnnl_success)
        return DPT_OK;
    return dpt_fail(err, status == dnnl_out_of_memory ? DPT_ENOMEM : DPT_EUNSUPPORTED,
                    "oneDNN: %s failed (status %d)", what, (int)status);
}

void dpt_gemm_thread_begin(void)
{
    static _Thread_local bool done;
    if (!done && omp_set_num_threads)
        omp_set_num_threads(1);
    done = true;
}

/* --- memory descriptors, the part that differs between 2.x and 3.x --- */

static dnnl_status_t md_strides(owned_md *ret, int64_t rows, int64_t cols, int64_t row, int64_t col)
{
    const dnnl_dims_t dims = {rows, cols}, strides = {row, col};
#if DNNL_VERSION_MAJOR >= 3
    return dnnl_memory_desc_create_with_strides(ret, 2, dims, dnnl_f32, strides);
#else
    return dnnl_memory_desc_init_by_strides(ret, 2, dims, dnnl_f32, strides);
#endif
}

static dnnl_status_t md_any(owned_md *ret, int64_t rows, int64_t cols)
{
    const dnnl_dims_t dims = {rows, cols};
#if DNNL_VERSION_MAJOR >= 3
    return dnnl_memory_desc_create_with_tag(ret, 2, dims, dnnl_f32, dnnl_format_tag_any);
#else
    return dnnl_memory_desc_init_by_tag(ret, 2, dims, dnnl_f32, dnnl_format_tag_any);
#endif
}

static borrowed_md md_borrow(const owned_md *md)
{
#if DNNL_VERSION_MAJOR >= 3
    return *md;
#else
    return md;
#endif
}

static void md_release(owned_md *md)
{
#if DNNL_VERSION_MAJOR >= 3
    if (*md)
        dnnl_memory_desc_destroy(*md);
    *md = NULL;
#else
    (void)md;
#endif
}

static dnnl_status_t attr_create(dnnl_primitive_attr_t *ret)
{
    dnnl_status_t st = dnnl_primitive_attr_create(ret);
    if (st == dnnl_success)
        st = dnnl_primitive_attr_set_scratchpad_mode(*ret, dnnl_scratchpad_mode_user);
#if DNNL_VERSION_MAJOR >= 3 || (DNNL_VERSION_MAJOR == 2 && DNNL_VERSION_MINOR >= 6)
    if (st == dnnl_success)
        st = dnnl_primitive_attr_set_fpmath_mode(*ret, dnnl_fpmath_mode_strict);
#endif
    return st;
}

/* b NULL: the library chooses its form. */
static dnnl_status_t matmul_desc(dnnl_engine_t engine, int64_t m, int64_t n, int64_t k,
                                 borrowed_md b, dnnl_primitive_desc_t *ret)
{
    owned_md a_md = {0}, b_md = {0}, c_md = {0};
    dnnl_primitive_attr_t attr = NULL;
    dnnl_status_t st = attr_create(&attr);
    if (st == dnnl_success)
        st = md_strides(&a_md, m, k, k, 1);
    if (st == dnnl_success)
        st = md_any(&b_md, k, n);
    if (st == dnnl_success)
        st = md_strides(&c_md, m, n, n, 1);
    if (st == dnnl_success) {
        borrowed_md weights = b ? b : md_borrow(&b_md);
#if DNNL_VERSION_MAJOR >= 3
        st = dnnl_matmul_primitive_desc_create(ret, engine, md_borrow(&a_md), weights, NULL,
                                               md_borrow(&c_md), attr);
#else
        dnnl_matmul_desc_t desc;
        st = dnnl_matmul_desc_init(&desc, &a_md, weights, NULL, &c_md);
        if (st == dnnl_success)
            st = dnnl_primitive_desc_create(ret, &desc, attr, engine, NULL);
#endif
    }
    md_release(&a_md);
    md_release(&b_md);
    md_release(&c_md);
    if (attr)
        dnnl_primitive_attr_destroy(attr);
    return st;
}

static dnnl_status_t reorder_desc(dnnl_engine_t engine, int64_t k, int64_t n, int64_t b_row,
                                  int64_t b_col, borrowed_md to, dnnl_primitive_desc_t *ret)
{
    owned_md from = {0};
    dnnl_primitive_attr_t attr = NULL;
    dnnl_status_t st = attr_create(&attr);
    if (st == dnnl_success)
        st = md_strides(&from, k, n, b_row, b_col);
    if (st == dnnl_success)
        st = dnnl_reorder_primitive_desc_create(ret, md_borrow(&from), engine, to, engine, attr);
    md_release(&from);
    if (attr)
        dnnl_primitive_attr_destroy(attr);
    return st;
}

/* --- primitives --- */

static void primitive_release(struct primitive *p, int threads)
{
    for (int i = 0; p->memories && i < threads * ARGS_MAX; i++)
        if (p->memories[i])
            dnnl_memory_destroy(p->memories[i]);
    free(p->memories);
    if (p->primitive)
        dnnl_primitive_destroy(p->primitive);
    if (p->desc)
        dnnl_primitive_desc_destroy(p->desc);
    memset(p, 0, sizeof *p);
}

static borrowed_md query_md(const struct primitive *p, dnnl_query_t what)
{
    return dnnl_primitive_desc_query_md(p->desc, what, 0);
}

/* Makes the primitive of p->desc and its memory objects for each thread, in the order of `what`. */
static dnnl_status_t primitive_finish(struct dpt_gemm_engine *e, struct primitive *p, int args,
                                      const dnnl_query_t what[], const int arg_ids[])
{
    dnnl_status_t st = dnnl_primitive_create(&p->primitive, p->desc);
    p->memories = calloc((size_t)e->threads * ARGS_MAX, sizeof *p->memories);
    if (!p->memories)
        return dnnl_out_of_memory;
    p->args = args;
    p->scratch_bytes = dnnl_memory_desc_get_size(query_md(p, dnnl_query_scratchpad_md));
    for (int i = 0; i < args && st == dnnl_success; i++) {
        p->arg_ids[i] = arg_ids[i];
        for (int t = 0; t < e->threads && st == dnnl_success; t++)
            st = dnnl_memory_create(&p->memories[t * ARGS_MAX + i], query_md(p, what[i]), e->engine,
                                    DNNL_MEMORY_NONE);
    }
    return st;
}

static struct primitive *find(struct dpt_gemm_engine *e, const struct primitive *key)
{
    for (int i = 0; i < e->count; i++) {
        struct primitive *p = &e->primitives[i];
        if (p->m == key->m && p->n == key->n && p->k == key->k && p->b_row == key->b_row &&
            p->b_col == key->b_col)
            return p;
    }
    return NULL;
}

/* Fills *p for its key. The blocked form of b is the one that the library likes for whole tiles of
 * TILE_M rows, so that a b packed once serves tiles of any height. */
static dnnl_status_t primitive_make(struct dpt_gemm_engine *e, struct primitive *p)
{
    dnnl_primitive_desc_t form = NULL;
    dnnl_status_t st = matmul_desc(e->engine, TILE_M, p->n, p->k, NULL, &form);
    if (st != dnnl_success)
        return st;
    borrowed_md b = dnnl_primitive_desc_query_md(form, dnnl_query_weights_md, 0);
    p->b_bytes = dnnl_memory_desc_get_size(b);
    if (p->m > 0) {
        static const dnnl_query_t what[] = {dnnl_query_src_md, dnnl_query_weights_md,
                                            dnnl_query_dst_md, dnnl_query_scratchpad_md};
        static const int ids[] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST,
                                  DNNL_ARG_SCRATCHPAD};
        st = matmul_desc(e->engine, p->m, p->n, p->k, b, &p->desc);
        if (st == dnnl_success)
            st = primitive_finish(e, p, 4, what, ids);
    } else {
        static const dnnl_query_t what[] = {dnnl_query_src_md, dnnl_query_dst_md,
                                            dnnl_query_scratchpad_md};
        static const int ids[] = {DNNL_ARG_FROM, DNNL_ARG_TO, DNNL_ARG_SCRATCHPAD};
        st = reorder_desc(e->engine, p->k, p->n, p->b_row, p->b_col, b, &p->desc);
        if (st == dnnl_success)
            st = primitive_finish(e, p, 3, what, ids);
    }
    dnnl_primitive_desc_destroy(form);
    return st;
}

static struct primitive *get(struct dpt_gemm_engine *e, const struct primitive *key,
                             struct dpt_err *err)
{
    struct primitive *p = find(e, key);
    if (p)
        return p;
    if (e->count == PRIMITIVES_MAX) {
        (void)dpt_fail(err, DPT_EOVERFLOW, "more than %d kinds of product in one stream",
                       PRIMITIVES_MAX);
        return NULL;
    }
    p = &e->primitives[e->count];
    *p = *key;
    if (translate(primitive_make(e, p), key->m ? "matmul" : "reorder", err) != DPT_OK) {
        primitive_release(p, e->threads);
        return NULL;
    }
    e->count++;
    return p;
}

static struct primitive *matmul_get(struct dpt_gemm_engine *e, int64_t m, int64_t n, int64_t k,
                                    struct dpt_err *err)
{
    const struct primitive key = {.m = m, .n = n, .k = k};
    return get(e, &key, err);
}

static struct primitive *reorder_get(struct dpt_gemm_engine *e, int64_t n, int64_t k, int64_t b_row,
                                     int64_t b_col, struct dpt_err *err)
{
    const struct primitive key = {.n = n, .k = k, .b_row = b_row, .b_col = b_col};
    return get(e, &key, err);
}

static dnnl_status_t execute(struct dpt_gemm_engine *e, const struct primitive *p, int thread,
                             void *const pointers[])
{
    dnnl_exec_arg_t args[ARGS_MAX];
    dnnl_status_t st = dnnl_success;
    dpt_gemm_thread_begin();
    dpt_cells_enter();
    for (int i = 0; i < p->args && st == dnnl_success; i++) {
        dnnl_memory_t memory = p->memories[thread * ARGS_MAX + i];
        args[i] = (dnnl_exec_arg_t){.arg = p->arg_ids[i], .memory = memory};
        st = dnnl_memory_set_data_handle(memory, pointers[i]);
    }
    if (st == dnnl_success)
        st = dnnl_primitive_execute(p->primitive, e->streams[thread], p->args, args);
    dpt_cells_leave();
    return st;
}

/* --- engine --- */

enum dpt_status dpt_gemm_engine_create(int threads, struct dpt_gemm_engine **ret,
                                       struct dpt_err *err)
{
    struct dpt_gemm_engine *e = calloc(1, sizeof *e);
    if (!e)
        return dpt_fail(err, DPT_ENOMEM, "oneDNN engine");
    e->threads = threads;
    e->streams = calloc((size_t)threads, sizeof *e->streams);
    dnnl_status_t st =
        e->streams ? dnnl_engine_create(&e->engine, dnnl_cpu, 0) : dnnl_out_of_memory;
    for (int i = 0; i < threads && st == dnnl_success; i++)
        st = dnnl_stream_create(&e->streams[i], e->engine, dnnl_stream_default_flags);
    enum dpt_status status = translate(st, "engine", err);
    if (status != DPT_OK) {
        dpt_gemm_engine_destroy(&e);
        return status;
    }
    *ret = e;
    return DPT_OK;
}

void dpt_gemm_engine_destroy(struct dpt_gemm_engine **engine)
{
    struct dpt_gemm_engine *e = *engine;
    if (!e)
        return;
    for (int i = 0; i < e->count; i++)
        primitive_release(&e->primitives[i], e->threads);
    for (int i = 0; e->streams && i < e->threads; i++)
        if (e->streams[i])
            dnnl_stream_destroy(e->streams[i]);
    free(e->streams);
    if (e->engine)
        dnnl_engine_destroy(e->engine);
    free(e);
    *engine = NULL;
}

void dpt_gemm_library(char *ret_text, size_t bytes)
{
    const dnnl_version_t *v = dnnl_version();
    snprintf(ret_text, bytes, "onednn-%d.%d.%d isa-%x", v->major, v->minor, v->patch,
             (unsigned)dnnl_get_effective_cpu_isa());
}

/* --- a product --- */

enum order { AHEAD, BY_ROWS, BY_COLUMNS };

/* One product under way. Tiles of b in blocked form lie `b_stride` bytes apart. */
struct product {
    struct dpt_cpu_stream *s;
    const struct dpt_gemm *g;
    enum order order;
    int64_t m_tiles, n_tiles;
    bool a_dense;
    size_t b_stride;
    /* [0] whole tiles, [1] the last one along m or n if it is smaller */
    struct primitive *matmul[2][2], *reorder[2];
    float *a_packed;           /* (m, k) dense, when a is not and order is not BY_ROWS */
    char *b_packed;            /* all tiles, unless BY_COLUMNS */
    size_t own_at, scratch_at; /* offsets in a thread's part: the packed operand, the scratchpad;
                                  c's tile is at 0 */
    struct dpt_workspace w;
    _Atomic int failed; /* a dnnl_status_t */
};

static int64_t tile_rows(const struct product *p, int64_t i)
{
    return dpt_min64(TILE_M, p->g->m - i * TILE_M);
}

static int64_t tile_cols(const struct product *p, int64_t j)
{
    return dpt_min64(TILE_N, p->g->n - j * TILE_N);
}

static void note(struct product *p, dnnl_status_t st)
{
    int none = dnnl_success;
    if (st != dnnl_success)
        atomic_compare_exchange_strong(&p->failed, &none, (int)st);
}

static void pack_b(struct product *p, int64_t j, char *to, int thread)
{
    const struct dpt_gemm *g = p->g;
    const struct primitive *r = p->reorder[tile_cols(p, j) != p->reorder[0]->n];
    char *scratch = (char *)dpt_workspace_of(&p->w, thread) + p->scratch_at;
    union {
        const float *in;
        void *out;
    } from = {.in = g->b + j * TILE_N * g->b_col}; /* the library takes no pointer to const */
    void *pointers[] = {from.out, to, scratch};
    note(p, execute(p->s->gemm, r, thread, pointers));
}

/* to (rows of tile i, k) dense */
static void pack_a(const struct product *p, int64_t i, float *to)
{
    const struct dpt_gemm *g = p->g;
    const float *from = g->a + i * TILE_M * g->a_row;
    int64_t rows = tile_rows(p, i);
    if (g->a_row == 1)
        p->s->kernels->transpose(g->k, rows, from, g->a_col, to, g->k);
    else
        for (int64_t r = 0; r < rows; r++)
            memcpy(to + r * g->k, from + r * g->a_row, (size_t)g->k * sizeof *to);
}

static void multiply(struct product *p, int64_t i, int64_t j, const float *a, char *b, int thread)
{
    const struct dpt_gemm *g = p->g;
    const struct dpt_gemm_store *out = &g->store;
    int64_t rows = tile_rows(p, i), cols = tile_cols(p, j);
    const struct primitive *mm = p->matmul[rows != p->matmul[0][0]->m][cols != p->matmul[0][0]->n];
    char *own = dpt_workspace_of(&p->w, thread);
    union {
        const float *in;
        void *out;
    } from = {.in = a};
    void *pointers[] = {from.out, b, own, own + p->scratch_at};
    note(p, execute(p->s->gemm, mm, thread, pointers));
    int64_t at = i * TILE_M * out->ldc + j * TILE_N;
    const struct dpt_tile tile = {.tile = (const float *)own,
                                  .rows = rows,
                                  .cols = cols,
                                  .c = out->c + at,
                                  .ldc = out->ldc,
                                  .bias = out->bias ? out->bias + j * TILE_N : NULL,
                                  .gelu = out->gelu ? out->gelu + at : NULL,
                                  .accumulate = out->accumulate};
    p->s->kernels->tile_store(&tile);
}

static const float *a_tile(const struct product *p, int64_t i)
{
    return p->a_dense ? p->g->a + i * TILE_M * p->g->k : p->a_packed + i * TILE_M * p->g->k;
}

/* Items: tiles of b, then tiles of a, as far as they are packed ahead. */
static void pack_item(void *ctx, int64_t item, int thread)
{
    struct product *p = ctx;
    int64_t b_items = p->order == BY_COLUMNS ? 0 : p->n_tiles;
    if (item < b_items)
        pack_b(p, item, p->b_packed + (size_t)item * p->b_stride, thread);
    else
        pack_a(p, item - b_items, p->a_packed + (item - b_items) * TILE_M * p->g->k);
}

static void multiply_item(void *ctx, int64_t item, int thread)
{
    struct product *p = ctx;
    char *packed = (char *)dpt_workspace_of(&p->w, thread) + p->own_at;
    switch (p->order) {
    case AHEAD: {
        int64_t i = item % p->m_tiles, j = item / p->m_tiles;
        multiply(p, i, j, a_tile(p, i), p->b_packed + (size_t)j * p->b_stride, thread);
        break;
    }
    case BY_COLUMNS:
        pack_b(p, item, packed, thread);
        for (int64_t i = 0; i < p->m_tiles; i++)
            multiply(p, i, item, a_tile(p, i), packed, thread);
        break;
    case BY_ROWS:
        pack_a(p, item, (float *)(void *)packed);
        for (int64_t j = 0; j < p->n_tiles; j++)
            multiply(p, item, j, (const float *)(const void *)packed,
                     p->b_packed + (size_t)j * p->b_stride, thread);
        break;
    }
}

/* Primitives for whole and last tiles. */
static bool product_primitives(struct product *p, struct dpt_err *err)
{
    const struct dpt_gemm *g = p->g;
    struct dpt_gemm_engine *e = p->s->gemm;
    const int64_t rows[2] = {tile_rows(p, 0), tile_rows(p, p->m_tiles - 1)};
    const int64_t cols[2] = {tile_cols(p, 0), tile_cols(p, p->n_tiles - 1)};
    for (int j = 0; j < 2; j++) {
        p->reorder[j] = reorder_get(e, cols[j], g->k, g->b_row, g->b_col, err);
        if (!p->reorder[j])
            return false;
        for (int i = 0; i < 2; i++) {
            p->matmul[i][j] = matmul_get(e, rows[i], cols[j], g->k, err);
            if (!p->matmul[i][j])
                return false;
        }
    }
    return true;
}

static size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Lays the workspace out. False when the product ends here (preparing, or an error). */
static bool product_workspace(struct product *p)
{
    const struct dpt_gemm *g = p->g;
    size_t scratch = 0;
    for (int j = 0; j < 2; j++) {
        scratch = max_size(scratch, p->reorder[j]->scratch_bytes);
        for (int i = 0; i < 2; i++)
            scratch = max_size(scratch, p->matmul[i][j]->scratch_bytes);
    }
    p->b_stride = dpt_round64(max_size(p->reorder[0]->b_bytes, p->reorder[1]->b_bytes));
    size_t b_all = p->order == BY_COLUMNS ? 0 : (size_t)p->n_tiles * p->b_stride;
    size_t a_all = p->a_dense || p->order == BY_ROWS ? 0 : (size_t)(g->m * g->k) * sizeof(float);
    size_t own = 0;
    if (p->order == BY_COLUMNS)
        own = p->b_stride;
    else if (p->order == BY_ROWS)
        own = (size_t)(TILE_M * g->k) * sizeof(float);
    p->own_at = TILE_M * TILE_N * sizeof(float);
    p->scratch_at = p->own_at + dpt_round64(own);
    if (!dpt_cpu_workspace(p->s, DPT_WORKSPACE_GEMM, b_all + dpt_round64(a_all),
                           p->scratch_at + dpt_round64(scratch), &p->w))
        return false;
    p->b_packed = p->w.shared;
    p->a_packed = (float *)(void *)(p->w.shared + b_all);
    return true;
}

void dpt_cpu_gemm(struct dpt_cpu_stream *s, const struct dpt_gemm *g)
{
    if (s->error.status != DPT_OK || g->m == 0 || g->n == 0)
        return;
    struct product p = {.s = s,
                        .g = g,
                        .m_tiles = dpt_ceil_div(g->m, TILE_M),
                        .n_tiles = dpt_ceil_div(g->n, TILE_N),
                        .a_dense = g->a_row == g->k && g->a_col == 1};
    if (p.n_tiles >= PACK_AHEAD_TILES)
        p.order = BY_COLUMNS;
    else if (p.m_tiles >= PACK_AHEAD_TILES && !p.a_dense)
        p.order = BY_ROWS;
    struct dpt_err err;
    dpt_gemm_thread_begin();
    if (!product_primitives(&p, &err)) {
        dpt_cpu_fail(s, err.status, err.text);
        return;
    }
    if (!product_workspace(&p))
        return;

    int64_t packs = p.order == BY_COLUMNS ? 0 : p.n_tiles;
    if (!p.a_dense && p.order != BY_ROWS)
        packs += p.m_tiles;
    dpt_pool_run(s->pool, packs, pack_item, &p);
    int64_t items = p.m_tiles * p.n_tiles;
    if (p.order == BY_COLUMNS)
        items = p.n_tiles;
    else if (p.order == BY_ROWS)
        items = p.m_tiles;
    dpt_pool_run(s->pool, items, multiply_item, &p);
    int failed = atomic_load(&p.failed);
    if (failed != dnnl_success && translate((dnnl_status_t)failed, "a product", &err) != DPT_OK)
        dpt_cpu_fail(s, err.status, err.text);
}
