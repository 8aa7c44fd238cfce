/* Linear layers: three products, and the sum of columns for the bias. The packed form of w is that
 * for the forward product, then that for the inputs' gradient. */
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/packed.h"

enum { COLUMNS = 128 };

/* What w (in, out) has to do with y = x w, and with dx = dy w^T; without rows, x and y. */
static struct dpt_gemm forward_product(enum dpt_dtype dtype, int64_t in, int64_t out, const void *w)
{
    return (struct dpt_gemm){.n = out,
                             .k = in,
                             .dtype = dtype,
                             .a_row = in,
                             .a_col = 1,
                             .b = w,
                             .b_row = out,
                             .b_col = 1};
}

static struct dpt_gemm input_product(enum dpt_dtype dtype, int64_t in, int64_t out, const void *w)
{
    return (struct dpt_gemm){.n = in,
                             .k = out,
                             .dtype = dtype,
                             .a_row = out,
                             .a_col = 1,
                             .b = w,
                             .b_row = 1,
                             .b_col = out};
}

size_t dpt_cpu_linear_packed_bytes(struct dpt_cpu_stream *s, const struct dpt_pack *a)
{
    const struct dpt_gemm y = forward_product(a->dtype, a->rows, a->cols, NULL);
    const struct dpt_gemm dx = input_product(a->dtype, a->rows, a->cols, NULL);
    return dpt_cpu_gemm_packed_bytes(s, &y) + dpt_cpu_gemm_packed_bytes(s, &dx);
}

void dpt_cpu_linear_pack(struct dpt_cpu_stream *s, const struct dpt_pack *a)
{
    const struct dpt_gemm y = forward_product(a->dtype, a->rows, a->cols, a->w);
    const struct dpt_gemm dx = input_product(a->dtype, a->rows, a->cols, a->w);
    const size_t at = dpt_cpu_gemm_packed_bytes(s, &y);
    dpt_cpu_gemm_pack(s, &y, a->packed);
    dpt_cpu_gemm_pack(s, &dx, a->packed ? (char *)a->packed + at : NULL);
}

void dpt_cpu_linear_forward(struct dpt_stream *stream, const struct dpt_linear_forward *a)
{
    struct dpt_cpu_stream *s = dpt_cpu_stream(stream);
    if (!dpt_cpu_begin(s, a->dtype, "linear"))
        return;
    struct dpt_gemm y = forward_product(a->dtype, a->in, a->out, a->w);
    y.m = a->n;
    y.a = a->x;
    y.b_packed = a->packed;
    y.store = (struct dpt_gemm_store){
        .dtype = a->dtype, .c = a->y, .ldc = a->out, .bias = a->bias, .gelu = a->gelu};
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

void dpt_cpu_linear_backward(struct dpt_stream *stream, const struct dpt_linear_backward *a)
{
    struct dpt_cpu_stream *s = dpt_cpu_stream(stream);
    if (!dpt_cpu_begin(s, a->dtype, "linear backward"))
        return;
    if (a->dx || s->preparing) {
        struct dpt_gemm dx = input_product(a->dtype, a->in, a->out, a->w);
        dx.m = a->n;
        dx.a = a->dy;
        if (a->packed) {
            const struct dpt_gemm y = forward_product(a->dtype, a->in, a->out, a->w);
            dx.b_packed = (const char *)a->packed + dpt_cpu_gemm_packed_bytes(s, &y);
        }
        dx.store = (struct dpt_gemm_store){.dtype = a->dtype, .c = a->dx, .ldc = a->in};
        dpt_cpu_gemm(s, &dx);
    }
    if (a->gelu_x && a->dx && !s->preparing)
        dpt_cpu_gelu_backward(
            stream,
            &(struct dpt_gelu){
                .n = a->n * a->in, .dtype = a->dtype, .x = a->gelu_x, .dy = a->dx, .out = a->dx});
    const struct dpt_gemm dw = {
        .m = a->in,
        .n = a->out,
        .k = a->n,
        .dtype = a->dtype,
        .a = a->x,
        .a_row = 1,
        .a_col = a->in,
        .b = a->dy,
        .b_row = a->out,
        .b_col = 1,
        .store = {.c = a->dw, .ldc = a->out, .accumulate = a->accumulate, .stream = true}};
    dpt_cpu_gemm(s, &dw);
    struct bias_job job = {.kernels = s->kernels->of[a->dtype], .a = a};
    if (a->dbias && !s->preparing)
        dpt_pool_run(s->pool, dpt_ceil_div(a->out, COLUMNS), bias_item, &job);
}
