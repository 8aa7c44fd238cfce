/* Parts that benches share: options, exit codes, processes that wait for each other. */
#include "base/memory.h"
#include "worker/bench/bench.h"
#include "worker/bench/child.h"
#include "worker/bench/chips.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SOON_MS = 20 * 1000, SHORT_MS = 50 };

static void lists_of_numbers(void **state)
{
    (void)state;
    static const char *const wrong[] = {"",
                                        ",",
                                        "1,",
                                        ",1",
                                        "1,,2",
                                        "1,9",
                                        "1;2",
                                        "2x",
                                        "0",
                                        "-1",
                                        "99999999999999999999",
                                        "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1"};
    struct dpt_bench_list list = {.min = 1, .max = 8};
    struct dpt_err err;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (dpt_bench_set_list(&list, wrong[i], &err) != DPT_EINVAL)
            fail_msg("'%s' is taken for %d numbers", wrong[i], list.n);
    assert_int_equal(dpt_bench_set_list(&list, "4", &err), DPT_OK);
    assert_int_equal(list.n, 1);
    assert_int_equal(dpt_bench_set_list(&list, "1,8,2", &err), DPT_OK);
    assert_int_equal(list.n, 3);
    assert_int_equal(list.values[0] * 100 + list.values[1] * 10 + list.values[2], 182);
}

static void changes_of_a_config(void **state)
{
    (void)state;
    struct dpt_bench_sets sets = {.n = 0};
    struct dpt_err err;
    for (int i = 0; i < DPT_BENCH_SETS_MAX; i++)
        assert_int_equal(dpt_bench_add_set(&sets, "seed=1", &err), DPT_OK);
    assert_int_equal(dpt_bench_add_set(&sets, "seed=2", &err), DPT_EINVAL);
    assert_string_equal(err.text, "given more than 16 times");
    assert_int_equal(sets.n, DPT_BENCH_SETS_MAX);
    assert_string_equal(sets.set[DPT_BENCH_SETS_MAX - 1], "seed=1");
}

static void real_numbers(void **state)
{
    (void)state;
    static const char *const wrong[] = {"", "x", "0.1", "9.5", "nan", "1s"};
    struct dpt_bench_real real = {.min = 0.2, .max = 8, .value = 7};
    struct dpt_err err;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (dpt_bench_set_real(&real, wrong[i], &err) != DPT_EINVAL || real.value != 7)
            fail_msg("'%s' is taken for %g", wrong[i], real.value);
    assert_int_equal(dpt_bench_set_real(&real, "0.5", &err), DPT_OK);
    assert_true(real.value == 0.5);
}

static void precisions(void **state)
{
    (void)state;
    enum dpt_dtype dtype = DPT_F32;
    struct dpt_err err;
    assert_int_equal(dpt_bench_set_precision(&dtype, "fp64", &err), DPT_EINVAL);
    assert_int_equal(dpt_bench_set_precision(&dtype, "bf16", &err), DPT_OK);
    assert_int_equal(dtype, DPT_BF16);
    assert_string_equal(dpt_bench_precision(dtype), "bf16");
}

static void names_in_lists(void **state)
{
    (void)state;
    assert_true(dpt_bench_is_listed(NULL, "ddp"));
    assert_true(dpt_bench_is_listed("zero1,ddp", "ddp"));
    assert_true(dpt_bench_is_listed("ddp+packed,ddp", "ddp"));
    assert_false(dpt_bench_is_listed("ddp+packed", "ddp"));
    assert_false(dpt_bench_is_listed("", "ddp"));
}

/* The exit code of a bench whose run ends with `run_status`. */
static enum dpt_status run_status;

static enum dpt_status end_at_once(json_t **ret_report, struct dpt_err *err)
{
    (void)ret_report;
    return run_status == DPT_OK ? DPT_OK : dpt_fail(err, run_status, "as the test says");
}

