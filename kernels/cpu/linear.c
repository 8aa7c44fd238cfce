/* Linear layers: three products, and the sum of columns for the bias. The packed form of w is that
 * for the forward product, then that for the inputs' gradient. */
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/packed.h"

enum { COLUMNS = 128 };

/* A layer's weight, and where its element (i, o) lies: w[i*in_stride + o*out_stride]. */
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

/* What w has to do with y = x w, and with dx = dy w^T; without rows, x and y. */
static struct dpt_gemm forward_product(const struct weight *w)
{
    return (struct dpt_gemm){.n = w->out,
                             .k = w->in,
                             .dtype = w->dtype,
                             .a_row = w->in,
                             .a_col = 1,
                             .b = w->w,
                             .b_row = w->in_stride,
                             .b_col = w->out_stride};
}

static struct dpt_gemm input_product(const struct weight *w)
{
    return (struct dpt_gemm){.n = w->in,
                             .k = w->out,
                             .dtype = w->dtype,
                             .a_row = w->out,
                             .a_col = 1,
                             .b = w->w,
                             .b_row = w->out_stride,
                             .b_col = w->in_stride};
}

size_t dpt_cpu_linear_packed_bytes(struct dpt_cpu_stream *s, const struct dpt_pack *a)
{
    const struct weight w = weight_to_pack(a);
    const struct dpt_gemm y = forward_product(&w), dx = input_product(&w);
    return dpt_cpu_gemm_packed_bytes(s, &y) + dpt_cpu_gemm_packed_bytes(s, &dx);
}

void dpt_cpu_linear_pack(struct dpt_cpu_stream *s, const struct dpt_pack *a)
{
    const struct weight w = weight_to_pack(a);
    const struct dpt_gemm y = forward_product(&w), dx = input_product(&w);
    const size_t at = dpt_cpu_gemm_packed_bytes(s, &y);
    dpt_cpu_gemm_pack(s, &y, a->packed);
    dpt_cpu_gemm_pack(s, &dx, a->packed ? (char *)a->packed + at : NULL);
}

void dpt_cpu_linear_forward(struct dpt_stream *stream, const struct dpt_linear_forward *a)
{
    struct dpt_cpu_stream *s = dpt_cpu_stream(stream);
    if (!dpt_cpu_begin(s, a->dtype, "linear"))
        return;
    const struct weight w = weight_of(a->dtype, a->in, a->out, a->out_in, a->w);
    struct dpt_gemm y = forward_product(&w);
    const int64_t stride = a->y_stride ? a->y_stride : a->out;
    DPT_ASSERT(s->preparing || (stride == a->out && !a->add_y) || (!a->bias && !a->gelu));
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

struct bias_job {
    const struct dpt_elem_kernels *kernels;
    const struct dpt_linear_backward *a;
};

static void bias_item(void *ctx, int64_t item, int thread)
{
    const struct bias_job *j = ctx;
    int64_t at = item * COLUMNS, out = j->a->out;
    (void)thread;
    j->kernels->column_sums(j->a->n, dpt_min64(COLUMNS, out - at),
                            dpt_at(j->a->dy, j->a->dtype, at), out, j->a->accumulate,
                            (float *)j->a->dbias + at);
}

static int64_t dy_stride(const struct dpt_linear_backward *a)
{
    return a->dy_stride ? a->dy_stride : a->out;
}

static void input_gradient(struct dpt_cpu_stream *s, const struct dpt_linear_backward *a)
{
    const struct weight w = weight_of(a->dtype, a->in, a->out, a->out_in, a->w);
    struct dpt_gemm dx = input_product(&w);
    dx.m = a->n;
    dx.a = a->dy;
    dx.a_row = dy_stride(a);
    if (a->packed) {
        const struct dpt_gemm y = forward_product(&w);
        dx.b_packed = (const char *)a->packed + dpt_cpu_gemm_packed_bytes(s, &y);
    }
    dx.store = (struct dpt_gemm_store){
        .dtype = a->dtype, .c = a->dx, .ldc = a->in, .accumulate = a->add_dx};
    dpt_cpu_gemm(s, &dx);
    if (a->gelu_x && a->dx && !s->preparing)
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
    if (!dpt_cpu_begin(s, a->dtype, "linear backward"))
        return;
    DPT_ASSERT(s->preparing ||
               ((dy_stride(a) == a->out || !a->dbias) && !(a->add_dx && a->gelu_x)));
    if (a->dx || s->preparing)
        input_gradient(s, a);
    if (a->dw || s->preparing)
        weight_gradient(s, a);
    struct bias_job job = {.kernels = s->kernels->of[a->dtype], .a = a};
    if (a->dbias && !s->preparing)
        dpt_pool_run(s->pool, dpt_ceil_div(a->out, COLUMNS), bias_item, &job);
}
