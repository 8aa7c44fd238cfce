/* Ops that are one launch (launch.h): checks, workspace, and the launch. */
#include "kernels/cuda/cudnn_ops.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/stream.h"

#include <cuda_runtime_api.h>
#include <stdio.h>

/* --- ops that need only the queue --- */

#define LAUNCHED_OP(name, type, dtype, text, holds)                                                \
    void dpt_cuda_##name(struct dpt_stream *stream, const struct type *a)                          \
    {                                                                                              \
        struct dpt_cuda_stream *s = dpt_cuda_stream(stream);                                       \
        if (!dpt_cuda_begin(s, dtype, text) || s->base.preparing)                                  \
            return;                                                                                \
        DPT_ASSERT(holds);                                                                         \
        DPT_CUDA_LAUNCH(s, text, name, a);                                                         \
    }
DPT_CUDA_LAUNCHED_OPS(LAUNCHED_OP)

#define LAUNCHED_VALUES(name, dtype, parameters, ...)                                              \
    void dpt_cuda_##name parameters                                                                \
    {                                                                                              \
        struct dpt_cuda_stream *s = dpt_cuda_stream(stream);                                       \
        if (dpt_cuda_begin(s, dtype, #name))                                                       \
            DPT_CUDA_LAUNCH(s, #name, name, __VA_ARGS__);                                          \
    }
LAUNCHED_VALUES(add, DPT_F32,
                (struct dpt_stream * stream, int64_t n, const float *a, const float *b, float *dst),
                n, a, b, dst)
LAUNCHED_VALUES(cast, dtype,
                (struct dpt_stream * stream, int64_t n, const float *src, enum dpt_dtype dtype,
                 void *dst),
                n, src, dtype, dst)
LAUNCHED_VALUES(widen, dtype,
                (struct dpt_stream * stream, int64_t n, enum dpt_dtype dtype, const void *src,
                 float *dst),
                n, dtype, src, dst)
LAUNCHED_VALUES(round_to, dtype,
                (struct dpt_stream * stream, int64_t n, enum dpt_dtype dtype, float *x), n, dtype,
                x)
LAUNCHED_VALUES(scale, dtype,
                (struct dpt_stream * stream, int64_t n, enum dpt_dtype dtype, float factor,
                 void *x),
                n, dtype, factor, x)
LAUNCHED_VALUES(sumsq_blocks, DPT_F32,
                (struct dpt_stream * stream, int64_t n, int64_t block, const float *x, double *ret),
                n, block, x, ret)
LAUNCHED_VALUES(fill, DPT_F32, (struct dpt_stream * stream, int64_t n, float value, float *dst), n,
                value, dst)
LAUNCHED_VALUES(fill_normal, DPT_F32,
                (struct dpt_stream * stream, int64_t n, const struct dpt_normal *of, float *dst), n,
                of, dst)
LAUNCHED_VALUES(fill_uniform, DPT_F32,
                (struct dpt_stream * stream, int64_t n, const struct dpt_uniform *of, float *dst),
                n, of, dst)
LAUNCHED_VALUES(orthonormalise, DPT_F32,
                (struct dpt_stream * stream, int64_t n, int64_t r, float *x), n, r, x)

/* src and dst may each be host memory or device memory. */
void dpt_cuda_copy(struct dpt_stream *stream, size_t bytes, const void *src, void *dst)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    if (dpt_cuda_begin(s, DPT_F32, "copy") && !s->base.preparing && bytes > 0)
        (void)dpt_cuda_posted(s, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, s->queue),
                              "copy");
}

#define WORKING_OP(name, type, text, bytes, holds)                                                 \
    void dpt_cuda_##name(struct dpt_stream *stream, const struct type *a)                          \
    {                                                                                              \
        struct dpt_cuda_stream *s = dpt_cuda_stream(stream);                                       \
        void *work;                                                                                \
        if (!dpt_cuda_begin(s, a->dtype, text) || !dpt_cuda_workspace(s, (size_t)(bytes), &work))  \
            return;                                                                                \
        DPT_ASSERT(holds);                                                                         \
        DPT_CUDA_LAUNCH(s, text, name, a, work);                                                   \
    }
DPT_CUDA_WORKING_OPS(WORKING_OP)

/* --- ops with a choice between kernels --- */

/* Without dropout this is one kernel, with dropout two ops. */
void dpt_cuda_residual_norm(struct dpt_stream *stream, const struct dpt_residual_norm *a)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    if (a->dropout.p > 0.0f)
        dpt_residual_norm_by_two(stream, dpt_cuda_residual, dpt_cuda_layernorm_forward, a);
    else if (dpt_cuda_begin(s, a->dtype, "residual and norm"))
        DPT_CUDA_LAUNCH(s, "residual and norm", residual_norm, a);
}