static void exit_codes(void **state)
{
    (void)state;
    static int64_t n;
    static const struct dpt_option options[] = {
        {"--n", "N", "a number", .number = &n, .min = 1, .max = 8}};
    const struct dpt_bench bench = {
        .name = "x", .help = "nothing", .options = options, .n_options = 1, .run = end_at_once};
    static const struct {
        enum dpt_status status;
        int code;
    } ends[] = {{DPT_OK, 0}, {DPT_EPEER, 1}, {DPT_EINVAL, 2}, {DPT_EUNSUPPORTED, 77}};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        run_status = ends[i].status;
        assert_int_equal(dpt_bench_main(&bench, 3, (char *[]){"x", "--n", "5", NULL}),
                         ends[i].code);
    }
    run_status = DPT_EPEER; /* not reached */
    assert_int_equal(dpt_bench_main(&bench, 3, (char *[]){"x", "--n", "9", NULL}), 2);
    assert_int_equal(dpt_bench_main(&bench, 2, (char *[]){"x", "--m", NULL}), 2);
    assert_int_equal(dpt_bench_main(&bench, 2, (char *[]){"x", "--help", NULL}), 0);
    assert_int_equal(n, 5);
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

/* ---- parts in a process of their own ---- */

static int here; /* of this process */

static enum dpt_status change_and_measure(const void *ctx, json_t **ret, struct dpt_err *err)
{
    (void)err;
    here = 1;
    *ret = json_pack("{s:i}", "figure", *(const int *)ctx);
    return DPT_OK;
}

static enum dpt_status fail_as_asked(const void *ctx, json_t **ret, struct dpt_err *err)
{
    (void)ret;
    return dpt_fail(err, *(const enum dpt_status *)ctx, "it \xff failed"); /* no UTF-8 */
}

static enum dpt_status end_by_signal(const void *ctx, json_t **ret, struct dpt_err *err)
{
    (void)ret;
    (void)raise(*(const int *)ctx);
    return dpt_fail(err, DPT_ECORRUPT, "not reached");
}

static void parts_run_in_a_process_of_their_own(void **state)
{
    (void)state;
    const int figure = 42;
    json_t *found = NULL;
    struct dpt_err err;
    assert_int_equal(dpt_bench_in_child(change_and_measure, &figure, &found, &err), DPT_OK);
    assert_int_equal(json_integer_value(json_object_get(found, "figure")), figure);
    assert_int_equal(here, 0);
    json_decref(found);
    const enum dpt_status status = DPT_ECONFIG;
    assert_int_equal(dpt_bench_in_child(fail_as_asked, &status, &found, &err), DPT_ECONFIG);
    assert_string_equal(err.text, "it ? failed");
    assert_false(dpt_bench_is_oom(&err));
}

/* SIGKILL alone is no lack of memory, where the kernel counts such ends: test_train.py has one. */
static void killed_part_is_judged_by_the_counter(void **state)
{
    (void)state;
    const bool counted = dpt_memory_oom_kills("") >= 0;
    const int killed = SIGKILL, ended = SIGTERM;
    json_t *found = NULL;
    struct dpt_err err;
    assert_int_equal(dpt_bench_in_child(end_by_signal, &killed, &found, &err),
                     counted ? DPT_EABORTED : DPT_ENOMEM);
    assert_non_null(strstr(err.text, "signal 9"));
    assert_int_equal(dpt_bench_is_oom(&err), !counted);
    assert_int_equal(dpt_bench_in_child(end_by_signal, &ended, &found, &err), DPT_EABORTED);
    assert_non_null(strstr(err.text, "signal 15"));
    assert_false(dpt_bench_is_oom(&err));
    assert_null(found);
    (void)dpt_fail(&err, DPT_EREFUSED, "too little memory: …");
    assert_true(dpt_bench_is_oom(&err));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_of_numbers),
        cmocka_unit_test(changes_of_a_config),
        cmocka_unit_test(real_numbers),
        cmocka_unit_test(precisions),
        cmocka_unit_test(names_in_lists),
        cmocka_unit_test(exit_codes),
        cmocka_unit_test(peaks_of_chips),
        cmocka_unit_test(processes_meet),
        cmocka_unit_test(one_that_does_not_come),
        cmocka_unit_test(parts_run_in_a_process_of_their_own),
        cmocka_unit_test(killed_part_is_judged_by_the_counter),
    };
    return cmocka_run_group_tests_name("bench", tests, NULL, NULL);
}
