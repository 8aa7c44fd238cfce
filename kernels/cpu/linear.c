/* Linear layers: three products, and the sum of columns for the bias. The packed form of w has two
 * parts: the form for the forward product, then the form for the gradient of the inputs. */
#include "kernels/cpu/gemm.h"

enum { COLUMNS = 128 };

/* A layer's weight. Its element (i, o) is w[i*in_stride + o*out_stride]. */
struct weight {
    enum dpt_dtype dtype;
    int64_t in, out, in_stride, out_stride;
    const void *w;
};

static struct weight weight_of(enum dpt_dtype dtype, int64_t in, int64_t out, bool out_in,
                               const void *w)
{
    return (struct weight){.dtype = dtype,
                           .in = in,
                           .out = out,
                           .in_stride = out_in ? 1 : out,
                           .out_stride = out_in ? in : 1,
                           .w = w};
}

static struct weight weight_to_pack(const struct dpt_pack *a)
{
    return a->out_in ? weight_of(a->dtype, a->cols, a->rows, true, a->w)
                     : weight_of(a->dtype, a->rows, a->cols, false, a->w);
}

/* The part of w in the product y = x w, or with `back` in dx = dy w^T. The caller sets rows, x and
 * y. */
static struct dpt_gemm weight_product(const struct weight *w, bool back)
{
    return (struct dpt_gemm){.n = back ? w->in : w->out,
                             .k = back ? w->out : w->in,
                             .dtype = w->dtype,
                             .a_row = back ? w->out : w->in,
                             .a_col = 1,
                             .b = w->w,
                             .b_row = back ? w->out_stride : w->in_stride,
                             .b_col = back ? w->in_stride : w->out_stride};
}

size_t dpt_cpu_linear_packed_bytes(struct dpt_cpu_stream *s, const struct dpt_pack *a)
{
    const struct weight w = weight_to_pack(a);
    const struct dpt_gemm y = weight_product(&w, false), dx = weight_product(&w, true);
    return dpt_cpu_gemm_packed_bytes(s, &y) + dpt_cpu_gemm_packed_bytes(s, &dx);
}

void dpt_cpu_linear_pack(struct dpt_cpu_stream *s, const struct dpt_pack *a)
{
    const struct weight w = weight_to_pack(a);
    const struct dpt_gemm y = weight_product(&w, false), dx = weight_product(&w, true);
    const size_t at = dpt_cpu_gemm_packed_bytes(s, &y);
    dpt_cpu_gemm_pack(s, &y, a->packed);
    dpt_cpu_gemm_pack(s, &dx, a->packed ? (char *)a->packed + at : NULL);
}

void dpt_cpu_linear_forward(struct dpt_stream *stream, const struct dpt_linear_forward *a)
{
    struct dpt_cpu_stream *s = dpt_cpu_stream(stream);
    if (!dpt_stream_begin(&s->base, a->dtype, "linear"))
        return;
    const struct weight w = weight_of(a->dtype, a->in, a->out, a->out_in, a->w);
    struct dpt_gemm y = weight_product(&w, false);
    const int64_t stride = a->y_stride ? a->y_stride : a->out;
    DPT_ASSERT(s->base.preparing || (stride == a->out && !a->add_y) || (!a->bias && !a->gelu));
    y.m = a->n;
    y.a = a->x;
    y.b_packed = a->packed;
    y.store = (struct dpt_gemm_store){.dtype = a->dtype,
                                      .c = a->y,
                                      .ldc = stride,
                                      .bias = a->bias,
                                      .gelu = a->gelu,
                                      .accumulate = a->add_y};
    dpt_cpu_gemm(s, &y);
}

static void bias_item(void *ctx, int64_t item, int thread)
{
    const struct dpt_cpu_op *op = ctx;
    const struct dpt_linear_backward *a = op->a;
    const int64_t at = item * COLUMNS;
    (void)thread;
    op->kernels->of[a->dtype]->column_sums(a->n, dpt_min64(COLUMNS, a->out - at),
                                           dpt_at(a->dy, a->dtype, at), a->out, a->accumulate,
                                           (float *)a->dbias + at);
}

static int64_t dy_stride(const struct dpt_linear_backward *a)
{
    return a->dy_stride ? a->dy_stride : a->out;
}

static void linear_input_gradient(struct dpt_cpu_stream *s, const struct dpt_linear_backward *a)
{
    const struct weight w = weight_of(a->dtype, a->in, a->out, a->out_in, a->w);
    struct dpt_gemm dx = weight_product(&w, true);
    dx.m = a->n;
    dx.a = a->dy;
    dx.a_row = dy_stride(a);
    if (a->packed) {
        const struct dpt_gemm y = weight_product(&w, false);
        dx.b_packed = (const char *)a->packed + dpt_cpu_gemm_packed_bytes(s, &y);
    }
    dx.store = (struct dpt_gemm_store){
        .dtype = a->dtype, .c = a->dx, .ldc = a->in, .accumulate = a->add_dx};
    dpt_cpu_gemm(s, &dx);
    if (a->gelu_x && a->dx && !s->base.preparing)
        dpt_cpu_gelu_backward(
            &s->base,
            &(struct dpt_gelu){
                .n = a->n * a->in, .dtype = a->dtype, .x = a->gelu_x, .dy = a->dx, .out = a->dx});
}

/* dw (in, out) = x^T dy, or (out, in) = dy^T x. */
static void weight_gradient(struct dpt_cpu_stream *s, const struct dpt_linear_backward *a)
{
    const int64_t rows = a->out_in ? a->out : a->in, cols = a->out_in ? a->in : a->out;
    const struct dpt_gemm dw = {
        .m = rows,
        .n = cols,
        .k = a->n,
        .dtype = a->dtype,
        .a = a->out_in ? a->dy : a->x,
        .a_row = 1,
        .a_col = a->out_in ? dy_stride(a) : a->in,
        .b = a->out_in ? a->x : a->dy,
        .b_row = a->out_in ? a->in : dy_stride(a),
        .b_col = 1,
        .store = {.c = a->dw, .ldc = cols, .accumulate = a->accumulate, .stream = true}};
    dpt_cpu_gemm(s, &dw);
}

void dpt_cpu_linear_backward(struct dpt_stream *stream, const struct dpt_linear_backward *a)
{
    struct dpt_cpu_stream *s = dpt_cpu_stream(stream);
    if (!dpt_stream_begin(&s->base, a->dtype, "linear backward"))
        return;
    DPT_ASSERT(s->base.preparing ||
               ((dy_stride(a) == a->out || !a->dbias) && !(a->add_dx && a->gelu_x)));
    if (a->dx || s->base.preparing)
        linear_input_gradient(s, a);
    if (a->dw || s->base.preparing)
        weight_gradient(s, a);
    if (a->dbias && !s->base.preparing)
        dpt_cpu_run_op(s, dpt_ceil_div(a->out, COLUMNS), bias_item, a);
}
