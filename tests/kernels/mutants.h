/* Ops that are wrong on purpose, each by a slip that kernels are apt to have: a forgotten tail, a
 * row lost from a sum, a mask that is off by one. A comparison that lets one pass compares nothing.
 */
#ifndef DPT_TESTS_KERNELS_MUTANTS_H
#define DPT_TESTS_KERNELS_MUTANTS_H

#include "tests/kernels/harness.h"

struct op_mutant {
    const char *name;
    const char *of; /* the case that must notice, by its name */
    void (*install)(struct dpt_ops *ops);
};

extern const struct op_mutant op_mutants[];
extern const int op_mutant_count;

/* Runs the mutant's case with the op of `t` wronged: whether case_compare finds it, and found
 * nothing without the wrong. One at a time. */
bool mutant_is_caught(const struct op_mutant *m, struct test_stream *t,
                      const double tolerance[DPT_DTYPE_COUNT]);

#endif
