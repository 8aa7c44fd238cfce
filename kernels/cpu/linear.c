/* Linear layers: three products, and the sum of columns for the bias. */
#include "kernels/cpu/gemm.h"

enum { COLUMNS = 128 };

void dpt_cpu_linear_forward(struct dpt_stream *stream, const struct dpt_linear_forward *a)
{
    struct dpt_cpu_stream *s = dpt_cpu_stream(stream);
    if (!dpt_cpu_begin(s, a->dtype, "linear"))
        return;
    const struct dpt_gemm y = {
        .m = a->n,
        .n = a->out,
        .k = a->in,
        .dtype = a->dtype,
        .a = a->x,
        .a_row = a->in,
        .a_col = 1,
        .b = a->w,
        .b_row = a->out,
        .b_col = 1,
        .store = {.dtype = a->dtype, .c = a->y, .ldc = a->out, .bias = a->bias, .gelu = a->gelu}};
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
        const struct dpt_gemm dx = {.m = a->n,
                                    .n = a->in,
                                    .k = a->out,
                                    .dtype = a->dtype,
                                    .a = a->dy,
                                    .a_row = a->out,
                                    .a_col = 1,
                                    .b = a->w,
                                    .b_row = 1,
                                    .b_col = a->out,
                                    .store = {.dtype = a->dtype, .c = a->dx, .ldc = a->in}};
        dpt_cpu_gemm(s, &dx);
    }
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
