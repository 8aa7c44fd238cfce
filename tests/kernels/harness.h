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

/* Makes buffers with standard normal inputs drawn for this case, rounded to the dtype, and outputs
 * of NaN. Aborts without memory. */
void case_buffers_init(const struct op_case *c, enum dpt_dtype dtype, struct case_buffers *ret);
void case_buffers_fini(struct case_buffers *b);

/* Whether the case's op exists in this dtype; its name for messages. */
bool case_has(const struct op_case *c, enum dpt_dtype dtype);
const char *dtype_name(enum dpt_dtype dtype);

/* The bits of x in memory, and their value (kernels/half.h). */
uint16_t half_of(enum dpt_dtype dtype, float x);
float float_of(enum dpt_dtype dtype, uint16_t half);

/* n floats of NaN. */
void poison(float *p, int64_t n);

/* n standard normal values, the same for the same `which` and seed; the seed is 11 until a test
 * sets another. */
extern uint64_t fill_random_seed;
void fill_random(float *p, int64_t n, uint64_t which);

/* Opens a device and a stream; the ops' errors are fatal in close. */
struct test_stream {
    struct dpt_device *device;
    struct dpt_stream *stream;
    const struct dpt_ops *ops;
    int errors; /* of cases that it could not run */
};
/* Of the CPU device (open_cpu.c); and of one with this table of kernels. */
struct test_stream test_stream_open(int threads);
struct dpt_cpu_kernels;
struct test_stream test_stream_open_with(const struct dpt_cpu_kernels *kernels, int threads);
/* Fails when there were errors. */
void test_stream_close(struct test_stream *t);
/* Syncs and aborts the test with the error's text if there is one. */
void test_stream_check(struct test_stream *t);

/* n bytes of host memory in the device's, to be freed with dpt_device_free; and back. */
void *test_upload(struct test_stream *t, const void *from, size_t bytes);
void test_download(struct test_stream *t, const void *from, size_t bytes, void *to);

/* Runs the case in the device's memory with poisoned (or, accumulating, given) outputs. An error of
 * the op is told and counted. */
void case_run(const struct op_case *c, struct test_stream *t, struct case_buffers *b,
              bool accumulate);

/* Compares the outputs of a run with the reference in double precision: the relative 2-norm error
 * of each is at most tolerance[dtype], or that of f32 where it is f32 and nothing in it was
 * rounded. Prints the outputs that are off, unless `quiet`, and returns their number. */
int case_judge(const struct op_case *c, const struct case_buffers *b,
               const double tolerance[DPT_DTYPE_COUNT], bool quiet);

/* Runs the case and judges it; the number is one larger for each error of an op. */
int case_compare(const struct op_case *c, enum dpt_dtype dtype, struct test_stream *t,
                 const double tolerance[DPT_DTYPE_COUNT], bool quiet);

/* Runs the case once more, accumulating onto random values: an output that does not accumulate has
 * the bits of the run before, the others are old + contribution. Returns how many outputs are not
 * so. */
int case_adds(const struct op_case *c, struct test_stream *t, struct case_buffers *b);

/* Runs the case, and then case_adds. */
int case_accumulates(const struct op_case *c, enum dpt_dtype dtype, struct test_stream *t);

/* ||a-b|| / ||b||, 2-norms; NaN in a gives NaN. */
double relative_error(const float *a, const double *b, int64_t n);

#endif
