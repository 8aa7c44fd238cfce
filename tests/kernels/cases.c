/* See cases.h. */
#include "tests/kernels/case_families.h"
#include "tests/kernels/ref.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct dpt_dropout case_dropout(const struct op_case *c)
{
    return (struct dpt_dropout){.p = c->p, .key = dpt_rng_key(7, DPT_RNG_TEST, 1, 2, 3)};
}

/* --- linear: n, in, out, out_in --- */

static void linear_layout(const struct op_case *c, struct case_layout *r)
{
    int64_t n = c->shape[0], in = c->shape[1], out = c->shape[2];
    *r = (struct case_layout){.inputs = 4,
                              .in = {n * in, in * out, out, n * out},
                              .outputs = 5,
                              .out = {n * out, n * out, n * in, in * out, out},
                              .accumulates = {false, false, false, true, true},
                              .f32 = {false, false, false, true, true},
                              .y = 0,
                              .dy = 3,
                              .pairs = 3,
                              .of = {0, 1, 2},
                              .grad = {2, 3, 4}};
}

static void linear_run(const struct op_case *c, enum dpt_dtype dtype, const struct dpt_ops *ops,
                       struct dpt_stream *s, void *const *in, const int32_t *ints, bool accumulate,
                       void *const *out)
{
    (void)ints;
    const struct dpt_linear_forward f = {.n = c->shape[0],
                                         .in = c->shape[1],
                                         .out = c->shape[2],
                                         .dtype = dtype,
                                         .x = in[0],
                                         .w = in[1],
                                         .bias = in[2],
                                         .y = out[0],
                                         .gelu = out[1],
                                         .out_in = c->shape[3] != 0};
    const struct dpt_linear_backward b = {.n = c->shape[0],
                                          .in = c->shape[1],
                                          .out = c->shape[2],
                                          .dtype = dtype,
                                          .x = in[0],
                                          .w = in[1],
                                          .dy = in[3],
                                          .dx = out[2],
                                          .dw = out[3],
                                          .dbias = out[4],
                                          .accumulate = accumulate,
                                          .out_in = c->shape[3] != 0};
    ops->linear_forward(s, &f);
    ops->linear_backward(s, &b);
}

static void linear_ref(const struct op_case *c, double *const *in, const int32_t *ints,
                       double *const *out)
{
    int64_t n = c->shape[0], i = c->shape[1], o = c->shape[2];
    const bool out_in = c->shape[3] != 0;
    (void)ints;
    ref_linear(n, i, o, out_in, in[0], in[1], in[2], out[0]);
    for (int64_t e = 0; e < n * o; e++)
        out[1][e] = ref_gelu(out[0][e]);
    ref_linear_grad(n, i, o, out_in, in[0], in[1], in[3], out[2], out[3], out[4]);
}

/* --- mlp: n, in, out, out_in: a layer behind a GELU --- */

static void mlp_layout(const struct op_case *c, struct case_layout *r)
{
    int64_t n = c->shape[0], i = c->shape[1], o = c->shape[2];
    *r = (struct case_layout){.inputs = 3,
                              .in = {n * i, i * o, n * o},
                              .outputs = 4,
                              .out = {n * i, n * i, i * o, o},
                              .accumulates = {false, false, true, true},
                              .f32 = {false, false, true, true},
                              .rounded = {false, false, true, false},
                              .y = 0,
                              .dy = -1};
}

static void mlp_run(const struct op_case *c, enum dpt_dtype dtype, const struct dpt_ops *ops,
                    struct dpt_stream *s, void *const *in, const int32_t *ints, bool accumulate,
                    void *const *out)
{
    (void)ints;
    const struct dpt_gelu gelu = {
        .n = c->shape[0] * c->shape[1], .dtype = dtype, .x = in[0], .out = out[0]};
    const struct dpt_linear_backward b = {.n = c->shape[0],
                                          .in = c->shape[1],
                                          .out = c->shape[2],
                                          .dtype = dtype,
                                          .x = out[0],
                                          .w = in[1],
                                          .dy = in[2],
                                          .dx = out[1],
                                          .gelu_x = in[0],
                                          .dw = out[2],
                                          .dbias = out[3],
                                          .accumulate = accumulate,
                                          .out_in = c->shape[3] != 0};
    ops->gelu_forward(s, &gelu);
    ops->linear_backward(s, &b);
}

