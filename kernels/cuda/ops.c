/* Ops that are one launch: what they need of the stream, and the launch (launch.h). */
#include "kernels/cuda/attention_cudnn.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/stream.h"

#include <cuda_runtime_api.h>
#include <stdio.h>

/* Whether an op with no workspace is to be posted now. */
static bool posts(struct dpt_cuda_stream *s, enum dpt_dtype dtype, const char *op)
{
    return dpt_cuda_begin(s, dtype, op) && !s->preparing;
}

void dpt_cuda_layernorm_forward(struct dpt_stream *stream, const struct dpt_layernorm_forward *a)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    DPT_ASSERT(s->preparing || !a->beta == !a->mean);
    if (posts(s, a->dtype, "layernorm"))
        (void)dpt_cuda_posted(s, dpt_launch_layernorm_forward(s->queue, a), "layernorm");
}

void dpt_cuda_layernorm_backward(struct dpt_stream *stream, const struct dpt_layernorm_backward *a)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    const size_t floats = (size_t)dpt_launch_layernorm_backward_floats(a->n, a->c);
    void *work;
    DPT_ASSERT(s->preparing || (a->dgamma ? !a->dbeta == !a->mean : !a->dbeta));
    if (dpt_cuda_begin(s, a->dtype, "layernorm backward") &&
        dpt_cuda_workspace(s, floats * sizeof(float), &work))
        (void)dpt_cuda_posted(s, dpt_launch_layernorm_backward(s->queue, a, work),
                              "layernorm backward");
}

void dpt_cuda_gelu_forward(struct dpt_stream *stream, const struct dpt_gelu *a)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    if (posts(s, a->dtype, "gelu"))
        (void)dpt_cuda_posted(s, dpt_launch_gelu(s->queue, a), "gelu");
}

void dpt_cuda_gelu_backward(struct dpt_stream *stream, const struct dpt_gelu *a)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    if (posts(s, a->dtype, "gelu backward"))
        (void)dpt_cuda_posted(s, dpt_launch_gelu_grad(s->queue, a), "gelu backward");
}

void dpt_cuda_swiglu_forward(struct dpt_stream *stream, const struct dpt_swiglu *a)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    if (posts(s, a->dtype, "swiglu"))
        (void)dpt_cuda_posted(s, dpt_launch_swiglu(s->queue, a), "swiglu");
}

void dpt_cuda_swiglu_backward(struct dpt_stream *stream, const struct dpt_swiglu *a)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    if (posts(s, a->dtype, "swiglu backward"))
        (void)dpt_cuda_posted(s, dpt_launch_swiglu_grad(s->queue, a), "swiglu backward");
}

void dpt_cuda_rope_table(struct dpt_stream *stream, const struct dpt_rope_table *a)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    DPT_ASSERT(a->half > 0 && a->half <= DPT_ROPE_HALF_MAX);
    if (posts(s, DPT_F32, "rope table"))
        (void)dpt_cuda_posted(s, dpt_launch_rope_table(s->queue, a), "rope table");
}

void dpt_cuda_rope(struct dpt_stream *stream, const struct dpt_rope *a)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    DPT_ASSERT(a->t > 0 && a->heads > 0 && a->head_size % 2 == 0 &&
               a->heads * a->head_size <= a->stride);
    if (posts(s, a->dtype, "rope"))
        (void)dpt_cuda_posted(s, dpt_launch_rope(s->queue, a), "rope");
}

/* Heads there are kernels for. */
static bool heads_fit(struct dpt_cuda_stream *s, int64_t heads, int64_t kv_heads, int64_t channels)
{
    DPT_ASSERT(kv_heads > 0 && heads % kv_heads == 0);
    if (channels <= DPT_CUDA_HEAD_CHANNELS_MAX)
        return true;
    char text[128];
    (void)snprintf(text, sizeof text,
                   "attention: heads of %lld channels; the CUDA device has at most %d",
                   (long long)channels, DPT_CUDA_HEAD_CHANNELS_MAX);
    dpt_cuda_fail(s, DPT_EUNSUPPORTED, text);
    return false;
}

