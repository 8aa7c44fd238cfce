/* The steps that are traced, by schedule. */
#include "worker/trace/window.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <string.h>

/* One character for a step: '.' idle, 'w' warm-up, 'r' record, 'R' record and write. */
static char letter_of(const struct dpt_trace_schedule *schedule, int64_t step)
{
    static const char letters[] = {[DPT_TRACE_IDLE] = '.',
                                   [DPT_TRACE_WARMUP] = 'w',
                                   [DPT_TRACE_RECORD] = 'r',
                                   [DPT_TRACE_RECORD_AND_WRITE] = 'R'};
    return letters[dpt_trace_window_at(schedule, step).phase];
}

static void test_schedules(void **state)
{
    (void)state;
    static const struct {
        struct dpt_trace_schedule schedule;
        const char *steps;
    } cases[] = {
        {{1, 1, 3, 1}, ".wrrR......."},    {{1, 1, 3, 2}, ".wrrR.wrrR......"},
        {{1, 1, 3, 0}, ".wrrR.wrrR.wrrR"}, {{0, 0, 1, 0}, "RRRR"},
        {{0, 0, 2, 1}, "rR...."},          {{3, 0, 1, 1}, "...R...."},
        {{0, 2, 1, 2}, "wwRwwR...."},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (size_t step = 0; cases[i].steps[step]; step++)
            if (letter_of(&cases[i].schedule, (int64_t)step) != cases[i].steps[step])
                fail_msg("case %zu, step %zu: '%c', expected '%c'", i, step,
                         letter_of(&cases[i].schedule, (int64_t)step), cases[i].steps[step]);
}

static void test_windows_are_numbered(void **state)
{
    (void)state;
    const struct dpt_trace_schedule schedule = {1, 1, 3, 0};
    assert_int_equal(dpt_trace_window_at(&schedule, 4).window, 0);
    assert_int_equal(dpt_trace_window_at(&schedule, 5).window, 1);
    const int64_t late = INT64_C(5000000000000);
    assert_int_equal(dpt_trace_window_at(&schedule, late + 2).window, late / 5);
    assert_int_equal(dpt_trace_window_at(&schedule, late + 2).phase, DPT_TRACE_RECORD);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schedules),
        cmocka_unit_test(test_windows_are_numbered),
    };
    return cmocka_run_group_tests_name("traced steps", tests, NULL, NULL);
}