static void mlp_ref(const struct op_case *c, double *const *in, const int32_t *ints,
                    double *const *out)
{
    int64_t n = c->shape[0], i = c->shape[1], o = c->shape[2];
    const bool out_in = c->shape[3] != 0;
    (void)ints;
    for (int64_t e = 0; e < n * i; e++)
        out[0][e] = ref_gelu(in[0][e]);
    ref_linear_grad(n, i, o, out_in, out[0], in[1], in[2], out[1], out[2], out[3]);
    for (int64_t e = 0; e < n * i; e++)
        out[1][e] *= ref_gelu_slope(in[0][e]);
}

/* --- layernorm: n, c, add_dx, rms: without means and beta, frozen: no gradients of its weights ---
 */

static void layernorm_layout(const struct op_case *c, struct case_layout *r)
{
    int64_t n = c->shape[0], w = c->shape[1], means = c->shape[3] ? 0 : n;
    int64_t beta = c->shape[3] ? 0 : w;
    const bool frozen = c->shape[4] != 0;
    *r = (struct case_layout){.inputs = 4,
                              .in = {n * w, w, beta, n * w},
                              .outputs = 6,
                              .out = {n * w, means, n, n * w, frozen ? 0 : w, frozen ? 0 : beta},
                              .accumulates = {false, false, false, false, true, true},
                              .f32 = {false, true, true, false, true, true},
                              .y = 0,
                              .dy = 3,
                              .pairs = 3,
                              .of = {0, 1, 2},
                              .grad = {3, 4, 5}};
}

static void layernorm_run(const struct op_case *c, enum dpt_dtype dtype, const struct dpt_ops *ops,
                          struct dpt_stream *s, void *const *in, const int32_t *ints,
                          bool accumulate, void *const *out)
{
    int64_t n = c->shape[0], w = c->shape[1];
    (void)ints;
    const struct dpt_layernorm_forward f = {.n = n,
                                            .c = w,
                                            .eps = 1e-5f,
                                            .dtype = dtype,
                                            .x = in[0],
                                            .gamma = in[1],
                                            .beta = in[2],
                                            .y = out[0],
                                            .mean = out[1],
                                            .rstd = out[2]};
    const struct dpt_layernorm_backward b = {.n = n,
                                             .c = w,
                                             .dtype = dtype,
                                             .x = in[0],
                                             .gamma = in[1],
                                             .mean = out[1],
                                             .rstd = out[2],
                                             .dy = in[3],
                                             .dx = out[3],
                                             .add_dx = c->shape[2] != 0,
                                             .dgamma = out[4],
                                             .dbeta = out[5],
                                             .accumulate = accumulate};
    ops->layernorm_forward(s, &f);
    if (b.add_dx)
        ops->copy(s, (size_t)(n * w) * dpt_dtype_bytes(dtype), in[3], out[3]);
    ops->layernorm_backward(s, &b);
}

static void layernorm_ref(const struct op_case *c, double *const *in, const int32_t *ints,
                          double *const *out)
{
    int64_t n = c->shape[0], w = c->shape[1];
    double *unwanted = calloc((size_t)(2 * w), sizeof *unwanted);
    double *dgamma = c->shape[4] ? unwanted : out[4], *dbeta = c->shape[4] ? unwanted + w : out[5];
    (void)ints;
    DPT_ASSERT(unwanted);
    if (c->shape[3]) {
        ref_rmsnorm(n, w, 1e-5, in[0], in[1], out[0], out[2]);
        ref_rmsnorm_grad(n, w, in[0], in[1], out[2], in[3], out[3], dgamma);
    } else {
        ref_layernorm(n, w, 1e-5, in[0], in[1], in[2], out[0], out[1], out[2]);
        ref_layernorm_grad(n, w, in[0], in[1], out[1], out[2], in[3], out[3], dgamma, dbeta);
    }
    free(unwanted);
    for (int64_t i = 0; c->shape[2] && i < n * w; i++)
        out[3][i] += in[3][i];
}

/* --- attention: b, t, heads, kv_heads, head_size --- */

