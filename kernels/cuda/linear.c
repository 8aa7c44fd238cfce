/* Linear layers: three products, GELU, and the sum of columns for the bias. The library reads
 * weights as they are in memory, so no op of this device has a packed form.
 *
 * The slope of GELU is fused into the product before it, but GELU itself is not. Forward stores the
 * input of GELU rounded. With train.activation_checkpointing GELU is computed again from that
 * input, and it must give the same bits. */
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/launch.h"

/* y = x w + bias. If the library has no algorithm that adds a bias, y is first filled with the bias
 * and the product is added to it. The result is still rounded only once. */
static void multiply_with_bias(struct dpt_cuda_stream *s, const struct dpt_linear_forward *a,
                               struct dpt_cuda_gemm *y)
{
    if (y->of.with_bias && dpt_cuda_gemm_fused(s, y) && !s->base.preparing)
        return;
    const bool repeats = y->of.with_bias;
    y->accumulate = repeats || a->add_y;
    /* A preparing stream does not know whether the op has a bias, so it prepares both forms. */
    y->of.with_bias = false;
    if (repeats)
        DPT_CUDA_LAUNCH(s, "linear", repeat_row, a->dtype, a->n, a->out, a->bias, a->y);
    dpt_cuda_gemm(s, y);
}

void dpt_cuda_linear_forward(struct dpt_stream *stream, const struct dpt_linear_forward *a)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    if (!dpt_cuda_begin(s, a->dtype, "linear"))
        return;
    const int64_t stride = a->y_stride ? a->y_stride : a->out;
    const bool plain = stride == a->out && !a->add_y;
    struct dpt_cuda_gemm y = {.of.m = a->n,
                              .of.n = a->out,
                              .of.k = a->in,
                              .of.dtype = a->dtype,
                              .a = a->x,
                              .of.lda = a->in,
                              .b = a->w,
                              .of.ldb = a->out_in ? a->in : a->out,
                              .of.b_transposed = a->out_in,
                              .of.out = a->dtype,
                              .c = a->y,
                              .of.ldc = stride,
                              .of.with_bias = a->bias != NULL || (s->base.preparing && plain),
                              .bias = a->bias};
    DPT_ASSERT(!a->packed && (s->base.preparing || plain || (!a->bias && !a->gelu)));
    multiply_with_bias(s, a, &y);
    const struct dpt_gelu gelu = {.n = a->n * a->out, .dtype = a->dtype, .x = a->y, .out = a->gelu};
    if (a->gelu)
        DPT_CUDA_LAUNCH(s, "linear", gelu_forward, &gelu);
}

static int64_t dy_stride(const struct dpt_linear_backward *a)
{
    return a->dy_stride ? a->dy_stride : a->out;
}

enum { SLOPES_UNIT = 8 }; /* unit of a row's elements for the library's slopes */

/* dx, or with gelu_x the gradient of gelu_x. In f32 the library's slope is not accurate enough, so
 * a separate kernel applies it. */
static void linear_input_gradient(struct dpt_cuda_stream *s, const struct dpt_linear_backward *a,
                                  struct dpt_cuda_gemm *dx)
{
    const bool whole = a->in % SLOPES_UNIT == 0;
    const bool may_fuse =
        a->dtype != DPT_F32 && whole && (a->gelu_x || (s->base.preparing && !a->add_dx));
    dx->of.with_slope = true;
    dx->slope_at = a->gelu_x;
    if (may_fuse && dpt_cuda_gemm_fused(s, dx) && !s->base.preparing)
        return;
    /* A preparing stream does not know whether the op has gelu_x, so it prepares both forms. */
    dx->of.with_slope = false;
    dpt_cuda_gemm(s, dx);
    const struct dpt_gelu slope = {
        .n = a->n * a->in, .dtype = a->dtype, .x = a->gelu_x, .dy = a->dx, .out = a->dx};
    if (a->gelu_x)
        DPT_CUDA_LAUNCH(s, "linear backward", gelu_backward, &slope);
}

/* dw (in, out) = x^T dy, or (out, in) = dy^T x. */
static void weight_gradient(struct dpt_cuda_stream *s, const struct dpt_linear_backward *a)
{
    const int64_t rows = a->out_in ? a->out : a->in, cols = a->out_in ? a->in : a->out;
    const struct dpt_cuda_gemm dw = {.of.m = rows,
                                     .of.n = cols,
                                     .of.k = a->n,
                                     .of.dtype = a->dtype,
                                     .a = a->out_in ? a->dy : a->x,
                                     .of.lda = a->out_in ? dy_stride(a) : a->in,
                                     .of.a_transposed = true,
                                     .b = a->out_in ? a->x : a->dy,
                                     .of.ldb = a->out_in ? a->in : dy_stride(a),
                                     .of.out = DPT_F32,
                                     .c = a->dw,
                                     .of.ldc = cols,
                                     .accumulate = a->accumulate};
    dpt_cuda_gemm(s, &dw);
}

void dpt_cuda_linear_backward(struct dpt_stream *stream, const struct dpt_linear_backward *a)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    void *work;
    if (!dpt_cuda_begin(s, a->dtype, "linear backward"))
        return;
    struct dpt_cuda_gemm dx = {.of.m = a->n,
                               .of.n = a->in,
                               .of.k = a->out,
                               .of.dtype = a->dtype,
                               .a = a->dy,
                               .of.lda = dy_stride(a),
                               .b = a->w,
                               .of.ldb = a->out_in ? a->in : a->out,
                               .of.b_transposed = !a->out_in,
                               .of.out = a->dtype,
                               .c = a->dx,
                               .of.ldc = a->in,
                               .accumulate = a->add_dx};
    DPT_ASSERT(!a->packed && (s->base.preparing || ((dy_stride(a) == a->out || !a->dbias) &&
                                                    !(a->add_dx && a->gelu_x))));
    if (a->dx || s->base.preparing)
        linear_input_gradient(s, a, &dx);
    if (a->dw || s->base.preparing)
        weight_gradient(s, a);
    const size_t bytes = (size_t)dpt_launch_column_sums_floats(a->n, a->out) * sizeof(float);
    if ((!a->dbias && !s->base.preparing) || s->base.error.status != DPT_OK ||
        !dpt_cuda_workspace(s, bytes, &work))
        return;
    const struct dpt_launch_column_sums sums = {.rows = a->n,
                                                .cols = a->out,
                                                .dtype = a->dtype,
                                                .x = a->dy,
                                                .accumulate = a->accumulate,
                                                .work = work,
                                                .ret = a->dbias};
    DPT_CUDA_LAUNCH(s, "linear backward", column_sums, &sums);
}

size_t dpt_cuda_operand_bytes(struct dpt_stream *stream, enum dpt_dtype dtype)
{
    (void)stream;
    return dpt_dtype_bytes(dtype);
}
