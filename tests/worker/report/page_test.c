/* The page: the same report gives the same bytes; a file that does not take the page is an error.
 */
#include "tests/worker/report/page_samples.h"
#include "worker/report/page.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char *write_page(int i, size_t *ret_bytes)
{
    struct dpt_report reports[PAGE_SAMPLE_REPORTS_MAX];
    struct dpt_err err;
    char *text = NULL;
    const size_t n = page_sample_make(i, reports);
    FILE *out = open_memstream(&text, ret_bytes);
    assert_non_null(out);
    assert_int_equal(dpt_report_page_write(reports, n, out, &err), DPT_OK);
    assert_int_equal(fclose(out), 0);
    for (size_t k = 0; k < n; k++)
        dpt_report_free(&reports[k]);
    return text;
}

static void page_is_deterministic(void **state)
{
    (void)state;
    for (int i = 0; i < PAGE_SAMPLES; i++) {
        size_t one_bytes, two_bytes;
        char *one = write_page(i, &one_bytes), *two = write_page(i, &two_bytes);
        assert_int_equal(one_bytes, two_bytes);
        assert_memory_equal(one, two, one_bytes);
        free(one);
        free(two);
    }
}

/* 64 ranks with a timeline: a phone loads it. */
static void page_of_many_ranks_is_small(void **state)
{
    (void)state;
    for (int i = 0; i < PAGE_SAMPLES; i++) {
        size_t bytes;
        free(write_page(i, &bytes));
        assert_true(bytes < (size_t)4 << 20);
    }
}

static void full_disk_is_an_error(void **state)
{
    (void)state;
    struct dpt_report reports[PAGE_SAMPLE_REPORTS_MAX];
    struct dpt_err err;
    const size_t n = page_sample_make(0, reports);
    FILE *out = fopen("/dev/full", "we");
    assert_non_null(out);
    assert_int_equal(dpt_report_page_write(reports, n, out, &err), DPT_EIO);
    assert_non_null(strstr(err.text, "page"));
    (void)fclose(out);
    for (size_t k = 0; k < n; k++)
        dpt_report_free(&reports[k]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(page_is_deterministic),
        cmocka_unit_test(page_of_many_ranks_is_small),
        cmocka_unit_test(full_disk_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
