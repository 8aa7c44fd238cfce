/* Shared by the tests on a CUDA device. They need no test framework. */
#ifndef DPT_TESTS_GPU_GPU_H
#define DPT_TESTS_GPU_GPU_H

#include "tests/kernels/harness.h"

enum { GPU_SKIPPED = 77 };

/* A stream on CUDA device 0. Where there is none the process ends: skipped (77), or, with
 * DPT_TEST_GPU=1 in the environment, failed. */
struct test_stream gpu_open(void);

/* Seeds the random inputs by DPT_TEST_SEED or the clock, and says how. */
void gpu_seed(void);

/* Counts and prints a check that fails. */
extern int gpu_failures;
void gpu_check(bool ok, const char *what, const char *file, int line);
#define CHECK(cond) gpu_check(cond, #cond, __FILE__, __LINE__)

/* The relative 2-norm errors that are allowed in each dtype: those of the CPU's tests, but that
 * cuBLAS sums f32 in an order of its own. */
extern const double gpu_tolerance[DPT_DTYPE_COUNT];

/* 0 or 1: the exit code. */
int gpu_verdict(const char *name);

#endif
