/* Each op forward and backward against the double-precision reference, with poisoned outputs; and
 * the error of an op for a dtype that it lacks. */
#include "base/exact_math.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/kernels.h"
#include "tests/every.h"
#include "tests/kernels/harness.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Relative 2-norm error of an output. Rounding alone gives about 6e-8 * sqrt(depth of the sums) in
 * f32. Values that are rounded to bf16 (2^-9 at most, a few times one after another) or fp16
 * (2^-12) have an error of that size. */
static const double TOLERANCE[DPT_DTYPE_COUNT] = {5e-6, 4e-3, 5e-4};

static void test_against_reference(void **state)
{
    (void)state;
    struct test_stream t = test_stream_open(2);
    const int every = dpt_test_sanitized_every();
    int bad = 0;
    for (int dtype = 0; dtype < DPT_DTYPE_COUNT; dtype++)
        for (int i = 0; i < op_case_count; i++)
            if (case_is_taken(&op_cases[i], dtype, every))
                bad += case_compare(&op_cases[i], dtype, &t, TOLERANCE, false);
    test_stream_close(&t);
    assert_int_equal(bad, 0);
}

/* The GELU's and the exponential's whole range, where a 2-norm would hide small values. */
static void test_gelu_everywhere(void **state)
{
    (void)state;
    enum { N = 40001 };
    struct test_stream t = test_stream_open(1);
    float *x = malloc(N * sizeof *x), *y = malloc(N * sizeof *y);
    for (int i = 0; i < N; i++)
        x[i] = (float)(i - N / 2) * 1e-3f;
    const struct dpt_gelu a = {.n = N, .x = x, .out = y};
    t.ops->gelu_forward(t.stream, &a);
    for (int i = 0; i < N; i++) {
        double v = (double)x[i];
        double want = 0.5 * v * (1.0 + tanh(0.79788456080286535588 * (v + 0.044715 * v * v * v)));
        assert_true(fabs((double)y[i] - want) <= 3e-7 * fabs(v) + 1e-37);
    }
    free(x);
    free(y);
    test_stream_close(&t);
}

/* softmax_grad with nothing subtracted is the bare exponential. */
static void test_exponential_and_logarithm(void **state)
{
    (void)state;
    enum { M = 17001 };
    float *x = malloc(M * sizeof *x);
    for (int isa = 0; dpt_cpu_kernels_at(isa); isa++) {
        for (int i = 0; i < M; i++)
            x[i] = (float)i * 0.0103f - 87.3f;
        dpt_cpu_kernels_at(isa)->of[DPT_F32]->softmax_grad(M, x, 0.0f, 1.0f, x);
        for (int i = 0; i < M; i++) {
            double want = exp((double)((float)i * 0.0103f - 87.3f));
            want = want < 2.3e38 ? want : (double)x[i]; /* cut off near the greatest float */
            assert_true(fabs((double)x[i] - want) <= 2e-7 * want);
        }
        float ends[4] = {-INFINITY, -100.0f, 0.0f, NAN};
        dpt_cpu_kernels_at(isa)->of[DPT_F32]->softmax_grad(4, ends, 0.0f, 1.0f, ends);
        assert_true(ends[0] == 0.0f && ends[1] == 0.0f && ends[2] == 1.0f && isnan(ends[3]));
    }
    free(x);
    for (double v = 1e-30; v < 1e30; v *= 1.37)
        assert_true(fabs(dpt_natural_log(v) - log(v)) <= 1e-14 * fmax(fabs(log(v)), 1e-2));
    assert_true(dpt_natural_log(1.0) == 0.0);
    assert_true(dpt_natural_log(0.0) == -INFINITY && dpt_natural_log(INFINITY) == INFINITY);
    assert_true(isnan(dpt_natural_log(NAN)) && isnan(dpt_natural_log(-1.0)));
}

static void test_other_dtypes_are_refused(void **state)
{
    (void)state;
    struct test_stream t = test_stream_open(1);
    struct dpt_err err;
    float x[4] = {1, 2, 3, 4}, y[4] = {5, 6, 7, 8};
    const struct dpt_gelu a = {.n = 4, .dtype = DPT_DTYPE_COUNT, .x = x, .out = y};
    const struct dpt_gelu good = {.n = 4, .x = x, .out = y};
    t.ops->gelu_forward(t.stream, &a);
    t.ops->gelu_forward(t.stream, &good); /* the error sticks: nothing runs after it */
    assert_true(y[0] == 5.0f);
    assert_int_equal(dpt_stream_sync(t.stream, &err), DPT_EUNSUPPORTED);
    assert_non_null(strstr(err.text, "gelu"));
    assert_int_equal(dpt_stream_sync(t.stream, &err), DPT_OK);
    t.ops->gelu_forward(t.stream, &good);
    assert_true(y[0] != 5.0f);
    test_stream_close(&t);
}

