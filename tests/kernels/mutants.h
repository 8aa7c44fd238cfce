/* Mutants: ops that are wrong on purpose. Each has an error that is common in kernels: a forgotten
 * tail, a row lost from a sum, a mask that is off by one. The tests' comparison must find each of
 * them; a comparison that misses one is too weak. */
#ifndef DPT_TESTS_KERNELS_MUTANTS_H
#define DPT_TESTS_KERNELS_MUTANTS_H

#include "tests/kernels/harness.h"

struct op_mutant {
    const char *name;
    const char *of; /* name of the case that must find it */
    void (*install)(struct dpt_ops *ops);
};

extern const struct op_mutant op_mutants[];
extern const int op_mutant_count;

/* Runs the mutant's case with and without the mutant in `t`. Returns whether case_compare finds a
 * wrong output with it (not merely an error of the op) and nothing without it. One call at a time.
 */
bool mutant_is_caught(const struct op_mutant *m, struct test_stream *t,
                      const double tolerance[DPT_DTYPE_COUNT]);

#endif
