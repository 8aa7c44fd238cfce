/* Cases of the ops on images (cases.h). */
#include "tests/kernels/case_families.h"
#include "tests/kernels/ref.h"

/* --- conv: b, h, w, in, out, kernel, stride, add_dx --- */

static struct dpt_windows windows_of(const int64_t shape[3], int64_t kernel, int64_t stride)
{
    return (struct dpt_windows){shape[0], shape[1], shape[2], kernel, stride};
}

static int64_t windows_count(const struct dpt_windows *of)
{
    return of->b * dpt_windows_along(of->h, of->stride) * dpt_windows_along(of->w, of->stride);
}

void conv_layout(const struct op_case *c, struct case_layout *r)
{
    const int64_t *s = c->shape;
    const struct dpt_windows of = windows_of(s, s[5], s[6]);
    const int64_t x = s[0] * s[1] * s[2] * s[3], y = windows_count(&of) * s[4],
                  w = s[4] * s[3] * s[5] * s[5];
    *r = (struct case_layout){.inputs = 3,
                              .in = {x, w, y},
                              .outputs = 3,
                              .out = {y, x, w},
                              .accumulates = {false, false, true},
                              .f32 = {false, false, true},
                              .y = 0,
                              .dy = 2,
                              .pairs = 2,
                              .of = {0, 1},
                              .grad = {1, 2}};
}

void conv_run(const struct op_case *c, enum dpt_dtype dtype, const struct dpt_ops *ops,
              struct dpt_stream *s, void *const *in, const int32_t *ints, bool accumulate,
              void *const *out)
{
    const int64_t *n = c->shape;
    (void)ints;
    const struct dpt_conv_forward f = {.of = windows_of(n, n[5], n[6]),
                                       .in = n[3],
                                       .out = n[4],
                                       .dtype = dtype,
                                       .x = in[0],
                                       .weight = in[1],
                                       .y = out[0]};
    const struct dpt_conv_backward b = {.of = f.of,
                                        .in = n[3],
                                        .out = n[4],
                                        .dtype = dtype,
                                        .x = in[0],
                                        .weight = in[1],
                                        .dy = in[2],
                                        .dx = out[1],
                                        .add_dx = n[7] != 0,
                                        .dw = out[2],
                                        .accumulate = accumulate};
    ops->conv_forward(s, &f);
    if (b.add_dx)
        ops->copy(s, (size_t)(n[0] * n[1] * n[2] * n[3]) * dpt_dtype_bytes(dtype), in[0], out[1]);
    ops->conv_backward(s, &b);
}

void conv_ref(const struct op_case *c, double *const *in, const int32_t *ints, double *const *out)
{
    const int64_t *n = c->shape;
    const struct dpt_windows of = windows_of(n, n[5], n[6]);
    (void)ints;
    ref_conv(&of, n[3], n[4], in[0], in[1], out[0]);
    ref_conv_grad(&of, n[3], n[4], in[0], in[1], in[2], out[1], out[2]);
    for (int64_t i = 0; n[7] && i < n[0] * n[1] * n[2] * n[3]; i++)
        out[1][i] += in[0][i];
}

/* --- batchnorm: n, c, relu, residual, evaluation --- */

static const float BATCHNORM_EPS = 1e-5f, BATCHNORM_SHARE = 0.25f;

void batchnorm_layout(const struct op_case *c, struct case_layout *r)
{
    const int64_t w = c->shape[1], n = c->shape[0] * w, residual = c->shape[3] ? n : 0;
    if (c->shape[4]) {
        *r = (struct case_layout){.inputs = 7,
                                  .in = {n, w, w, 0, residual, w, w},
                                  .squared = {[6] = true},
                                  .outputs = 1,
                                  .out = {n},
                                  .y = 0,
                                  .dy = -1};
        return;
    }
    *r =
        (struct case_layout){.inputs = 5,
                             .in = {n, w, w, n, residual},
                             .outputs = 10,
                             .out = {n, w, w, w, n, residual, w, w, w, w},
                             .accumulates = {[6] = true, true, true, true},
                             .f32 = {false, true, true, true, false, false, true, true, true, true},
                             .y = 0,
                             .dy = 3,
                             .pairs = residual > 0 ? 4 : 3,
                             .of = {0, 1, 2, 4},
                             .grad = {4, 6, 7, 5}};
}

/* dy and dresidual, if there is one, are the same memory. */
void batchnorm_run(const struct op_case *c, enum dpt_dtype dtype, const struct dpt_ops *ops,
                   struct dpt_stream *s, void *const *in, const int32_t *ints, bool accumulate,
                   void *const *out)
{
    const int64_t n = c->shape[0], w = c->shape[1];
    const bool relu = c->shape[2] != 0, evaluates = c->shape[4] != 0;
    (void)ints;
    const struct dpt_batchnorm_forward f = {.n = n,
                                            .c = w,
                                            .eps = BATCHNORM_EPS,
                                            .dtype = dtype,
                                            .x = in[0],
                                            .gamma = in[1],
                                            .beta = in[2],
                                            .residual = in[4],
                                            .relu = relu,
                                            .y = out[0],
                                            .running_mean = evaluates ? in[5] : NULL,
                                            .running_var = evaluates ? in[6] : NULL,
                                            .mean = evaluates ? NULL : out[1],
                                            .rstd = evaluates ? NULL : out[2],
                                            .var = evaluates ? NULL : out[3]};
    ops->batchnorm_forward(s, &f);
    if (evaluates)
        return;
    if (out[5])
        ops->copy(s, (size_t)(n * w) * dpt_dtype_bytes(dtype), in[3], out[5]);
    const struct dpt_batchnorm_backward b = {.n = n,
                                             .c = w,
                                             .dtype = dtype,
                                             .x = in[0],
                                             .gamma = in[1],
                                             .mean = out[1],
                                             .rstd = out[2],
                                             .var = out[3],
                                             .y = relu ? out[0] : NULL,
                                             .dy = out[5] ? out[5] : in[3],
                                             .dx = out[4],
                                             .dresidual = out[5],
                                             .dgamma = out[6],
                                             .dbeta = out[7],
                                             .dmean = out[8],
                                             .dvar = out[9],
                                             .share = BATCHNORM_SHARE,
                                             .accumulate = accumulate};
    ops->batchnorm_backward(s, &b);
}

