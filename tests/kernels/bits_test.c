/* Influences that must not change a bit: the number of threads, the instruction set, the
 * orientation of a weight, earlier work; and the meaning of accumulation. */
#include "tests/every.h"
#include "tests/kernels/harness.h"

#include "kernels/cpu/kernels.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static float *copy_of(const float *p, int64_t n)
{
    float *q = malloc((size_t)n * sizeof *q);
    memcpy(q, p, (size_t)n * sizeof *q);
    return q;
}

static void expect_same(const struct op_case *c, const struct case_buffers *b, float *const *want,
                        const char *what)
{
    for (int k = 0; k < b->layout.outputs; k++)
        for (int64_t e = 0; e < b->layout.out[k]; e++)
            if (memcmp(&want[k][e], &b->out[k][e], sizeof(float)) != 0)
                fail_msg("%s %s, %s: output %d [%d] is %.9g, was %.9g", dtype_name(b->dtype),
                         c->name, what, k, (int)e, (double)b->out[k][e], (double)want[k][e]);
}

enum { WIDTHS = 5, STREAMS_MAX = WIDTHS + 8 };

struct bench {
    struct test_stream streams[STREAMS_MAX];
    char names[STREAMS_MAX][32];
    int n;
};

static void open_streams(struct bench *b)
{
    static const int widths[WIDTHS] = {1, 2, 3, 4, 8};
    b->n = 0;
    for (int i = 0; i < WIDTHS; i++, b->n++) {
        b->streams[b->n] = test_stream_open(widths[i]);
        snprintf(b->names[b->n], sizeof b->names[b->n], "%d threads", widths[i]);
    }
    for (int i = 0; dpt_cpu_kernels_at(i); i++, b->n++) {
        b->streams[b->n] = test_stream_open_with(dpt_cpu_kernels_at(i), 2);
        snprintf(b->names[b->n], sizeof b->names[b->n], "%s", dpt_cpu_kernels_at(i)->name);
        assert_non_null(strstr(dpt_device_fingerprint(b->streams[b->n].device), b->names[b->n]));
    }
}

static void check_streams(struct bench *bench, const struct op_case *c, enum dpt_dtype dtype)
{
    struct case_buffers b;
    float *want[CASE_BUFFERS_MAX];
    case_buffers_init(c, dtype, &b);
    case_run(c, &bench->streams[0], &b, false);
    for (int k = 0; k < b.layout.outputs; k++)
        want[k] = copy_of(b.out[k], b.layout.out[k]);
    for (int s = 0; s < bench->n; s++) {
        case_run(c, &bench->streams[s], &b, false);
        expect_same(c, &b, want, bench->names[s]);
    }
    for (int k = 0; k < b.layout.outputs; k++)
        free(want[k]);
    case_buffers_fini(&b);
}

/* Runs every case with streams of several widths and instruction sets and compares with the first.
 */
static void test_threads_and_instruction_sets(void **state)
{
    (void)state;
    static struct bench bench;
    open_streams(&bench);
    for (int dtype = 0; dtype < DPT_DTYPE_COUNT; dtype++)
        for (int i = 0; i < op_case_count; i++)
            if (case_is_taken(&op_cases[i], dtype, dpt_test_every()))
                check_streams(&bench, &op_cases[i], dtype);
    for (int s = 0; s < bench.n; s++)
        test_stream_close(&bench.streams[s]);
}

/* Of the outputs and the gradient of the inputs: a weight that is turned is multiplied in the same
 * form. */
static void check_turned(struct test_stream *t, enum dpt_dtype dtype, const int64_t shape[3])
{
    const int64_t in = shape[1], out = shape[2];
    struct op_case c = op_cases[0]; /* linear */
    struct case_buffers b, turned;
    memcpy(c.shape, shape, 3 * sizeof *shape);
    case_buffers_init(&c, dtype, &b);
    case_run(&c, t, &b, false);
    c.name = "turned";
    c.shape[3] = 1;
    case_buffers_init(&c, dtype, &turned);
    for (int64_t i = 0; i < in * out; i++)
        turned.in[1][i % out * in + i / out] = b.in[1][i];
    case_run(&c, t, &turned, false);
    turned.layout.outputs = 3; /* without those of the weight and the bias */
    expect_same(&c, &turned, b.out, "the weight (out, in)");
    turned.layout.outputs = b.layout.outputs;
    case_buffers_fini(&b);
    case_buffers_fini(&turned);
}

static void test_orientation_of_weights(void **state)
{
    (void)state;
    static const int64_t shapes[][3] = {
        {5, 7, 3}, {130, 193, 65}, {64, 512, 1024}, {9, 6200, 18}, {33, 17, 6200}};
    struct test_stream t = test_stream_open(2);
    for (int dtype = 0; dtype < DPT_DTYPE_COUNT; dtype++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            check_turned(&t, dtype, shapes[i]);
    test_stream_close(&t);
}

/* old + contribution, with the contribution's stored bits. */
static void test_accumulation_adds_stored_bits(void **state)
{
    (void)state;
    struct test_stream t = test_stream_open(2);
    int bad = 0;
    for (int dtype = 0; dtype < DPT_DTYPE_COUNT; dtype++)
        for (int i = 0; i < op_case_count; i++)
            if (case_has(&op_cases[i], dtype))
                bad += case_accumulates(&op_cases[i], dtype, &t);
    test_stream_close(&t);
    assert_int_equal(bad, 0);
}

/* Products of more sizes than are kept ready: those that made room come back with the bits they
 * had. */
static void test_sizes_come_and_go(void **state)
{
    (void)state;
    enum { WIDTH = 16, ROWS = 400, OUTPUTS = 2 };
    struct test_stream t = test_stream_open(1);
    float *x = malloc(sizeof(float) * ROWS * WIDTH), *w = malloc(sizeof(float) * WIDTH * WIDTH);
    float *dx = malloc(sizeof(float) * ROWS * WIDTH), *dw = malloc(sizeof(float) * WIDTH * WIDTH);
    float *first[OUTPUTS] = {0};
    fill_random(x, ROWS * WIDTH, 1);
    fill_random(w, WIDTH * WIDTH, 2);
    for (int out_in = 0; out_in < 2; out_in++)
        for (int i = 1; i <= 2 * ROWS; i++) {
            const int64_t n = i <= ROWS ? i : 2 * ROWS - i + 1;
            const struct dpt_linear_backward a = {.n = n,
                                                  .in = WIDTH,
                                                  .out = WIDTH,
                                                  .x = x,
                                                  .w = w,
                                                  .dy = x,
                                                  .dx = dx,
                                                  .dw = dw,
                                                  .out_in = out_in != 0};
            t.ops->linear_backward(t.stream, &a);
            test_stream_check(&t);
            if (n == 1 && i == 1) {
                first[0] = copy_of(dx, WIDTH);
                first[1] = copy_of(dw, WIDTH * WIDTH);
            } else if (n == 1) {
                assert_memory_equal(first[0], dx, sizeof(float) * WIDTH);
                assert_memory_equal(first[1], dw, sizeof(float) * WIDTH * WIDTH);
                free(first[0]);
                free(first[1]);
            }
        }
    free(x);
    free(w);
    free(dx);
    free(dw);
    test_stream_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads_and_instruction_sets),
        cmocka_unit_test(test_orientation_of_weights),
        cmocka_unit_test(test_accumulation_adds_stored_bits),
        cmocka_unit_test(test_sizes_come_and_go),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
