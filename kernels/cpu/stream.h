/* Inside of a CPU stream: the pool, the workspace, the products, the sticky error. For kernels/cpu
 * only. */
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

/* Two kinds of working memory, so that an op keeps its own while it runs products. */
enum dpt_workspace_kind { DPT_WORKSPACE_OP, DPT_WORKSPACE_GEMM, DPT_WORKSPACE_COUNT };

struct dpt_cpu_stream {
    struct dpt_stream base;
    const struct dpt_cpu_kernels *kernels;
    struct dpt_pool *pool;
    int threads; /* that compute now; products are ready for all that the pool was created for */
    bool preparing;
    struct dpt_gemm_engine *gemm;
    struct dpt_err
        error; /* first since the last sync; written by the thread that uses the stream */
    struct {
        char *ptr;
        size_t bytes;
    } workspaces[DPT_WORKSPACE_COUNT];
};

/* Memory for the length of one op: `shared` bytes and `each` bytes for every thread, all aligned
 * to 64. */
struct dpt_workspace {
    char *shared;
    char *threads;
    size_t each;
};

static inline struct dpt_cpu_stream *dpt_cpu_stream(struct dpt_stream *s)
{
    return (struct dpt_cpu_stream *)s;
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

/* Element i of p, for pointers that are NULL while a stream prepares. */
static inline const void *dpt_at(const void *p, enum dpt_dtype dtype, int64_t i)
{
    return p ? (const char *)p + (size_t)i * dpt_dtype_bytes(dtype) : NULL;
}

static inline void *dpt_at_out(void *p, enum dpt_dtype dtype, int64_t i)
{
    return p ? (char *)p + (size_t)i * dpt_dtype_bytes(dtype) : NULL;
}

/* Makes `status` with this text the stream's error if it has none. From the thread that uses the
 * stream. */
void dpt_cpu_fail(struct dpt_cpu_stream *s, enum dpt_status status, const char *what);

/* True when the op may go on: a dtype there is, and no error yet. Otherwise the error is (or stays)
 * set. */
bool dpt_cpu_begin(struct dpt_cpu_stream *s, enum dpt_dtype dtype, const char *op);

/* Gives the op its workspace, growing the stream's if this op needs more than any before. While
 * preparing it returns false after growing (the op ends there); also when memory is short, with the
 * error set. */
bool dpt_cpu_workspace(struct dpt_cpu_stream *s, enum dpt_workspace_kind kind, size_t shared,
                       size_t each, struct dpt_workspace *ret);

/* The ops, one file a family. */
#define DPT_OP_VALUES(name, class, parameters, names) void dpt_cpu_##name parameters;
#define DPT_OP_QUERY(name, result, parameters, names) result dpt_cpu_##name parameters;
#include "kernels/ops.def"

#endif