void dpt_cuda_attention_forward(struct dpt_stream *stream, const struct dpt_attention_forward *a)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    if (!dpt_cuda_begin(s, a->dtype, "attention") || dpt_cudnn_attention_forward(s, a))
        return;
    if (heads_fit(s, a->heads, a->kv_heads, a->head_size) && !s->preparing)
        (void)dpt_cuda_posted(s, dpt_launch_attention_forward(s->queue, a), "attention");
}

void dpt_cuda_attention_backward(struct dpt_stream *stream, const struct dpt_attention_backward *a)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    const size_t floats = (size_t)dpt_launch_attention_backward_floats(a->b, a->t, a->heads);
    void *work;
    if (!dpt_cuda_begin(s, a->dtype, "attention backward") || dpt_cudnn_attention_backward(s, a))
        return;
    if (heads_fit(s, a->heads, a->kv_heads, a->head_size) &&
        dpt_cuda_workspace(s, floats * sizeof(float), &work))
        (void)dpt_cuda_posted(
            s,
            dpt_launch_attention_backward(s->queue, a, work, dpt_cuda_device_of(s)->shared_bytes),
            "attention backward");
}

void dpt_cuda_residual(struct dpt_stream *stream, const struct dpt_residual *a)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    if (posts(s, a->dtype, "residual"))
        (void)dpt_cuda_posted(s, dpt_launch_residual(s->queue, a), "residual");
}

/* One kernel, but with dropout. */
void dpt_cuda_residual_norm(struct dpt_stream *stream, const struct dpt_residual_norm *a)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    if (a->dropout.p > 0.0f)
        dpt_residual_norm_by_two(stream, dpt_cuda_residual, dpt_cuda_layernorm_forward, a);
    else if (posts(s, a->dtype, "residual and norm"))
        (void)dpt_cuda_posted(s, dpt_launch_residual_norm(s->queue, a), "residual and norm");
}

void dpt_cuda_dropout_backward(struct dpt_stream *stream, const struct dpt_dropout_backward *a)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    if (a->dropout.p <= 0.0f && a->dx != a->dy)
        dpt_cuda_copy(stream, (size_t)a->n * dpt_dtype_bytes(a->dtype), a->dy, a->dx);
    else if (posts(s, a->dtype, "dropout backward") && a->dropout.p > 0.0f)
        (void)dpt_cuda_posted(s, dpt_launch_dropout_backward(s->queue, a), "dropout backward");
}

void dpt_cuda_embedding_forward(struct dpt_stream *stream, const struct dpt_embedding_forward *a)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    if (posts(s, a->dtype, "embedding"))
        (void)dpt_cuda_posted(s, dpt_launch_embedding_forward(s->queue, a), "embedding");
}

void dpt_cuda_embedding_backward(struct dpt_stream *stream, const struct dpt_embedding_backward *a)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    const int64_t n = a->b * a->t;
    const size_t bytes = (size_t)dpt_launch_embedding_backward_bytes(n, a->c);
    void *work;
    DPT_ASSERT(n <= INT32_MAX && (!a->dwpe || a->t <= a->context));
    if (dpt_cuda_begin(s, a->dtype, "embedding backward") && dpt_cuda_workspace(s, bytes, &work))
        (void)dpt_cuda_posted(s, dpt_launch_embedding_backward(s->queue, a, work),
                              "embedding backward");
}

void dpt_cuda_last_token_forward(struct dpt_stream *stream, const struct dpt_last_token *a)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    if (posts(s, a->dtype, "last token"))
        (void)dpt_cuda_posted(s, dpt_launch_last_token(s->queue, a), "last token");
}

void dpt_cuda_last_token_backward(struct dpt_stream *stream, const struct dpt_last_token *a)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    if (posts(s, a->dtype, "last token backward"))
        (void)dpt_cuda_posted(s, dpt_launch_last_token_grad(s->queue, a), "last token backward");
}

void dpt_cuda_batchnorm_forward(struct dpt_stream *stream, const struct dpt_batchnorm_forward *a)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    const size_t floats = (size_t)dpt_launch_batchnorm_floats(a->n, a->c);
    void *work;
    DPT_ASSERT(s->preparing || !a->running_mean == !a->running_var);
    DPT_ASSERT(s->preparing || a->running_mean || a->n >= 2);
    if (dpt_cuda_begin(s, a->dtype, "batch norm") &&
        dpt_cuda_workspace(s, floats * sizeof(float), &work))
        (void)dpt_cuda_posted(s, dpt_launch_batchnorm_forward(s->queue, a, work), "batch norm");
}

