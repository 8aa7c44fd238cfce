/* Cases of the ops whose elements are independent, or depend on their row only (cases.h). */
#include "tests/kernels/case_families.h"
#include "tests/kernels/ref.h"

#include <string.h>

/* --- gelu: n --- */

void gelu_layout(const struct op_case *c, struct case_layout *r)
{
    int64_t n = c->shape[0];
    *r = (struct case_layout){.inputs = 2,
                              .in = {n, n},
                              .outputs = 2,
                              .out = {n, n},
                              .y = 0,
                              .dy = 1,
                              .pairs = 1,
                              .of = {0},
                              .grad = {1}};
}

void gelu_run(const struct op_case *c, enum dpt_dtype dtype, const struct dpt_ops *ops,
              struct dpt_stream *s, void *const *in, const int32_t *ints, bool accumulate,
              void *const *out)
{
    (void)ints;
    (void)accumulate;
    const struct dpt_gelu f = {.n = c->shape[0], .dtype = dtype, .x = in[0], .out = out[0]};
    const struct dpt_gelu b = {
        .n = c->shape[0], .dtype = dtype, .x = in[0], .dy = in[1], .out = out[1]};
    ops->gelu_forward(s, &f);
    ops->gelu_backward(s, &b);
}

void gelu_ref(const struct op_case *c, double *const *in, const int32_t *ints, double *const *out)
{
    (void)ints;
    for (int64_t i = 0; i < c->shape[0]; i++) {
        out[0][i] = ref_gelu(in[0][i]);
        out[1][i] = in[1][i] * ref_gelu_slope(in[0][i]);
    }
}

/* --- swiglu: n, c --- */

void swiglu_layout(const struct op_case *c, struct case_layout *r)
{
    int64_t n = c->shape[0] * c->shape[1];
    *r = (struct case_layout){.inputs = 2,
                              .in = {2 * n, n},
                              .outputs = 2,
                              .out = {n, 2 * n},
                              .y = 0,
                              .dy = 1,
                              .pairs = 1,
                              .of = {0},
                              .grad = {1}};
}

void swiglu_run(const struct op_case *c, enum dpt_dtype dtype, const struct dpt_ops *ops,
                struct dpt_stream *s, void *const *in, const int32_t *ints, bool accumulate,
                void *const *out)
{
    (void)ints;
    (void)accumulate;
    struct dpt_swiglu a = {
        .n = c->shape[0], .c = c->shape[1], .dtype = dtype, .x = in[0], .out = out[0]};
    ops->swiglu_forward(s, &a);
    a.dy = in[1];
    a.out = out[1];
    ops->swiglu_backward(s, &a);
}

void swiglu_ref(const struct op_case *c, double *const *in, const int32_t *ints, double *const *out)
{
    const int64_t w = c->shape[1];
    (void)ints;
    for (int64_t i = 0; i < c->shape[0] * w; i++) {
        const int64_t gate = i / w * 2 * w + i % w, up = gate + w;
        out[0][i] = ref_silu(in[0][gate]) * in[0][up];
        out[1][gate] = in[1][i] * in[0][up] * ref_silu_slope(in[0][gate]);
        out[1][up] = in[1][i] * ref_silu(in[0][gate]);
    }
}

/* --- residual: n --- */

void residual_layout(const struct op_case *c, struct case_layout *r)
{
    int64_t n = c->shape[0];
    *r = (struct case_layout){.inputs = 3,
                              .in = {n, n, n},
                              .outputs = 2,
                              .out = {n, n},
                              .y = 0,
                              .dy = 2,
                              .pairs = 1,
                              .of = {1},
                              .grad = {1}};
}

void residual_run(const struct op_case *c, enum dpt_dtype dtype, const struct dpt_ops *ops,
                  struct dpt_stream *s, void *const *in, const int32_t *ints, bool accumulate,
                  void *const *out)
{
    (void)ints;
    (void)accumulate;
    const struct dpt_residual f = {.n = c->shape[0],
                                   .dtype = dtype,
                                   .dropout = case_dropout(c),
                                   .a = in[0],
                                   .b = in[1],
                                   .y = out[0]};
    const struct dpt_dropout_backward b = {
        .n = c->shape[0], .dtype = dtype, .dropout = case_dropout(c), .dy = in[2], .dx = out[1]};
    ops->residual(s, &f);
    ops->dropout_backward(s, &b);
}

void residual_ref(const struct op_case *c, double *const *in, const int32_t *ints,
                  double *const *out)
{
    struct dpt_dropout d = case_dropout(c);
    (void)ints;
    for (int64_t i = 0; i < c->shape[0]; i++) {
        out[0][i] = in[0][i] + in[1][i] * ref_drop(&d, i);
        out[1][i] = in[2][i] * ref_drop(&d, i);
    }
}

/* --- residual_norm: n, c, rms: without means and beta --- */

void residual_norm_layout(const struct op_case *c, struct case_layout *r)
{
    int64_t n = c->shape[0], w = c->shape[1];
    const bool rms = c->shape[2] != 0;
    *r = (struct case_layout){.inputs = 4,
                              .in = {n * w, n * w, w, rms ? 0 : w},
                              .outputs = 4,
                              .out = {n * w, n * w, rms ? 0 : n, n},
                              .f32 = {false, false, true, true},
                              .rounded = {false, false, true, true},
                              .y = 1,
                              .dy = -1};
}

