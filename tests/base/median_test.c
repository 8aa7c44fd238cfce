/* Medians of odd and even numbers of values. */
#include "base/median.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void middle_of_sorted_values(void **state)
{
    (void)state;
    double one[] = {7}, even[] = {9, 1, 4, 2}, odd[] = {5, -3, 8};
    assert_true(dpt_median(one, 1) == 7);
    assert_true(dpt_median(even, 4) == 3);
    assert_true(dpt_median(odd, 3) == 5);
    for (int i = 0; i < 3; i++)
        assert_true(even[i] < even[i + 1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(middle_of_sorted_values)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