void dpt_cuda_batchnorm_backward(struct dpt_stream *stream, const struct dpt_batchnorm_backward *a)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    const size_t floats = (size_t)dpt_launch_batchnorm_floats(a->n, a->c);
    void *work;
    DPT_ASSERT(s->preparing || (!a->dmean == !a->dvar && !a->dgamma == !a->dbeta));
    if (dpt_cuda_begin(s, a->dtype, "batch norm backward") &&
        dpt_cuda_workspace(s, floats * sizeof(float), &work))
        (void)dpt_cuda_posted(s, dpt_launch_batchnorm_backward(s->queue, a, work),
                              "batch norm backward");
}

void dpt_cuda_maxpool_forward(struct dpt_stream *stream, const struct dpt_maxpool_forward *a)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    DPT_ASSERT(a->of.kernel % 2 == 1 && a->of.kernel <= DPT_WINDOW_MAX && a->of.stride > 0);
    if (posts(s, a->dtype, "max pool"))
        (void)dpt_cuda_posted(s, dpt_launch_maxpool_forward(s->queue, a), "max pool");
}

void dpt_cuda_maxpool_backward(struct dpt_stream *stream, const struct dpt_maxpool_backward *a)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    DPT_ASSERT(a->of.kernel % 2 == 1 && a->of.kernel <= DPT_WINDOW_MAX && a->of.stride > 0);
    if (posts(s, a->dtype, "max pool backward"))
        (void)dpt_cuda_posted(s, dpt_launch_maxpool_backward(s->queue, a), "max pool backward");
}

void dpt_cuda_avgpool_forward(struct dpt_stream *stream, const struct dpt_avgpool *a)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    if (posts(s, a->dtype, "average pool"))
        (void)dpt_cuda_posted(s, dpt_launch_avgpool_forward(s->queue, a), "average pool");
}

void dpt_cuda_avgpool_backward(struct dpt_stream *stream, const struct dpt_avgpool *a)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    if (posts(s, a->dtype, "average pool backward"))
        (void)dpt_cuda_posted(s, dpt_launch_avgpool_backward(s->queue, a), "average pool backward");
}

void dpt_cuda_linear_row(struct dpt_stream *stream, const struct dpt_linear_row *a)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    if (posts(s, DPT_F32, "linear row"))
        (void)dpt_cuda_posted(s, dpt_launch_linear_row(s->queue, a), "linear row");
}

/* Rows whose scores a block can keep. */
static bool rows_fit(struct dpt_cuda_stream *s, int64_t rows)
{
    const int bytes = dpt_cuda_device_of(s)->shared_bytes;
    const int64_t most = dpt_launch_attention_rows_max(bytes);
    if (rows <= most)
        return true;
    char text[192];
    (void)snprintf(text, sizeof text,
                   "attention rows: %lld positions; this CUDA device, with %d bytes of shared "
                   "memory a block, has room for %lld; take a shorter context",
                   (long long)rows, bytes, (long long)most);
    dpt_cuda_fail(s, DPT_EUNSUPPORTED, text);
    return false;
}

void dpt_cuda_attention_rows(struct dpt_stream *stream, const struct dpt_attention_rows *a)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    DPT_ASSERT(a->kv_heads > 0 && a->heads % a->kv_heads == 0 && a->first < a->end);
    if (dpt_cuda_begin(s, DPT_F32, "attention rows") && rows_fit(s, a->end) && !s->preparing)
        (void)dpt_cuda_posted(s, dpt_launch_attention_rows(s->queue, a), "attention rows");
}

void dpt_cuda_logits(struct dpt_stream *stream, const struct dpt_logits *a)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    if (posts(s, DPT_F32, "logits"))
        (void)dpt_cuda_posted(s, dpt_launch_logits(s->queue, a), "logits");
}

void dpt_cuda_adamw(struct dpt_stream *stream, const struct dpt_adamw *a)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    if (posts(s, a->copy_dtype, "adamw"))
        (void)dpt_cuda_posted(s, dpt_launch_adamw(s->queue, a), "adamw");
}

