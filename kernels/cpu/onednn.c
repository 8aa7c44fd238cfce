/* oneDNN behind onednn.h. Only this file includes oneDNN's header. Works with 2.5 and later, and
 * 3.x.
 *
 * Each matmul primitive is made for a single thread. a and c are dense, and b is in the blocked
 * form that the library prefers ("any"); reorder primitives bring b into that form. This is as fast
 * as the library's own threading (within 1%; Zen 4: 117 GFLOP/s a core), and bits cannot depend on
 * threads. dnnl_sgemm, and matmul on operands that are not dense, allocate packing buffers in each
 * call. With user scratchpads and our packing, the library allocates only small nodes (cells.c). */
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/cells.h"

#include <oneapi/dnnl/dnnl.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The most primitives of a stream. A new one replaces the least recently used. A product uses a few
 * at once. */
enum { PRIMITIVES_MAX = 1024 };

/* The OpenMP build of oneDNN asks OpenMP for the number of threads when a primitive is made and
 * when it runs. The symbol is weak, because other builds do not have it. */
extern void omp_set_num_threads(int n) __attribute__((weak));

#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t owned_md;
typedef const_dnnl_memory_desc_t borrowed_md;
#else
typedef dnnl_memory_desc_t owned_md;
typedef const dnnl_memory_desc_t *borrowed_md;
#endif

/* Arguments of a primitive. Each argument has one memory object per thread, and each run sets the
 * object's pointer. */
enum { ARGS_MAX = 4 };

/* A primitive with its arguments. Matmul: a, b, c, scratchpad; reorder: from, to, scratchpad. */
struct dpt_primitive {
    struct dpt_primitive_shape shape;
    dnnl_primitive_desc_t desc;
    dnnl_primitive_t primitive;
    int args;
    int arg_ids[ARGS_MAX];
    dnnl_memory_t *memories; /* (threads, ARGS_MAX) */
    size_t b_bytes;          /* bytes of b in its blocked form */
    size_t scratch_bytes;
    /* The value of dpt_gemm_engine.requests when this primitive was last asked for. */
    uint64_t used;
};

struct dpt_gemm_engine {
    dnnl_engine_t engine;
    dnnl_stream_t *streams; /* one per thread */
    int threads;
    bool tiles; /* dpt_onednn_multiplies */
    bool bf16;  /* the machine multiplies bf16 */
    uint64_t requests;
    int count;
    struct dpt_primitive primitives[PRIMITIVES_MAX];
};

enum dpt_status dpt_onednn_error(int status, const char *what, struct dpt_err *err)
{
    if (status == dnnl_success)
        return DPT_OK;
    return dpt_fail(err, status == dnnl_out_of_memory ? DPT_ENOMEM : DPT_EUNSUPPORTED,
                    "oneDNN: %s failed (status %d)", what, status);
}

void dpt_gemm_thread_begin(void)
{
    static _Thread_local bool done;
    if (!done && omp_set_num_threads)
        omp_set_num_threads(1);
    done = true;
}

/* --- memory descriptors; 2.x and 3.x differ here --- */

static dnnl_data_type_t type_of(enum dpt_dtype dtype)
{
    return dtype == DPT_BF16 ? dnnl_bf16 : dnnl_f32;
}

static dnnl_status_t md_strides(owned_md *ret, enum dpt_dtype dtype, int64_t rows, int64_t cols,
                                int64_t row, int64_t col)
{
    const dnnl_dims_t dims = {rows, cols}, strides = {row, col};
#if DNNL_VERSION_MAJOR >= 3
    return dnnl_memory_desc_create_with_strides(ret, 2, dims, type_of(dtype), strides);
#else
    return dnnl_memory_desc_init_by_strides(ret, 2, dims, type_of(dtype), strides);
#endif
}

