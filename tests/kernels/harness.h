/* Buffers of a case, devices, comparisons: shared by the tests of kernels. */
#ifndef DPT_TESTS_KERNELS_HARNESS_H
#define DPT_TESTS_KERNELS_HARNESS_H

#include "tests/kernels/cases.h"

struct case_buffers {
    enum dpt_dtype dtype;
    struct case_layout layout;
    /* Widened: values of the dtype. */
    float *in[CASE_BUFFERS_MAX], *out[CASE_BUFFERS_MAX];
    int32_t *ints;
};

/* Makes the buffers. Inputs are standard normal numbers drawn for this case and rounded to the
 * dtype; outputs are NaN. Aborts if there is no memory. */
void case_buffers_init(const struct op_case *c, enum dpt_dtype dtype, struct case_buffers *ret);
void case_buffers_fini(struct case_buffers *b);

/* Whether the case's op exists in this dtype; the dtype's name for messages. */
bool case_has(const struct op_case *c, enum dpt_dtype dtype);
/* Whether a test that runs each `every`-th pair of case and dtype runs this one: of each case a
 * part of its dtypes, one at least, and of the next case the others. */
bool case_is_taken(const struct op_case *c, enum dpt_dtype dtype, int every);
const char *dtype_name(enum dpt_dtype dtype);

/* The 16 bits of x in this dtype, and the value of such bits (kernels/half.h). */
uint16_t half_of(enum dpt_dtype dtype, float x);
float float_of(enum dpt_dtype dtype, uint16_t half);

/* Sets n floats to NaN. */
void poison(float *p, int64_t n);

/* Sets p to n standard normal values, a function of `which` and the seed. The seed is 11 until a
 * test sets another one. */
extern uint64_t fill_random_seed;
void fill_random(float *p, int64_t n, uint64_t which);

/* A device and a stream. test_stream_close fails the test if ops had errors. */
struct test_stream {
    struct dpt_device *device;
    struct dpt_stream *stream;
    const struct dpt_ops *ops;
    int errors; /* cases whose op had an error */
};
/* Open the CPU device (open_cpu.c); _with: with this table of kernels. */
struct test_stream test_stream_open(int threads);
struct dpt_cpu_kernels;
struct test_stream test_stream_open_with(const struct dpt_cpu_kernels *kernels, int threads);
/* Fails the test if there were errors. */
void test_stream_close(struct test_stream *t);
/* Syncs and aborts the test with the error's text if there is one. */
void test_stream_check(struct test_stream *t);

/* upload copies host memory into new memory of the device, which the caller frees with
 * dpt_device_free. download copies back. */
void *test_upload(struct test_stream *t, const void *from, size_t bytes);
void test_download(struct test_stream *t, const void *from, size_t bytes, void *to);

/* Runs the case in the device's memory. Outputs start as NaN or, with `accumulate`, as they are in
 * `b`. An error of the op is printed and counted. */
void case_run(const struct op_case *c, struct test_stream *t, struct case_buffers *b,
              bool accumulate);

/* Compares the outputs of a run with the reference in double precision. The relative 2-norm error
 * of an output is at most tolerance[dtype]; for an f32 output without rounded terms it is at most
 * tolerance[DPT_F32]. Prints the outputs that differ more, unless `quiet`; returns their number. */
int case_judge(const struct op_case *c, const struct case_buffers *b,
               const double tolerance[DPT_DTYPE_COUNT], bool quiet);

/* Runs the case and judges it. Returns the number of wrong outputs and of errors of the op. */
int case_compare(const struct op_case *c, enum dpt_dtype dtype, struct test_stream *t,
                 const double tolerance[DPT_DTYPE_COUNT], bool quiet);

/* Runs the case once more, with outputs that start as random values. An output that accumulates
 * must become old + contribution; another one must have the bits of the run before. Returns the
 * number of wrong outputs. */
int case_adds(const struct op_case *c, struct test_stream *t, struct case_buffers *b);

/* Runs the case, and then case_adds. */
int case_accumulates(const struct op_case *c, enum dpt_dtype dtype, struct test_stream *t);

/* ||a-b|| / ||b||, 2-norms; NaN in a gives NaN. */
double relative_error(const float *a, const double *b, int64_t n);

#endif
