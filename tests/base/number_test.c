/* Numbers with commas. */
#include "base/number.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void numbers_have_commas(void **state)
{
    (void)state;
    static const struct {
        double value;
        int decimals;
        const char *text;
    } cases[] = {
        {0, 0, "0"},
        {-0.4, 0, "-0"},
        {999, 0, "999"},
        {999.95, 1, "1,000.0"},
        {1000, 0, "1,000"},
        {-1000, 0, "-1,000"},
        {-123, 2, "-123.00"},
        {12345.678, 2, "12,345.68"},
        {1234567, 0, "1,234,567"},
        {0.123456789, 9, "0.123456789"},
        {999999999999999, 3, "999,999,999,999,999.000"},
        {1e15, 2, "1.000e+15"},
        {-1.2361e16, 0, "-1.236e+16"},
        {(double)NAN, 2, "nan"},
        {(double)INFINITY, 2, "inf"},
        {-(double)INFINITY, 0, "-inf"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[DPT_NUMBER_BYTES];
        assert_string_equal(dpt_number_grouped(cases[i].value, cases[i].decimals, text),
                            cases[i].text);
    }
}

/* The longest numbers fit, with all decimals. */
static void longest_number_fits(void **state)
{
    (void)state;
    char text[DPT_NUMBER_BYTES];
    (void)dpt_number_grouped(-999999999999999, 9, text);
    assert_string_equal(text, "-999,999,999,999,999.000000000");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_have_commas),
        cmocka_unit_test(longest_number_fits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