void residual_norm_run(const struct op_case *c, enum dpt_dtype dtype, const struct dpt_ops *ops,
                       struct dpt_stream *s, void *const *in, const int32_t *ints, bool accumulate,
                       void *const *out)
{
    (void)ints;
    (void)accumulate;
    const struct dpt_residual_norm a = {.n = c->shape[0],
                                        .c = c->shape[1],
                                        .eps = 1e-5f,
                                        .dtype = dtype,
                                        .dropout = case_dropout(c),
                                        .a = in[0],
                                        .b = in[1],
                                        .gamma = in[2],
                                        .beta = in[3],
                                        .sum = out[0],
                                        .y = out[1],
                                        .mean = out[2],
                                        .rstd = out[3]};
    ops->residual_norm(s, &a);
}

void residual_norm_ref(const struct op_case *c, double *const *in, const int32_t *ints,
                       double *const *out)
{
    struct dpt_dropout d = case_dropout(c);
    (void)ints;
    for (int64_t i = 0; i < c->shape[0] * c->shape[1]; i++)
        out[0][i] = in[0][i] + in[1][i] * ref_drop(&d, i);
    if (c->shape[2])
        ref_rmsnorm(c->shape[0], c->shape[1], 1e-5, out[0], in[2], out[1], out[3]);
    else
        ref_layernorm(c->shape[0], c->shape[1], 1e-5, out[0], in[2], in[3], out[1], out[2], out[3]);
}

/* --- adamw: n, l2. Inputs p, m, v, grad --- */

void adamw_layout(const struct op_case *c, struct case_layout *r)
{
    int64_t n = c->shape[0];
    *r = (struct case_layout){.f32_only = true,
                              .inputs = 4,
                              .in = {n, n, n, n},
                              .squared = {false, false, true, false},
                              .outputs = 3,
                              .out = {n, n, n},
                              .y = 0,
                              .dy = -1};
}

static struct dpt_adamw adamw_of(const struct op_case *c)
{
    return (struct dpt_adamw){.n = c->shape[0],
                              .lr = 3e-2f,
                              .beta1 = 0.9f,
                              .beta2 = 0.95f,
                              .eps = 1e-8f,
                              .weight_decay = 0.1f,
                              .l2 = c->shape[1] != 0,
                              .bias1 = 0.271f,
                              .bias2 = 0.142625f,
                              .grad_scale = 0.5f};
}

void adamw_run(const struct op_case *c, enum dpt_dtype dtype, const struct dpt_ops *ops,
               struct dpt_stream *s, void *const *in, const int32_t *ints, bool accumulate,
               void *const *out)
{
    struct dpt_adamw a = adamw_of(c);
    (void)dtype;
    (void)ints;
    (void)accumulate;
    for (int i = 0; i < 3; i++)
        ops->copy(s, (size_t)a.n * sizeof(float), in[i], out[i]);
    a.param = out[0];
    a.m = out[1];
    a.v = out[2];
    a.grad = in[3];
    ops->adamw(s, &a);
}

void adamw_ref(const struct op_case *c, double *const *in, const int32_t *ints, double *const *out)
{
    struct dpt_adamw a = adamw_of(c);
    (void)ints;
    for (int i = 0; i < 3; i++)
        memcpy(out[i], in[i], (size_t)a.n * sizeof(double));
    ref_adamw(&a, out[0], out[1], out[2], in[3]);
}

/* --- sgd: n, nesterov. Inputs p, m, grad --- */

void sgd_layout(const struct op_case *c, struct case_layout *r)
{
    int64_t n = c->shape[0];
    *r = (struct case_layout){.f32_only = true,
                              .inputs = 3,
                              .in = {n, n, n},
                              .outputs = 2,
                              .out = {n, n},
                              .y = 0,
                              .dy = -1};
}

static struct dpt_sgd sgd_of(const struct op_case *c)
{
    return (struct dpt_sgd){.n = c->shape[0],
                            .lr = 3e-2f,
                            .momentum = 0.9f,
                            .weight_decay = 0.1f,
                            .grad_scale = 0.5f,
                            .nesterov = c->shape[1] != 0};
}

void sgd_run(const struct op_case *c, enum dpt_dtype dtype, const struct dpt_ops *ops,
             struct dpt_stream *s, void *const *in, const int32_t *ints, bool accumulate,
             void *const *out)
{
    struct dpt_sgd a = sgd_of(c);
    (void)dtype;
    (void)ints;
    (void)accumulate;
    for (int i = 0; i < 2; i++)
        ops->copy(s, (size_t)a.n * sizeof(float), in[i], out[i]);
    a.param = out[0];
    a.m = out[1];
    a.grad = in[2];
    ops->sgd(s, &a);
}

void sgd_ref(const struct op_case *c, double *const *in, const int32_t *ints, double *const *out)
{
    struct dpt_sgd a = sgd_of(c);
    (void)ints;
    for (int i = 0; i < 2; i++)
        memcpy(out[i], in[i], (size_t)a.n * sizeof(double));
    ref_sgd(&a, out[0], out[1], in[2]);
}
