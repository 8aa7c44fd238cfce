/* One table of cases for every op of the models: shapes, buffers, a function that runs the op on a
 * device (forward, then backward), and the reference. The tests loop over the table: ops_test.c
 * (against the reference), ref_test.c (finite differences), bits_test.c (threads, instruction sets,
 * accumulation). */
#ifndef DPT_TESTS_KERNELS_CASES_H
#define DPT_TESTS_KERNELS_CASES_H

#include "kernels/ops.h"

enum { CASE_BUFFERS_MAX = 10, CASE_SHAPE_MAX = 8 };

/* Sizes in elements; `ints` are tokens, targets or lengths in [ints_from, ints_below). Inputs have
 * the case's dtype. The op gets NULL for a buffer without elements. */
struct case_layout {
    int inputs, outputs;
    int64_t in[CASE_BUFFERS_MAX], out[CASE_BUFFERS_MAX];
    bool accumulates[CASE_BUFFERS_MAX]; /* outputs */
    bool f32[CASE_BUFFERS_MAX];         /* outputs that are f32 in every dtype */
    bool rounded[CASE_BUFFERS_MAX];     /* f32 outputs that add rounded values */
    bool f32_only;                      /* the op has no dtype */
    bool squared[CASE_BUFFERS_MAX];     /* inputs that are not negative */
    float factor[CASE_BUFFERS_MAX];     /* of inputs; 0: 1 */
    int64_t ints, ints_from, ints_below;
    /* For finite differences: the loss is the sum of outputs[y] times inputs[dy] (dy < 0: times the
     * constant CASE_DLOSS). The gradient of inputs[of[i]] is outputs[grad[i]]; i < pairs. */
    int y, dy, pairs, of[CASE_BUFFERS_MAX], grad[CASE_BUFFERS_MAX];
};

struct op_case {
    const char *name;
    int64_t shape[CASE_SHAPE_MAX];
    float p; /* dropout */
    bool fd; /* small enough for finite differences */
    void (*layout)(const struct op_case *c, struct case_layout *ret);
    void (*run)(const struct op_case *c, enum dpt_dtype dtype, const struct dpt_ops *ops,
                struct dpt_stream *s, void *const *in, const int32_t *ints, bool accumulate,
                void *const *out);
    void (*ref)(const struct op_case *c, double *const *in, const int32_t *ints,
                double *const *out);
};

extern const struct op_case op_cases[];
extern const int op_case_count;

/* The head's dloss in every case. */
#define CASE_DLOSS 0.125f

#endif