void dpt_cuda_dropout_backward(struct dpt_stream *stream, const struct dpt_dropout_backward *a)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    if (a->dropout.p <= 0.0f && a->dx != a->dy)
        dpt_cuda_copy(stream, (size_t)a->n * dpt_dtype_bytes(a->dtype), a->dy, a->dx);
    else if (dpt_cuda_begin(s, a->dtype, "dropout backward") && a->dropout.p > 0.0f)
        DPT_CUDA_LAUNCH(s, "dropout backward", dropout_backward, a);
}

/* --- attention --- */

/* Whether there are kernels for heads of this size. False: the stream's error is set. */
static bool heads_fit(struct dpt_cuda_stream *s, int64_t heads, int64_t kv_heads, int64_t channels)
{
    DPT_ASSERT(kv_heads > 0 && heads % kv_heads == 0);
    if (channels <= DPT_CUDA_HEAD_CHANNELS_MAX)
        return true;
    char text[128];
    (void)snprintf(text, sizeof text,
                   "attention: heads of %lld channels; the CUDA device has at most %d",
                   (long long)channels, DPT_CUDA_HEAD_CHANNELS_MAX);
    dpt_stream_fail(&s->base, DPT_EUNSUPPORTED, text);
    return false;
}

void dpt_cuda_attention_forward(struct dpt_stream *stream, const struct dpt_attention *a)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    if (!dpt_cuda_begin(s, a->dtype, "attention") || dpt_cudnn_attention_forward(s, a))
        return;
    if (heads_fit(s, a->heads, a->kv_heads, a->head_size))
        DPT_CUDA_LAUNCH(s, "attention", attention_forward, a);
}

void dpt_cuda_attention_backward(struct dpt_stream *stream, const struct dpt_attention *a)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    const size_t floats = (size_t)dpt_launch_attention_backward_floats(a->b, a->t, a->heads);
    void *work;
    if (!dpt_cuda_begin(s, a->dtype, "attention backward") || dpt_cudnn_attention_backward(s, a))
        return;
    if (heads_fit(s, a->heads, a->kv_heads, a->head_size) &&
        dpt_cuda_workspace(s, floats * sizeof(float), &work))
        DPT_CUDA_LAUNCH(s, "attention backward", attention_backward, a, work,
                        dpt_cuda_device_of(s)->shared_bytes);
}

/* Whether a block's shared memory has room for the scores of `rows` rows. False: the stream's error
 * is set. */
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
    dpt_stream_fail(&s->base, DPT_EUNSUPPORTED, text);
    return false;
}

void dpt_cuda_attention_rows(struct dpt_stream *stream, const struct dpt_attention_rows *a)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    DPT_ASSERT(a->kv_heads > 0 && a->heads % a->kv_heads == 0 && a->first < a->end);
    if (dpt_cuda_begin(s, DPT_F32, "attention rows") && rows_fit(s, a->end))
        DPT_CUDA_LAUNCH(s, "attention rows", attention_rows, a);
}