static void test_bad_thread_counts(void **state)
{
    (void)state;
    struct dpt_device *dev = NULL;
    struct dpt_stream *s = NULL;
    struct dpt_err err;
    assert_int_equal(dpt_device_cpu_create(&dev, &err), DPT_OK);
    assert_int_equal(dpt_stream_create(dev, 0, &s, &err), DPT_EINVAL);
    assert_int_equal(dpt_stream_create(dev, 100000, &s, &err), DPT_EINVAL);
    assert_null(s);
    dpt_device_destroy(&dev);
    assert_null(dev);
}

/* The same machine has the same fingerprint, with the right text. The products are computed again,
 * which devices after the first do not do. */
static void test_fingerprint_is_stable(void **state)
{
    (void)state;
    struct test_stream a = test_stream_open(1), b = test_stream_open(3);
    const char *text = dpt_device_fingerprint(a.device);
    assert_string_equal(text, dpt_device_fingerprint(b.device));
    assert_int_equal(strncmp(text, "cpu ", 4), 0);
    enum dpt_cpu_isa limit;
    struct dpt_err err;
    assert_int_equal(dpt_cpu_isa_limit(&limit, &err), DPT_OK);
    assert_non_null(strstr(text, dpt_cpu_kernels_best(limit)->name));
    assert_non_null(strstr(text, "onednn-"));
    uint32_t probe = 0;
    char expected[32];
    assert_int_equal(dpt_cpu_probe(b.device, &probe, &err), DPT_OK);
    (void)snprintf(expected, sizeof expected, "probe-%08x", probe);
    assert_non_null(strstr(text, expected));
    assert_true(strlen(text) < 120); /* not cut */
    test_stream_close(&a);
    test_stream_close(&b);
}

/* A name that there is not, and a limit other than the one that the process has begun with. */
static void test_bad_limits_are_refused(void **state)
{
    (void)state;
    struct dpt_device *dev = NULL;
    struct dpt_err err;
    const char *was = getenv("DPT_TEST_ISA");
    char *kept = was ? strdup(was) : NULL;
    test_stream_close(&(struct test_stream[]){test_stream_open(1)}[0]);
    assert_int_equal(setenv("DPT_TEST_ISA", "avx3", 1), 0);
    assert_int_equal(dpt_device_cpu_create(&dev, &err), DPT_EINVAL);
    assert_string_equal(err.text,
                        "DPT_TEST_ISA is 'avx3', not one of plain, avx2, avx512, avx512_bf16");
    assert_int_equal(
        setenv("DPT_TEST_ISA", kept && strcmp(kept, "plain") == 0 ? "avx2" : "plain", 1), 0);
    assert_int_equal(dpt_device_cpu_create(&dev, &err), DPT_EUNSUPPORTED);
    assert_non_null(strstr(err.text, "the process has begun with another"));
    assert_null(dev);
    assert_int_equal(kept ? setenv("DPT_TEST_ISA", kept, 1) : unsetenv("DPT_TEST_ISA"), 0);
    free(kept);
}

static void test_memory_is_zeroed_aligned_and_counted(void **state)
{
    (void)state;
    struct dpt_device *dev = NULL;
    struct dpt_err err;
    assert_int_equal(dpt_device_cpu_create(&dev, &err), DPT_OK);
    static const size_t sizes[] = {0, 1, 100, 5 << 20};
    for (int i = 0; i < 4; i++) {
        void *p = NULL;
        assert_int_equal(dpt_device_alloc(dev, sizes[i], &p, &err), DPT_OK);
        assert_int_equal((uintptr_t)p % 64, 0);
        for (size_t at = 0; at < sizes[i]; at++)
            assert_int_equal(((const char *)p)[at], 0);
        assert_int_equal(dpt_device_bytes(dev), sizes[i]);
        memset(p, 1, sizes[i]);
        dpt_device_free(dev, p, sizes[i]);
    }
    assert_int_equal(dpt_device_bytes(dev), 0);
    dpt_device_destroy(&dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_reference),
        cmocka_unit_test(test_gelu_everywhere),
        cmocka_unit_test(test_exponential_and_logarithm),
        cmocka_unit_test(test_other_dtypes_are_refused),
        cmocka_unit_test(test_bad_thread_counts),
        cmocka_unit_test(test_fingerprint_is_stable),
        cmocka_unit_test(test_bad_limits_are_refused),
        cmocka_unit_test(test_memory_is_zeroed_aligned_and_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
