/* The case of an adapter (worker/model/lora.c): a product that is not trained, and one of two
 * factors that is added to some columns of its result (cases.h). */
#include "tests/kernels/case_families.h"
#include "tests/kernels/ref.h"

#include <string.h>

/* --- adapter: n, in, rank, out, wide, first: y (n, wide) = x w^T; y's columns from `first` on +=
 * (FACTOR x a^T) b^T --- */

#define FACTOR 0.75f

void adapter_layout(const struct op_case *c, struct case_layout *r)
{
    const int64_t n = c->shape[0], in = c->shape[1], rank = c->shape[2], out = c->shape[3],
                  wide = c->shape[4];
    *r = (struct case_layout){.inputs = 5,
                              .in = {n * in, wide * in, rank * in, out * rank, n * wide},
                              .outputs = 6,
                              .out = {n * wide, n * rank, n * rank, n * in, rank * in, out * rank},
                              .accumulates = {false, false, false, false, true, true},
                              .f32 = {false, false, false, false, true, true},
                              .rounded = {false, false, false, false, true, true},
                              .y = 0,
                              .dy = 4,
                              .pairs = 3,
                              .of = {0, 2, 3},
                              .grad = {3, 4, 5}};
}

static void run_forward(const struct op_case *c, enum dpt_dtype dtype, const struct dpt_ops *ops,
                        struct dpt_stream *s, void *const *in, void *const *out)
{
    const int64_t n = c->shape[0], rank = c->shape[2];
    struct dpt_linear_forward f = {.n = n,
                                   .in = c->shape[1],
                                   .out = c->shape[4],
                                   .dtype = dtype,
                                   .x = in[0],
                                   .w = in[1],
                                   .y = out[0],
                                   .out_in = true};
    ops->linear_forward(s, &f);
    f.out = rank;
    f.w = in[2];
    f.y = out[1];
    ops->linear_forward(s, &f);
    ops->scale(s, n * rank, dtype, FACTOR, out[1]);
    f.in = rank;
    f.out = c->shape[3];
    f.x = out[1];
    f.w = in[3];
    f.y = (char *)out[0] + (size_t)c->shape[5] * dpt_dtype_bytes(dtype);
    f.y_stride = c->shape[4];
    f.add_y = true;
    ops->linear_forward(s, &f);
}

static void run_backward(const struct op_case *c, enum dpt_dtype dtype, const struct dpt_ops *ops,
                         struct dpt_stream *s, void *const *in, bool accumulate, void *const *out)
{
    const int64_t n = c->shape[0], rank = c->shape[2];
    const struct dpt_linear_backward whole = {.n = n,
                                              .in = c->shape[1],
                                              .out = c->shape[4],
                                              .dtype = dtype,
                                              .x = in[0],
                                              .w = in[1],
                                              .dy = in[4],
                                              .dx = out[3],
                                              .out_in = true};
    const struct dpt_linear_backward b = {.n = n,
                                          .in = rank,
                                          .out = c->shape[3],
                                          .dtype = dtype,
                                          .x = out[1],
                                          .w = in[3],
                                          .dy = (const char *)in[4] +
                                                (size_t)c->shape[5] * dpt_dtype_bytes(dtype),
                                          .dy_stride = c->shape[4],
                                          .dx = out[2],
                                          .dw = out[5],
                                          .accumulate = accumulate,
                                          .out_in = true};
    const struct dpt_linear_backward a = {.n = n,
                                          .in = c->shape[1],
                                          .out = rank,
                                          .dtype = dtype,
                                          .x = in[0],
                                          .w = in[2],
                                          .dy = out[2],
                                          .dx = out[3],
                                          .add_dx = true,
                                          .dw = out[4],
                                          .accumulate = accumulate,
                                          .out_in = true};
    ops->linear_backward(s, &whole);
    ops->linear_backward(s, &b);
    ops->scale(s, n * rank, dtype, FACTOR, out[2]);
    ops->linear_backward(s, &a);
}

void adapter_run(const struct op_case *c, enum dpt_dtype dtype, const struct dpt_ops *ops,
                 struct dpt_stream *s, void *const *in, const int32_t *ints, bool accumulate,
                 void *const *out)
{
    (void)ints;
    run_forward(c, dtype, ops, s, in, out);
    run_backward(c, dtype, ops, s, in, accumulate, out);
}

/* By sums over single elements. */
void adapter_ref(const struct op_case *c, double *const *in, const int32_t *ints,
                 double *const *out)
{
    const int64_t n = c->shape[0], k = c->shape[1], rank = c->shape[2], o = c->shape[3],
                  wide = c->shape[4], first = c->shape[5];
    const double *x = in[0], *w = in[1], *a = in[2], *b = in[3], *dy = in[4];
    double *y = out[0], *u = out[1], *du = out[2], *dx = out[3], *da = out[4], *db = out[5];
    (void)ints;
    ref_linear(n, k, wide, true, x, w, NULL, y);
    for (int64_t i = 0; i < rank * k; i++)
        da[i] = 0.0;
    for (int64_t i = 0; i < o * rank; i++)
        db[i] = 0.0;
    for (int64_t r = 0; r < n; r++) {
        for (int64_t i = 0; i < k; i++) {
            dx[r * k + i] = 0.0;
            for (int64_t j = 0; j < wide; j++)
                dx[r * k + i] += dy[r * wide + j] * w[j * k + i];
        }
        for (int64_t q = 0; q < rank; q++) {
            double made = 0.0, slope = 0.0;
            for (int64_t i = 0; i < k; i++)
                made += x[r * k + i] * a[q * k + i];
            for (int64_t j = 0; j < o; j++)
                slope += dy[r * wide + first + j] * b[j * rank + q];
            u[r * rank + q] = (double)FACTOR * made;
            du[r * rank + q] = (double)FACTOR * slope;
            for (int64_t j = 0; j < o; j++) {
                y[r * wide + first + j] += u[r * rank + q] * b[j * rank + q];
                db[j * rank + q] += dy[r * wide + first + j] * u[r * rank + q];
            }
            for (int64_t i = 0; i < k; i++) {
                dx[r * k + i] += du[r * rank + q] * a[q * k + i];
                da[q * k + i] += du[r * rank + q] * x[r * k + i];
            }
        }
    }
}