void batchnorm_ref(const struct op_case *c, double *const *in, const int32_t *ints,
                   double *const *out)
{
    const int64_t w = c->shape[1];
    const bool relu = c->shape[2] != 0;
    const struct ref_batchnorm a = {.n = c->shape[0],
                                    .c = w,
                                    .eps = (double)BATCHNORM_EPS,
                                    .gamma = in[1],
                                    .beta = in[2],
                                    .residual = c->shape[3] ? in[4] : NULL,
                                    .relu = relu};
    (void)ints;
    if (c->shape[4]) {
        ref_batchnorm_eval(&a, in[0], in[5], in[6], out[0]);
        return;
    }
    ref_batchnorm(&a, in[0], out[0], out[1], out[2], out[3]);
    ref_batchnorm_grad(&a, in[0], out[0], out[1], out[2], in[3], out[4],
                       c->shape[3] ? out[5] : NULL, out[6], out[7]);
    for (int64_t i = 0; i < w; i++) {
        out[8][i] = (double)BATCHNORM_SHARE * out[1][i];
        out[9][i] = (double)BATCHNORM_SHARE * out[3][i];
    }
}

/* --- maxpool: b, h, w, c, kernel, stride. The third input is memory for `taken`. --- */

void maxpool_layout(const struct op_case *c, struct case_layout *r)
{
    const int64_t *s = c->shape;
    const struct dpt_windows of = windows_of(s, s[4], s[5]);
    const int64_t x = s[0] * s[1] * s[2] * s[3], y = windows_count(&of) * s[3];
    *r = (struct case_layout){.inputs = 3,
                              .in = {x, y, y},
                              .outputs = 2,
                              .out = {y, x},
                              .y = 0,
                              .dy = 1,
                              .pairs = 1,
                              .of = {0},
                              .grad = {1}};
}

void maxpool_run(const struct op_case *c, enum dpt_dtype dtype, const struct dpt_ops *ops,
                 struct dpt_stream *s, void *const *in, const int32_t *ints, bool accumulate,
                 void *const *out)
{
    const int64_t *n = c->shape;
    (void)ints;
    (void)accumulate;
    const struct dpt_maxpool f = {.of = windows_of(n, n[4], n[5]),
                                  .c = n[3],
                                  .dtype = dtype,
                                  .x = in[0],
                                  .y = out[0],
                                  .taken = in[2]};
    const struct dpt_maxpool b = {
        .of = f.of, .c = n[3], .dtype = dtype, .taken = in[2], .dy = in[1], .dx = out[1]};
    ops->maxpool_forward(s, &f);
    ops->maxpool_backward(s, &b);
}

void maxpool_ref(const struct op_case *c, double *const *in, const int32_t *ints,
                 double *const *out)
{
    const int64_t *n = c->shape;
    const struct dpt_windows of = windows_of(n, n[4], n[5]);
    (void)ints;
    ref_maxpool(&of, n[3], in[0], in[1], out[0], out[1]);
}

/* --- avgpool: b, pixels, c --- */

void avgpool_layout(const struct op_case *c, struct case_layout *r)
{
    const int64_t y = c->shape[0] * c->shape[2], x = y * c->shape[1];
    *r = (struct case_layout){.inputs = 2,
                              .in = {x, y},
                              .outputs = 2,
                              .out = {y, x},
                              .y = 0,
                              .dy = 1,
                              .pairs = 1,
                              .of = {0},
                              .grad = {1}};
}

void avgpool_run(const struct op_case *c, enum dpt_dtype dtype, const struct dpt_ops *ops,
                 struct dpt_stream *s, void *const *in, const int32_t *ints, bool accumulate,
                 void *const *out)
{
    (void)ints;
    (void)accumulate;
    struct dpt_avgpool a = {.b = c->shape[0],
                            .pixels = c->shape[1],
                            .c = c->shape[2],
                            .dtype = dtype,
                            .in = in[0],
                            .out = out[0]};
    ops->avgpool_forward(s, &a);
    a.in = in[1];
    a.out = out[1];
    ops->avgpool_backward(s, &a);
}

void avgpool_ref(const struct op_case *c, double *const *in, const int32_t *ints,
                 double *const *out)
{
    (void)ints;
    ref_avgpool(c->shape[0], c->shape[1], c->shape[2], in[0], in[1], out[0], out[1]);
}
