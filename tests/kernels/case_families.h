/* Functions that the table of cases.c uses and the other files of cases define. */
#ifndef DPT_TESTS_KERNELS_CASE_FAMILIES_H
#define DPT_TESTS_KERNELS_CASE_FAMILIES_H

#include "tests/kernels/cases.h"

#define CASE_FAMILY(op)                                                                            \
    void op##_layout(const struct op_case *c, struct case_layout *r);                              \
    void op##_run(const struct op_case *c, enum dpt_dtype dtype, const struct dpt_ops *ops,        \
                  struct dpt_stream *s, void *const *in, const int32_t *ints, bool accumulate,     \
                  void *const *out);                                                               \
    void op##_ref(const struct op_case *c, double *const *in, const int32_t *ints,                 \
                  double *const *out);

CASE_FAMILY(adapter)
CASE_FAMILY(gelu)
CASE_FAMILY(swiglu)
CASE_FAMILY(rope)
CASE_FAMILY(residual)
CASE_FAMILY(residual_norm)
CASE_FAMILY(embedding)
CASE_FAMILY(head)
CASE_FAMILY(last_token)
CASE_FAMILY(conv)
CASE_FAMILY(batchnorm)
CASE_FAMILY(maxpool)
CASE_FAMILY(avgpool)
CASE_FAMILY(adamw)
CASE_FAMILY(sgd)

/* The case's mask. */
struct dpt_dropout case_dropout(const struct op_case *c);

#endif
