/* Cases of embeddings, the head and the rows of last tokens (cases.h). */
#include "tests/kernels/case_families.h"
#include "tests/kernels/ref.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- embedding: b, t, c, v, context; 0: without positions --- */

void embedding_layout(const struct op_case *c, struct case_layout *r)
{
    int64_t n = c->shape[0] * c->shape[1], w = c->shape[2], v = c->shape[3], ctx = c->shape[4];
    *r = (struct case_layout){.inputs = 3,
                              .in = {v * w, ctx * w, n * w},
                              .outputs = 3,
                              .out = {n * w, v * w, ctx * w},
                              .accumulates = {false, true, true},
                              .f32 = {false, true, true},
                              .ints = n,
                              .ints_below = v,
                              .y = 0,
                              .dy = 2,
                              .pairs = 2,
                              .of = {0, 1},
                              .grad = {1, 2}};
}

void embedding_run(const struct op_case *c, enum dpt_dtype dtype, const struct dpt_ops *ops,
                   struct dpt_stream *s, void *const *in, const int32_t *ints, bool accumulate,
                   void *const *out)
{
    const struct dpt_embedding_forward f = {.b = c->shape[0],
                                            .t = c->shape[1],
                                            .c = c->shape[2],
                                            .v = c->shape[3],
                                            .dtype = dtype,
                                            .dropout = case_dropout(c),
                                            .tokens = ints,
                                            .wte = in[0],
                                            .wpe = in[1],
                                            .y = out[0]};
    const struct dpt_embedding_backward b = {.b = c->shape[0],
                                             .t = c->shape[1],
                                             .c = c->shape[2],
                                             .v = c->shape[3],
                                             .context = c->shape[4],
                                             .dtype = dtype,
                                             .dropout = case_dropout(c),
                                             .tokens = ints,
                                             .dy = in[2],
                                             .dwte = out[1],
                                             .dwpe = out[2],
                                             .accumulate_wte = accumulate,
                                             .accumulate_wpe = accumulate};
    ops->embedding_forward(s, &f);
    ops->embedding_backward(s, &b);
}

void embedding_ref(const struct op_case *c, double *const *in, const int32_t *ints,
                   double *const *out)
{
    struct dpt_dropout d = case_dropout(c);
    const bool places = c->shape[4] > 0;
    ref_embedding(c->shape[0], c->shape[1], c->shape[2], &d, ints, in[0], places ? in[1] : NULL,
                  out[0]);
    ref_embedding_grad(c->shape[0], c->shape[1], c->shape[2], c->shape[3], c->shape[4], &d, ints,
                       in[2], out[1], places ? out[2] : NULL);
}

/* --- head: n, c, v, tied: the last label has the weights of the first, bias --- */

/* Weights for logits of unit size: of a target that is nearly certain, the loss and 1 - p are small
 * differences of larger numbers, which f32 does not keep. */
void head_layout(const struct op_case *c, struct case_layout *r)
{
    int64_t n = c->shape[0], w = c->shape[1], v = c->shape[2];
    const int64_t bias = c->shape[4] ? v : 0;
    *r = (struct case_layout){.inputs = 3,
                              .in = {n * w, v * w, bias},
                              .factor = {0.0f, 1.0f / sqrtf((float)w)},
                              .outputs = 5,
                              .out = {n, n * w, v * w, n, bias},
                              .accumulates = {false, false, true, false, true},
                              .f32 = {true, false, true, true, true},
                              .rounded = {false, false, true, false, true},
                              .ints = n,
                              .ints_below = v,
                              .y = 0,
                              .dy = -1,
                              .pairs = bias > 0 ? 3 : 2,
                              .of = {0, 1, 2},
                              .grad = {1, 2, 4}};
}

void head_run(const struct op_case *c, enum dpt_dtype dtype, const struct dpt_ops *ops,
              struct dpt_stream *s, void *const *in, const int32_t *ints, bool accumulate,
              void *const *out)
{
    const struct dpt_head_loss a = {.n = c->shape[0],
                                    .c = c->shape[1],
                                    .v = c->shape[2],
                                    .dtype = dtype,
                                    .x = in[0],
                                    .w = in[1],
                                    .targets = ints,
                                    .loss = out[0],
                                    .dloss = CASE_DLOSS,
                                    .dx = out[1],
                                    .dw = out[2],
                                    .accumulate = accumulate,
                                    .right = out[3],
                                    .bias = in[2],
                                    .dbias = out[4]};
    const size_t row = (size_t)a.c * dpt_dtype_bytes(dtype);
    if (c->shape[3])
        ops->copy(s, row, in[1], (char *)in[1] + (size_t)(a.v - 1) * row);
    ops->head_loss(s, &a);
}

void head_ref(const struct op_case *c, double *const *in, const int32_t *ints, double *const *out)
{
    const bool bias = c->shape[4] != 0;
    const struct ref_head head = {c->shape[0], c->shape[1],         c->shape[2], in[0],
                                  in[1],       bias ? in[2] : NULL, ints};
    if (c->shape[3])
        memcpy(in[1] + (c->shape[2] - 1) * c->shape[1], in[1],
               (size_t)c->shape[1] * sizeof(double));
    ref_head(&head, out[0]);
    ref_head_right(&head, out[3]);
    ref_head_grad(&head, (double)CASE_DLOSS, out[1], out[2], bias ? out[4] : NULL);
}

/* --- last_token: b, t, c --- */

void last_token_layout(const struct op_case *c, struct case_layout *r)
{
    const int64_t rows = c->shape[0] * c->shape[2], all = rows * c->shape[1];
    *r = (struct case_layout){.inputs = 2,
                              .in = {all, rows},
                              .outputs = 2,
                              .out = {rows, all},
                              .ints = c->shape[0],
                              .ints_from = 1,
                              .ints_below = c->shape[1] + 1,
                              .y = 0,
                              .dy = 1,
                              .pairs = 1,
                              .of = {0},
                              .grad = {1}};
}

static struct dpt_last_token last_token_of(const struct op_case *c, enum dpt_dtype dtype,
                                           const int32_t *lengths, const void *x, void *y)
{
    return (struct dpt_last_token){.b = c->shape[0],
                                   .t = c->shape[1],
                                   .c = c->shape[2],
                                   .dtype = dtype,
                                   .lengths = lengths,
                                   .x = x,
                                   .y = y};
}

void last_token_run(const struct op_case *c, enum dpt_dtype dtype, const struct dpt_ops *ops,
                    struct dpt_stream *s, void *const *in, const int32_t *ints, bool accumulate,
                    void *const *out)
{
    const struct dpt_last_token forward = last_token_of(c, dtype, ints, in[0], out[0]);
    const struct dpt_last_token backward = last_token_of(c, dtype, ints, in[1], out[1]);
    (void)accumulate;
    ops->last_token_forward(s, &forward);
    ops->last_token_backward(s, &backward);
}

void last_token_ref(const struct op_case *c, double *const *in, const int32_t *ints,
                    double *const *out)
{
    ref_last_token(c->shape[0], c->shape[1], c->shape[2], ints, in[0], out[0]);
    ref_last_token_grad(c->shape[0], c->shape[1], c->shape[2], ints, in[1], out[1]);
}
