/* Times as a person reads them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/utc.h"

static void minutes_are_printed(void **state)
{
    (void)state;
    static const struct {
        int64_t at_s;
        const char *text;
    } cases[] = {{0, "1970-01-01 00:00 UTC"},
                 {1795858219, "2026-11-28 09:30 UTC"},
                 {-1, "1969-12-31 23:59 UTC"},
                 {INT64_MAX, "second 9223372036854775807"}};
    char text[DPT_UTC_TEXT_BYTES];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dpt_utc_text(cases[i].at_s, text);
        assert_string_equal(text, cases[i].text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(minutes_are_printed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