static dnnl_status_t md_any(owned_md *ret, enum dpt_dtype dtype, int64_t rows, int64_t cols)
{
    const dnnl_dims_t dims = {rows, cols};
#if DNNL_VERSION_MAJOR >= 3
    return dnnl_memory_desc_create_with_tag(ret, 2, dims, type_of(dtype), dnnl_format_tag_any);
#else
    return dnnl_memory_desc_init_by_tag(ret, 2, dims, type_of(dtype), dnnl_format_tag_any);
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

/* A matmul of m rows, and otherwise of shape `s`. b NULL: the library chooses the form of b. */
static dnnl_status_t matmul_desc(dnnl_engine_t engine, const struct dpt_primitive_shape *s,
                                 int64_t m, borrowed_md b, dnnl_primitive_desc_t *ret)
{
    owned_md a_md = {0}, b_md = {0}, c_md = {0};
    dnnl_primitive_attr_t attr = NULL;
    dnnl_status_t st = attr_create(&attr);
    if (st == dnnl_success)
        st = md_strides(&a_md, s->operands, m, s->k, s->k, 1);
    if (st == dnnl_success)
        st = md_any(&b_md, s->operands, s->k, s->n);
    if (st == dnnl_success)
        st = md_strides(&c_md, DPT_F32, m, s->n, s->n, 1);
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

static dnnl_status_t reorder_desc(dnnl_engine_t engine, const struct dpt_primitive_shape *s,
                                  borrowed_md to, dnnl_primitive_desc_t *ret)
{
    owned_md from = {0};
    dnnl_primitive_attr_t attr = NULL;
    dnnl_status_t st = attr_create(&attr);
    if (st == dnnl_success)
        st = md_strides(&from, s->operands, s->k, s->n, s->b_row, s->b_col);
    if (st == dnnl_success)
        st = dnnl_reorder_primitive_desc_create(ret, md_borrow(&from), engine, to, engine, attr);
    md_release(&from);
    if (attr)
        dnnl_primitive_attr_destroy(attr);
    return st;
}

/* --- primitives --- */

static void primitive_release(struct dpt_primitive *p, int threads)
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

static borrowed_md query_md(const struct dpt_primitive *p, dnnl_query_t what)
{
    return dnnl_primitive_desc_query_md(p->desc, what, 0);
}

/* Makes the primitive of p->desc and, for each thread, the memory objects of its arguments. `what`
 * and `arg_ids` give the arguments' order. */
static dnnl_status_t primitive_finish(struct dpt_gemm_engine *e, struct dpt_primitive *p, int args,
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

static struct dpt_primitive *find_primitive(struct dpt_gemm_engine *e,
                                            const struct dpt_primitive_shape *wanted)
{
    for (int i = 0; i < e->count; i++) {
        const struct dpt_primitive_shape *s = &e->primitives[i].shape;
        if (s->operands == wanted->operands && s->m == wanted->m && s->n == wanted->n &&
            s->k == wanted->k && s->b_row == wanted->b_row && s->b_col == wanted->b_col)
            return &e->primitives[i];
    }
    return NULL;
}

/* Fills *p for its shape. The blocked form of b is the library's choice for whole tiles of TILE_M
 * rows, so a b that is packed once serves tiles of any height. */
static dnnl_status_t primitive_make(struct dpt_gemm_engine *e, struct dpt_primitive *p)
{
    dnnl_primitive_desc_t form = NULL;
    dnnl_status_t st = matmul_desc(e->engine, &p->shape, DPT_TILE_M, NULL, &form);
    if (st != dnnl_success)
        return st;
    borrowed_md b = dnnl_primitive_desc_query_md(form, dnnl_query_weights_md, 0);
    p->b_bytes = dnnl_memory_desc_get_size(b);
    if (p->shape.m > 0) {
        static const dnnl_query_t what[] = {dnnl_query_src_md, dnnl_query_weights_md,
                                            dnnl_query_dst_md, dnnl_query_scratchpad_md};
        static const int ids[] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST,
                                  DNNL_ARG_SCRATCHPAD};
        st = matmul_desc(e->engine, &p->shape, p->shape.m, b, &p->desc);
        if (st == dnnl_success)
            st = primitive_finish(e, p, 4, what, ids);
    } else {
        static const dnnl_query_t what[] = {dnnl_query_src_md, dnnl_query_dst_md,
                                            dnnl_query_scratchpad_md};
        static const int ids[] = {DNNL_ARG_FROM, DNNL_ARG_TO, DNNL_ARG_SCRATCHPAD};
        st = reorder_desc(e->engine, &p->shape, b, &p->desc);
        if (st == dnnl_success)
            st = primitive_finish(e, p, 3, what, ids);
    }
    dnnl_primitive_desc_destroy(form);
    return st;
}

/* Returns a slot for a new primitive: a free slot, or that of the least recently used primitive. */
static struct dpt_primitive *make_room(struct dpt_gemm_engine *e)
{
    if (e->count < PRIMITIVES_MAX)
        return &e->primitives[e->count++];
    struct dpt_primitive *oldest = &e->primitives[0];
    for (int i = 1; i < e->count; i++)
        if (e->primitives[i].used < oldest->used)
            oldest = &e->primitives[i];
    primitive_release(oldest, e->threads);
    return oldest;
}

struct dpt_primitive *dpt_onednn_primitive(struct dpt_gemm_engine *e,
                                           const struct dpt_primitive_shape *shape,
                                           struct dpt_err *err)
{
    struct dpt_primitive *p = find_primitive(e, shape);
    e->requests++;
    if (!p) {
        p = make_room(e);
        p->shape = *shape;
        const int status = (int)primitive_make(e, p);
        if (dpt_onednn_error(status, shape->m ? "matmul" : "reorder", err) != DPT_OK) {
            /* The empty slot is never found, because no product has k = 0. */
            primitive_release(p, e->threads);
            return NULL;
        }
    }
    p->used = e->requests;
    return p;
}

enum dpt_dtype dpt_onednn_operands(const struct dpt_gemm_engine *e, enum dpt_dtype dtype)
{
    return dtype == DPT_BF16 && e->bf16 ? DPT_BF16 : DPT_F32;
}

int dpt_onednn_run(struct dpt_gemm_engine *e, const struct dpt_primitive *p, int thread,
                   const void *const arguments[])
{
    dnnl_exec_arg_t args[ARGS_MAX];
    dnnl_status_t st = dnnl_success;
    dpt_gemm_thread_begin();
    dpt_cells_enter();
    for (int i = 0; i < p->args && st == dnnl_success; i++) {
        dnnl_memory_t memory = p->memories[thread * ARGS_MAX + i];
        args[i] = (dnnl_exec_arg_t){.arg = p->arg_ids[i], .memory = memory};
        union {
            const void *in;
            void *out;
        } pointer = {.in = arguments[i]}; /* the library takes no pointer to const */
        st = dnnl_memory_set_data_handle(memory, pointer.out);
    }
    if (st == dnnl_success)
        st = dnnl_primitive_execute(p->primitive, e->streams[thread], p->args, args);
    dpt_cells_leave();
    return (int)st;
}

size_t dpt_onednn_b_bytes(const struct dpt_primitive *p)
{
    return p->b_bytes;
}

size_t dpt_onednn_scratch_bytes(const struct dpt_primitive *p)
{
    return p->scratch_bytes;
}

/* --- engine --- */

/* Whether the library uses every part of `isa`; the values are sets of bits. */
static bool has_isa(dnnl_cpu_isa_t isa)
{
    return (dnnl_get_effective_cpu_isa() & isa) == isa;
}

bool dpt_onednn_multiplies(const struct dpt_gemm_engine *e)
{
    return e->tiles;
}

enum dpt_status dpt_gemm_engine_create(int threads, struct dpt_gemm_engine **ret,
                                       struct dpt_err *err)
{
    struct dpt_gemm_engine *e = calloc(1, sizeof *e);
    if (!e)
        return dpt_fail_nomem(err, "oneDNN engine");
    e->threads = threads;
    e->tiles = has_isa(dnnl_cpu_isa_avx512_core);
    /* On other machines the library multiplies bf16 slowly, through buffers that it allocates, or
     * not at all. */
    e->bf16 = has_isa(dnnl_cpu_isa_avx512_core_bf16);
    e->streams = calloc((size_t)threads, sizeof *e->streams);
    dnnl_status_t st =
        e->streams ? dnnl_engine_create(&e->engine, dnnl_cpu, 0) : dnnl_out_of_memory;
    for (int i = 0; i < threads && st == dnnl_success; i++)
        st = dnnl_stream_create(&e->streams[i], e->engine, dnnl_stream_default_flags);
    enum dpt_status status = dpt_onednn_error((int)st, "engine", err);
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

/* The library accepts a limit only until it is first asked for its instruction set. After that the
 * call fails, and the instruction set must already be the limit. */
static enum dpt_status limit_isa(enum dpt_cpu_isa limit, struct dpt_err *err)
{
    static const dnnl_cpu_isa_t isas[DPT_CPU_ISA_COUNT] = {dnnl_cpu_isa_sse41, dnnl_cpu_isa_avx2,
                                                           dnnl_cpu_isa_avx512_core,
                                                           dnnl_cpu_isa_avx512_core_bf16};
    if (limit == DPT_CPU_ISA_COUNT)
        return DPT_OK;
    (void)dnnl_set_max_cpu_isa(isas[limit]);
    if (dnnl_get_effective_cpu_isa() == isas[limit])
        return DPT_OK;
    return dpt_fail(err, DPT_EUNSUPPORTED,
                    "DPT_TEST_ISA=%s: this machine does not have it, or the process has begun with "
                    "another",
                    dpt_cpu_isa_name(limit));
}

enum dpt_status dpt_onednn_open(enum dpt_cpu_isa limit, char *ret_text, size_t bytes,
                                struct dpt_err *err)
{
    DPT_TRY(limit_isa(limit, err));
    /* Builds with VTune's task markers would allocate a name for each kind of primitive on its
     * first run, even without VTune. The switch has two spellings. A value that the user has set
     * stays. */
    setenv("DNNL_ITT_TASK_LEVEL", "0", 0);
    setenv("ONEDNN_ITT_TASK_LEVEL", "0", 0);
    const dnnl_version_t *v = dnnl_version();
    snprintf(ret_text, bytes, "onednn-%d.%d.%d isa-%x", v->major, v->minor, v->patch,
             (unsigned)dnnl_get_effective_cpu_isa());
    return DPT_OK;
}
