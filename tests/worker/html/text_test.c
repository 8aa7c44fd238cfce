/* Text and ticks of pages. */
#include "worker/html/scale.h"
#include "worker/html/text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The text as it is written; 0 characters at most: whole. */
static void assert_written(const char *text, size_t characters_max, const char *expected)
{
    char *written = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&written, &bytes);
    assert_non_null(out);
    if (characters_max > 0)
        dpt_html_short_text(out, text, characters_max);
    else
        dpt_html_text(out, text);
    assert_int_equal(fclose(out), 0);
    assert_string_equal(written, expected);
    free(written);
}

static void special_characters_are_quoted(void **state)
{
    (void)state;
    assert_written("", 0, "");
    assert_written("a<b>&\"c'", 0, "a&lt;b&gt;&amp;&quot;c'");
    assert_written("&amp;", 0, "&amp;amp;");
    assert_written("é … 😀", 0, "é … 😀");
}

/* XML allows neither these characters nor bytes that are no UTF-8. */
static void bad_bytes_become_question_marks(void **state)
{
    (void)state;
    assert_written("\x01"
                   "a\n\x7f",
                   0, "?a?\x7f");
    assert_written("\xff\xfe", 0, "??");
    assert_written("\xc3", 0, "?");                /* cut */
    assert_written("\xc0\xaf", 0, "??");           /* too long a form of '/' */
    assert_written("\xed\xa0\x80", 0, "???");      /* half of a pair */
    assert_written("\xef\xbf\xbf", 0, "???");      /* U+FFFF */
    assert_written("\xf4\x90\x80\x80", 0, "????"); /* beyond U+10FFFF */
}

static void long_text_lacks_its_middle(void **state)
{
    (void)state;
    assert_written("abcdefgh", 8, "abcdefgh");
    assert_written("abcdefghi", 8, "abcd…ghi");
    assert_written("abcdefghi", 3, "a…i");
    assert_written("ééééé", 4, "éé…é"); /* characters, not bytes */
    assert_written("<<<<<<", 5, "&lt;&lt;…&lt;&lt;");
    assert_written("\xff\xff\xff\xff", 3, "?…?");
}

static void ticks_are_1_2_or_5(void **state)
{
    (void)state;
    static const double cases[][2] = {{1, 0.2}, {5, 1},           {10, 2},    {11, 5},      {25, 5},
                                      {26, 10}, {0.0007, 0.0002}, {1e9, 2e8}, {123456, 5e4}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const double tick = dpt_html_tick(cases[i][0], 5);
        assert_true(tick > cases[i][1] * 0.999 && tick < cases[i][1] * 1.001);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(special_characters_are_quoted),
        cmocka_unit_test(bad_bytes_become_question_marks),
        cmocka_unit_test(long_text_lacks_its_middle),
        cmocka_unit_test(ticks_are_1_2_or_5),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
