/* What benches share: numbers on the command line, processes that wait for each other. */
#include "worker/bench/bench.h"
#include "worker/bench/chips.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SOON_MS = 20 * 1000, SHORT_MS = 50 };

static void numbers(void **state)
{
    (void)state;
    static const char *const wrong[] = {"",  "x",   "2x", "0",
                                        "9", "1,2", "-1", "99999999999999999999"};
    int value = 7;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (dpt_bench_parse_int(wrong[i], 1, 8, &value) || value != 7)
            fail_msg("'%s' is taken for %d", wrong[i], value);
    assert_true(dpt_bench_parse_int("8", 1, 8, &value));
    assert_int_equal(value, 8);
}

static void lists_of_numbers(void **state)
{
    (void)state;
    static const char *const wrong[] = {"", ",", "1,", ",1", "1,,2", "1,9", "1;2", "1,2,3,4"};
    int values[3], n;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (dpt_bench_parse_ints(wrong[i], 1, 8, 3, values, &n))
            fail_msg("'%s' is taken for %d numbers", wrong[i], n);
    assert_true(dpt_bench_parse_ints("4", 1, 8, 3, values, &n));
    assert_int_equal(n, 1);
    assert_true(dpt_bench_parse_ints("1,8,2", 1, 8, 3, values, &n));
    assert_int_equal(n, 3);
    assert_int_equal(values[0] * 100 + values[1] * 10 + values[2], 182);
}

static void peaks_of_chips(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        double tflops;
    } cases[] = {{"NVIDIA H200", 989.4},
                 {"NVIDIA H100 PCIe", 756},
                 {"NVIDIA H100 80GB HBM3", 989.4},
                 {"NVIDIA A100-SXM4-80GB", 312},
                 {"NVIDIA A10", 125},
                 {"NVIDIA L40S", 362},
                 {"NVIDIA L4", 121},
                 {"Voodoo 2", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (fabs(dpt_chip_peak(cases[i].name) - cases[i].tflops * 1e12) > 1)
            fail_msg("%s: %g", cases[i].name, dpt_chip_peak(cases[i].name));
    /* GPT-2 124M at T = 1024: 746 and 57 MFLOP a token. */
    const double mfu = dpt_mfu(450000, 124439808, 12, 768, 1024, 989.4e12);
    assert_true(fabs(mfu - 450000 * (746.638848e6 + 56.623104e6) / 989.4e12) < 1e-12);
}

static void processes_meet(void **state)
{
    (void)state;
    struct dpt_err err;
    int *listening = mmap(NULL, 2 * sizeof *listening, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(listening, MAP_FAILED);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        _exit(dpt_bench_meet(listening, 2, 1, SOON_MS, &err) == DPT_OK ? 0 : 1);
    const enum dpt_status status = dpt_bench_meet(listening, 2, 0, SOON_MS, &err);
    int how = -1;
    assert_int_equal(waitpid(pid, &how, 0), pid);
    assert_int_equal(how, 0);
    assert_int_equal(status, DPT_OK);
    assert_int_equal(munmap(listening, 2 * sizeof *listening), 0);
}

static void one_that_does_not_come(void **state)
{
    (void)state;
    struct dpt_err err;
    int listening[3] = {0, 1, 0};
    assert_int_equal(dpt_bench_meet(listening, 3, 0, SHORT_MS, &err), DPT_ETIMEOUT);
    if (strstr(err.text, "process 2") == NULL)
        fail_msg("'%s' does not say who is missing", err.text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers),
        cmocka_unit_test(lists_of_numbers),
        cmocka_unit_test(peaks_of_chips),
        cmocka_unit_test(processes_meet),
        cmocka_unit_test(one_that_does_not_come),
    };
    return cmocka_run_group_tests_name("bench", tests, NULL, NULL);
}