static struct ref_heads heads_of(const struct op_case *c)
{
    return (struct ref_heads){c->shape[0], c->shape[1], c->shape[2], c->shape[3], c->shape[4]};
}

static void attention_layout(const struct op_case *c, struct case_layout *r)
{
    const struct ref_heads h = heads_of(c);
    const int64_t n = h.b * h.t, y = n * h.heads * h.head_size,
                  qkv = n * (h.heads + 2 * h.kv_heads) * h.head_size;
    *r = (struct case_layout){.inputs = 2,
                              .in = {qkv, y},
                              .outputs = 3,
                              .out = {y, n * h.heads, qkv},
                              .f32 = {false, true, false},
                              .y = 0,
                              .dy = 1,
                              .pairs = 1,
                              .of = {0},
                              .grad = {2}};
}

static void attention_run(const struct op_case *c, enum dpt_dtype dtype, const struct dpt_ops *ops,
                          struct dpt_stream *s, void *const *in, const int32_t *ints,
                          bool accumulate, void *const *out)
{
    const struct ref_heads h = heads_of(c);
    (void)ints;
    (void)accumulate;
    const struct dpt_attention a = {.b = h.b,
                                    .t = h.t,
                                    .heads = h.heads,
                                    .kv_heads = h.kv_heads,
                                    .head_size = h.head_size,
                                    .dtype = dtype,
                                    .dropout = case_dropout(c),
                                    .qkv = in[0],
                                    .y = out[0],
                                    .lse = out[1],
                                    .dy = in[1],
                                    .dqkv = out[2]};
    ops->attention_forward(s, &a);
    ops->attention_backward(s, &a);
}

static void attention_ref(const struct op_case *c, double *const *in, const int32_t *ints,
                          double *const *out)
{
    const struct ref_heads h = heads_of(c);
    struct dpt_dropout d = case_dropout(c);
    (void)ints;
    ref_attention(&h, &d, in[0], out[0], out[1]);
    ref_attention_grad(&h, &d, in[0], in[1], out[2]);
}

/* --- the table --- */

#define OP(op) .layout = op##_layout, .run = op##_run, .ref = op##_ref

