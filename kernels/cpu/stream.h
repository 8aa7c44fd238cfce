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
void dpt_cpu_linear_forward(struct dpt_stream *s, const struct dpt_linear_forward *a);
void dpt_cpu_linear_backward(struct dpt_stream *s, const struct dpt_linear_backward *a);
void dpt_cpu_layernorm_forward(struct dpt_stream *s, const struct dpt_layernorm_forward *a);
void dpt_cpu_layernorm_backward(struct dpt_stream *s, const struct dpt_layernorm_backward *a);
void dpt_cpu_gelu_forward(struct dpt_stream *s, const struct dpt_gelu *a);
void dpt_cpu_gelu_backward(struct dpt_stream *s, const struct dpt_gelu *a);
void dpt_cpu_attention_forward(struct dpt_stream *s, const struct dpt_attention_forward *a);
void dpt_cpu_attention_backward(struct dpt_stream *s, const struct dpt_attention_backward *a);
void dpt_cpu_residual(struct dpt_stream *s, const struct dpt_residual *a);
void dpt_cpu_residual_norm(struct dpt_stream *s, const struct dpt_residual_norm *a);
void dpt_cpu_dropout_backward(struct dpt_stream *s, const struct dpt_dropout_backward *a);
void dpt_cpu_embedding_forward(struct dpt_stream *s, const struct dpt_embedding_forward *a);
void dpt_cpu_embedding_backward(struct dpt_stream *s, const struct dpt_embedding_backward *a);
void dpt_cpu_head_loss(struct dpt_stream *s, const struct dpt_head_loss *a);
void dpt_cpu_linear_row(struct dpt_stream *s, const struct dpt_linear_row *a);
void dpt_cpu_attention_rows(struct dpt_stream *s, const struct dpt_attention_rows *a);
void dpt_cpu_logits(struct dpt_stream *s, const struct dpt_logits *a);
void dpt_cpu_adamw(struct dpt_stream *s, const struct dpt_adamw *a);
void dpt_cpu_sgd(struct dpt_stream *s, const struct dpt_sgd *a);
size_t dpt_cpu_packed_bytes(struct dpt_stream *s, const struct dpt_pack *a);
void dpt_cpu_pack(struct dpt_stream *s, const struct dpt_pack *a);
size_t dpt_cpu_operand_bytes(struct dpt_stream *s, enum dpt_dtype dtype);
void dpt_cpu_add(struct dpt_stream *s, int64_t n, const float *a, const float *b, float *dst);
void dpt_cpu_ordered_sum(struct dpt_stream *s, const struct dpt_ordered_sum *a);
void dpt_cpu_copy(struct dpt_stream *s, size_t bytes, const void *src, void *dst);
void dpt_cpu_cast(struct dpt_stream *s, int64_t n, const float *src, enum dpt_dtype dtype,
                  void *dst);
void dpt_cpu_widen(struct dpt_stream *s, int64_t n, enum dpt_dtype dtype, const void *src,
                   float *dst);
void dpt_cpu_round_to(struct dpt_stream *s, int64_t n, enum dpt_dtype dtype, float *x);
void dpt_cpu_sumsq_blocks(struct dpt_stream *s, int64_t n, int64_t block, const float *x,
                          double *ret);
void dpt_cpu_fill_normal(struct dpt_stream *s, int64_t n, struct dpt_rng_key key, uint64_t first,
                         float mean, float std, float *dst);
void dpt_cpu_fill(struct dpt_stream *s, int64_t n, float value, float *dst);
void dpt_cpu_orthonormalise(struct dpt_stream *s, int64_t n, int64_t r, float *x);

#endif