void dpt_cuda_sgd(struct dpt_stream *stream, const struct dpt_sgd *a)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    if (posts(s, a->copy_dtype, "sgd"))
        (void)dpt_cuda_posted(s, dpt_launch_sgd(s->queue, a), "sgd");
}

void dpt_cuda_add(struct dpt_stream *stream, int64_t n, const float *a, const float *b, float *dst)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    if (posts(s, DPT_F32, "add"))
        (void)dpt_cuda_posted(s, dpt_launch_add(s->queue, n, a, b, dst), "add");
}

void dpt_cuda_ordered_sum(struct dpt_stream *stream, const struct dpt_ordered_sum *a)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    if (posts(s, a->dtype, "ordered_sum"))
        (void)dpt_cuda_posted(s, dpt_launch_ordered_sum(s->queue, a), "ordered_sum");
}

/* Either side may be memory of the host. */
void dpt_cuda_copy(struct dpt_stream *stream, size_t bytes, const void *src, void *dst)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    if (posts(s, DPT_F32, "copy") && bytes > 0)
        (void)dpt_cuda_posted(s, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, s->queue),
                              "copy");
}

void dpt_cuda_cast(struct dpt_stream *stream, int64_t n, const float *src, enum dpt_dtype dtype,
                   void *dst)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    if (posts(s, dtype, "cast"))
        (void)dpt_cuda_posted(s, dpt_launch_cast(s->queue, n, src, dtype, dst), "cast");
}

void dpt_cuda_widen(struct dpt_stream *stream, int64_t n, enum dpt_dtype dtype, const void *src,
                    float *dst)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    if (posts(s, dtype, "widen"))
        (void)dpt_cuda_posted(s, dpt_launch_widen(s->queue, n, dtype, src, dst), "widen");
}

void dpt_cuda_round_to(struct dpt_stream *stream, int64_t n, enum dpt_dtype dtype, float *x)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    if (posts(s, dtype, "round"))
        (void)dpt_cuda_posted(s, dpt_launch_round_to(s->queue, n, dtype, x), "round");
}

void dpt_cuda_sumsq_blocks(struct dpt_stream *stream, int64_t n, int64_t block, const float *x,
                           double *ret)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    DPT_ASSERT(block > 0);
    if (posts(s, DPT_F32, "sumsq_blocks"))
        (void)dpt_cuda_posted(s, dpt_launch_sumsq_blocks(s->queue, n, block, x, ret),
                              "sumsq_blocks");
}

void dpt_cuda_fill_normal(struct dpt_stream *stream, int64_t n, struct dpt_rng_key key,
                          uint64_t first, float mean, float std, float *dst)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    if (posts(s, DPT_F32, "fill_normal"))
        (void)dpt_cuda_posted(s, dpt_launch_fill_normal(s->queue, n, key, first, mean, std, dst),
                              "fill_normal");
}

void dpt_cuda_fill_uniform(struct dpt_stream *stream, int64_t n, struct dpt_rng_key key,
                           uint64_t first, float bound, float *dst)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    if (posts(s, DPT_F32, "fill_uniform"))
        (void)dpt_cuda_posted(s, dpt_launch_fill_uniform(s->queue, n, key, first, bound, dst),
                              "fill_uniform");
}

void dpt_cuda_scale(struct dpt_stream *stream, int64_t n, enum dpt_dtype dtype, float factor,
                    void *x)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    if (posts(s, dtype, "scale"))
        (void)dpt_cuda_posted(s, dpt_launch_scale(s->queue, n, dtype, factor, x), "scale");
}

void dpt_cuda_fill(struct dpt_stream *stream, int64_t n, float value, float *dst)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    if (posts(s, DPT_F32, "fill"))
        (void)dpt_cuda_posted(s, dpt_launch_fill(s->queue, n, value, dst), "fill");
}

void dpt_cuda_orthonormalise(struct dpt_stream *stream, int64_t n, int64_t r, float *x)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    if (posts(s, DPT_F32, "orthonormalise"))
        (void)dpt_cuda_posted(s, dpt_launch_orthonormalise(s->queue, n, r, x), "orthonormalise");
}
