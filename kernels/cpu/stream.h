/* The parts of a CPU stream: the pool, the workspace, the products, the sticky error. Only
 * kernels/cpu includes this. */
#ifndef DPT_KERNELS_CPU_STREAM_H
#define DPT_KERNELS_CPU_STREAM_H

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/pool.h"
#include "kernels/device_impl.h"
#include "kernels/ops.h"

#include <stdbool.h>

struct dpt_gemm_engine;

struct dpt_cpu_device {
    struct dpt_device base;
    const struct dpt_cpu_kernels *kernels;
};

/* Two kinds of workspace: an op keeps its own while it runs products. */
enum dpt_workspace_kind { DPT_WORKSPACE_OP, DPT_WORKSPACE_GEMM, DPT_WORKSPACE_COUNT };

struct dpt_cpu_stream {
    struct dpt_stream base;
    const struct dpt_cpu_kernels *kernels;
    struct dpt_pool *pool;
    /* Threads that compute now. Products are prepared for all threads of the pool. */
    int threads;
    struct dpt_gemm_engine *gemm;
    struct {
        char *ptr;
        size_t bytes;
    } workspaces[DPT_WORKSPACE_COUNT];
};

/* Workspace for the duration of one op: `shared` bytes, and `each` bytes per thread, all aligned to
 * 64. */
struct dpt_workspace {
    char *shared;
    char *threads;
    size_t each;
};

static inline struct dpt_cpu_stream *dpt_cpu_stream(struct dpt_stream *s)
{
    return (struct dpt_cpu_stream *)s;
}

/* The context of items that need only the op's arguments and a workspace. */
struct dpt_cpu_op {
    const struct dpt_cpu_kernels *kernels;
    const void *a; /* the op's arguments */
    struct dpt_workspace w;
};

/* Runs `item` for each of `items`; its context is a struct dpt_cpu_op. */
static inline void dpt_cpu_run_op(const struct dpt_cpu_stream *s, int64_t items, dpt_pool_fn *item,
                                  const void *a)
{
    struct dpt_cpu_op op = {.kernels = s->kernels, .a = a};
    dpt_pool_run(s->pool, items, item, &op);
}

static inline void *dpt_workspace_of(const struct dpt_workspace *w, int thread)
{
    return w->threads + (size_t)thread * w->each;
}

static inline size_t dpt_round64(size_t bytes)
{
    return (bytes + 63) & ~(size_t)63;
}

static inline int64_t dpt_ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static inline int64_t dpt_min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Whether an op without a workspace computes now. False while the stream prepares or has an
 * error. */
static inline bool dpt_cpu_posts(struct dpt_cpu_stream *s, enum dpt_dtype dtype, const char *op)
{
    return dpt_stream_begin(&s->base, dtype, op) && !s->base.preparing;
}

/* Gives the op its workspace. Enlarges the stream's workspace if this op needs more than any op
 * before. Returns false while the stream prepares, after the enlargement: the op ends there. Also
 * returns false, with the error set, when memory is short. */
bool dpt_cpu_workspace(struct dpt_cpu_stream *s, enum dpt_workspace_kind kind, size_t shared,
                       size_t each, struct dpt_workspace *ret);

/* The ops, one file per family. */
#define DPT_OP_VALUES(name, class, parameters, names) void dpt_cpu_##name parameters;
#define DPT_OP_QUERY(name, result, parameters, names) result dpt_cpu_##name parameters;
#include "kernels/ops.def"

#endif
