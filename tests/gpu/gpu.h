/* Shared by the tests on a CUDA device, which use no test framework. */
#ifndef DPT_TESTS_GPU_GPU_H
#define DPT_TESTS_GPU_GPU_H

#include "tests/kernels/harness.h"

enum { GPU_SKIPPED = 77 };

/* Opens a stream on CUDA device 0. Without such a device the process exits: with 77 (skipped), or,
 * with DPT_TEST_GPU=1 in the environment, as a failure. */
struct test_stream gpu_open(void);

/* Seeds the random inputs from DPT_TEST_SEED or the clock, and prints the seed. */
void gpu_seed(void);

/* Counts and prints a check that fails. */
extern int gpu_failures;
void gpu_check(bool ok, const char *what, const char *file, int line);
#define CHECK(cond) gpu_check(cond, #cond, __FILE__, __LINE__)

/* The largest relative 2-norm error that is allowed in each dtype, as in tests/kernels/ops_test.c.
 */
extern const double gpu_tolerance[DPT_DTYPE_COUNT];

/* Prints the verdict; returns the exit code, 0 or 1. */
int gpu_verdict(const char *name);

#endif