const struct op_case op_cases[] = {
    {"linear 4x6x5", {4, 6, 5}, 0.0f, true, OP(linear)},
    {"linear 1x1x1", {1, 1, 1}, 0.0f, true, OP(linear)},
    {"linear 129x33x193", {129, 33, 193}, 0.0f, false, OP(linear)},
    {"linear 64x768x2304", {64, 768, 2304}, 0.0f, false, OP(linear)},
    {"linear 256x256x768", {256, 256, 768}, 0.0f, false, OP(linear)},
    {"linear 7x64x6200", {7, 64, 6200}, 0.0f, false, OP(linear)},
    {"linear 9x4200x24", {9, 4200, 24}, 0.0f, false, OP(linear)},
    {"linear 904x32x48",
     {904, 32, 48},
     0.0f,
     false,
     OP(linear)}, /* long sums for small gradients */
    {"linear 1024x32x48", {1024, 32, 48}, 0.0f, false, OP(linear)},
    {"linear 4x6x5 out_in", {4, 6, 5, 1}, 0.0f, true, OP(linear)},
    {"linear 129x33x193 out_in", {129, 33, 193, 1}, 0.0f, false, OP(linear)},
    {"linear 130x512x256 out_in", {130, 512, 256, 1}, 0.0f, false, OP(linear)},
    {"linear 7x64x6200 out_in", {7, 64, 6200, 1}, 0.0f, false, OP(linear)},
    {"linear 9x4200x24 out_in", {9, 4200, 24, 1}, 0.0f, false, OP(linear)},
    {"linear 1024x32x48 out_in", {1024, 32, 48, 1}, 0.0f, false, OP(linear)},
    {"mlp 33x64x48", {33, 64, 48}, 0.0f, false, OP(mlp)},
    {"mlp 65x77x40", {65, 77, 40}, 0.0f, false, OP(mlp)},
    {"mlp 65x88x40", {65, 88, 40}, 0.0f, false, OP(mlp)},
    {"mlp 64x3072x768", {64, 3072, 768}, 0.0f, false, OP(mlp)},
    {"mlp 65x88x40 out_in", {65, 88, 40, 1}, 0.0f, false, OP(mlp)},
    {"adapter 3x5 rank 2", {3, 5, 2, 4, 7, 3}, 0.0f, true, OP(adapter)},
    {"adapter 65x96 rank 8", {65, 96, 8, 64, 160, 96}, 0.0f, false, OP(adapter)},
    {"adapter 130x40 rank 16", {130, 40, 16, 200, 400, 0}, 0.0f, false, OP(adapter)},
    {"layernorm 3x5", {3, 5, 0}, 0.0f, true, OP(layernorm)},
    {"layernorm 33x48 add", {33, 48, 1}, 0.0f, false, OP(layernorm)},
    {"layernorm 100x768", {100, 768, 0}, 0.0f, false, OP(layernorm)},
    {"layernorm 65x1601", {65, 1601, 0}, 0.0f, false, OP(layernorm)},
    {"layernorm 33x48 frozen", {33, 48, 1, 0, 1}, 0.0f, false, OP(layernorm)},
    {"layernorm 65x1601 frozen", {65, 1601, 0, 0, 1}, 0.0f, false, OP(layernorm)},
    {"rmsnorm 33x48 frozen", {33, 48, 1, 1, 1}, 0.0f, false, OP(layernorm)},
    {"rmsnorm 3x5", {3, 5, 0, 1}, 0.0f, true, OP(layernorm)},
    {"rmsnorm 33x48 add", {33, 48, 1, 1}, 0.0f, false, OP(layernorm)},
    {"rmsnorm 100x768", {100, 768, 0, 1}, 0.0f, false, OP(layernorm)},
    {"rmsnorm 65x1601", {65, 1601, 0, 1}, 0.0f, false, OP(layernorm)},
    {"gelu 7", {7}, 0.0f, true, OP(gelu)},
    {"gelu 70001", {70001}, 0.0f, false, OP(gelu)},
    {"swiglu 3x5", {3, 5}, 0.0f, true, OP(swiglu)},
    {"swiglu 67x1033", {67, 1033}, 0.0f, false, OP(swiglu)},
    {"swiglu 40x2048", {40, 2048}, 0.0f, false, OP(swiglu)},
    {"rope 2x3x2x4", {2, 3, 2, 4, 3, 5}, 0.0f, true, OP(rope)},
    {"rope 3x65x5x64", {3, 65, 5, 64, 64, 1000}, 0.0f, false, OP(rope)},
    {"rope 2x70x3x34", {2, 70, 3, 34, 17, 131001}, 0.0f, false, OP(rope)},
    {"rope 1x33x2x256", {1, 33, 2, 256, 256, 0}, 0.0f, false, OP(rope)},
    {"attention 2x5x2x3", {2, 5, 2, 2, 3}, 0.0f, true, OP(attention)},
    {"attention 1x3x1x4 drop", {1, 3, 1, 1, 4}, 0.3f, true, OP(attention)},
    {"attention 2x64x3x64", {2, 64, 3, 3, 64}, 0.0f, false, OP(attention)},
    {"attention 1x200x2x64", {1, 200, 2, 2, 64}, 0.0f, false, OP(attention)},
    {"attention 2x65x2x17 drop", {2, 65, 2, 2, 17}, 0.1f, false, OP(attention)},
    {"attention 1x70x1x200", {1, 70, 1, 1, 200}, 0.0f, false, OP(attention)},
    {"attention 1x131x1x80 drop", {1, 131, 1, 1, 80}, 0.25f, false, OP(attention)},
    {"attention 1x130x2x64 drop", {1, 130, 2, 2, 64}, 0.2f, false, OP(attention)},
    {"attention 1x97x2x128", {1, 97, 2, 2, 128}, 0.0f, false, OP(attention)},
    {"attention 1x4x4/2x3", {1, 4, 4, 2, 3}, 0.0f, true, OP(attention)},
    {"attention 2x65x6/2x18 drop", {2, 65, 6, 2, 18}, 0.1f, false, OP(attention)},
    {"attention 2x66x4/2x64", {2, 66, 4, 2, 64}, 0.0f, false, OP(attention)},
    {"attention 1x97x3/1x128 drop", {1, 97, 3, 1, 128}, 0.2f, false, OP(attention)},
    {"attention 1x70x4/1x72", {1, 70, 4, 1, 72}, 0.0f, false, OP(attention)},
    {"attention 1x40x2/1x160", {1, 40, 2, 1, 160}, 0.0f, false, OP(attention)},
    {"residual 9", {9}, 0.0f, true, OP(residual)},
    {"residual 70003", {70003}, 0.0f, false, OP(residual)},
    {"residual 70003 drop", {70003}, 0.1f, false, OP(residual)},
    {"residual_norm 65x45", {65, 45}, 0.0f, false, OP(residual_norm)},
    {"residual_norm 65x768", {65, 768}, 0.0f, false, OP(residual_norm)},
    {"residual_norm 65x1601 drop", {65, 1601}, 0.1f, false, OP(residual_norm)},
    {"residual_rmsnorm 65x45", {65, 45, 1}, 0.0f, false, OP(residual_norm)},
    {"residual_rmsnorm 65x768", {65, 768, 1}, 0.0f, false, OP(residual_norm)},
    {"residual_rmsnorm 65x1601 drop", {65, 1601, 1}, 0.1f, false, OP(residual_norm)},
    {"embedding 2x3x4", {2, 3, 4, 5, 4}, 0.0f, true, OP(embedding)},
    {"embedding 3x17x130 drop", {3, 17, 130, 3, 20}, 0.2f, false, OP(embedding)},
    {"embedding 2x64x768", {2, 64, 768, 999, 128}, 0.0f, false, OP(embedding)},
    {"embedding 3x700x8", {3, 700, 8, 7, 701}, 0.0f, false, OP(embedding)},
    {"tokens 2x3x4", {2, 3, 4, 5, 0}, 0.0f, true, OP(embedding)},
    {"tokens 3x17x130 drop", {3, 17, 130, 3, 0}, 0.2f, false, OP(embedding)},
    {"tokens 2x64x768", {2, 64, 768, 999, 0}, 0.0f, false, OP(embedding)},
    {"tokens 3x700x8", {3, 700, 8, 1001, 0}, 0.0f, false, OP(embedding)},
    {"head 3x4x5", {3, 4, 5}, 0.0f, true, OP(head)},
    {"head 65x48x3333", {65, 48, 3333}, 0.0f, false, OP(head)},
    {"head 300x16x257", {300, 16, 257}, 0.0f, false, OP(head)},
    {"head 700x8x129", {700, 8, 129}, 0.0f, false, OP(head)},
    {"head 4200x8x129", {4200, 8, 129}, 0.0f, false, OP(head)},
    {"head 5x40x50257", {5, 40, 50257}, 0.0f, false, OP(head)},
    {"head 17x768x6500", {17, 768, 6500}, 0.0f, false, OP(head)},
    {"head 33x24x2", {33, 24, 2}, 0.0f, false, OP(head)},
    {"head 1x96x7", {1, 96, 7}, 0.0f, false, OP(head)},
    {"head 60x33x5 tied", {60, 33, 5, 1}, 0.0f, false, OP(head)},
    {"head 40x16x3100 tied", {40, 16, 3100, 1}, 0.0f, false, OP(head)},
    {"head 3x4x5 bias", {3, 4, 5, 0, 1}, 0.0f, true, OP(head)},
    {"head 64x512x10 bias", {64, 512, 10, 0, 1}, 0.0f, false, OP(head)},
    {"head 600x24x133 bias", {600, 24, 133, 0, 1}, 0.0f, false, OP(head)},
    {"head 4200x8x67 bias", {4200, 8, 67, 0, 1}, 0.0f, false, OP(head)},
    {"head 9x16x3333 bias", {9, 16, 3333, 0, 1}, 0.0f, false, OP(head)},
    {"last_token 2x3x4", {2, 3, 4}, 0.0f, true, OP(last_token)},
    {"last_token 1x1x9", {1, 1, 9}, 0.0f, true, OP(last_token)},
    {"last_token 5x77x131", {5, 77, 131}, 0.0f, false, OP(last_token)},
    {"last_token 9x200x768", {9, 200, 768}, 0.0f, false, OP(last_token)},
    {"conv 1x3x4 2-3 k3", {1, 3, 4, 2, 3, 3, 1}, 0.0f, true, OP(conv)},
    {"conv 2x4x3 2-3 k3 s2", {2, 4, 3, 2, 3, 3, 2}, 0.0f, true, OP(conv)},
    {"conv 1x1x1 1-1 k7 s3", {1, 1, 1, 1, 1, 7, 3}, 0.0f, true, OP(conv)},
    {"conv 2x5x5 3-8 k7 s2", {2, 5, 5, 3, 8, 7, 2}, 0.0f, false, OP(conv)},
    {"conv 2x13x11 16-24 k3 add", {2, 13, 11, 16, 24, 3, 1, 1}, 0.0f, false, OP(conv)},
    {"conv 2x13x11 17-19 k3 s2 add", {2, 13, 11, 17, 19, 3, 2, 1}, 0.0f, false, OP(conv)},
    {"conv 3x9x9 24-40 k1", {3, 9, 9, 24, 40, 1, 1}, 0.0f, false, OP(conv)},
    {"conv 3x9x9 24-40 k1 s2", {3, 9, 9, 24, 40, 1, 2}, 0.0f, false, OP(conv)},
    {"conv 3x9x10 24-40 k1 s2 add", {3, 9, 10, 24, 40, 1, 2, 1}, 0.0f, false, OP(conv)},
    {"conv 2x8x8 64-200 k3 s2", {2, 8, 8, 64, 200, 3, 2}, 0.0f, false, OP(conv)},
    {"conv 3x20x20 32-16 k3", {3, 20, 20, 32, 16, 3, 1}, 0.0f, false, OP(conv)},
    {"conv 1x30x31 3-16 k7 s2", {1, 30, 31, 3, 16, 7, 2}, 0.0f, false, OP(conv)},
    {"batchnorm 5x3", {5, 3}, 0.0f, true, OP(batchnorm)},
    {"batchnorm 6x2 relu residual", {6, 2, 1, 1}, 0.0f, true, OP(batchnorm)},
    {"batchnorm 1003x45", {1003, 45}, 0.0f, false, OP(batchnorm)},
    {"batchnorm 777x64 relu", {777, 64, 1}, 0.0f, false, OP(batchnorm)},
    {"batchnorm 640x133 relu residual", {640, 133, 1, 1}, 0.0f, false, OP(batchnorm)},
    {"batchnorm 300x48 residual", {300, 48, 0, 1}, 0.0f, false, OP(batchnorm)},
    {"batchnorm 4x70", {4, 70}, 0.0f, false, OP(batchnorm)},
    {"batchnorm 65x77 eval", {65, 77, 0, 0, 1}, 0.0f, false, OP(batchnorm)},
    {"batchnorm 65x77 relu residual eval", {65, 77, 1, 1, 1}, 0.0f, false, OP(batchnorm)},
    {"maxpool 1x4x5x2 k3 s2", {1, 4, 5, 2, 3, 2}, 0.0f, true, OP(maxpool)},
    {"maxpool 2x16x16x64 k3 s2", {2, 16, 16, 64, 3, 2}, 0.0f, false, OP(maxpool)},
    {"maxpool 3x7x9x21 k3 s2", {3, 7, 9, 21, 3, 2}, 0.0f, false, OP(maxpool)},
    {"maxpool 2x7x6x19 k5", {2, 7, 6, 19, 5, 1}, 0.0f, false, OP(maxpool)},
    {"avgpool 2x3x5", {2, 3, 5}, 0.0f, true, OP(avgpool)},
    {"avgpool 3x49x515", {3, 49, 515}, 0.0f, false, OP(avgpool)},
    {"adamw 5", {5}, 0.0f, false, OP(adamw)},
    {"adamw 40007", {40007}, 0.0f, false, OP(adamw)},
    {"adamw 5 l2", {5, 1}, 0.0f, false, OP(adamw)},
    {"adamw 40007 l2", {40007, 1}, 0.0f, false, OP(adamw)},
    {"sgd 5", {5}, 0.0f, false, OP(sgd)},
    {"sgd 40007 nesterov", {40007, 1}, 0.0f, false, OP(sgd)},
};
const int op_case_count = sizeof op_cases / sizeof *op_cases;
