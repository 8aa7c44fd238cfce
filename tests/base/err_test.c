/* Errors: texts, errno, context, and cutting at the buffer's end. */
#include "base/err.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void test_status_texts(void **state)
{
    (void)state;
    assert_string_equal(dpt_status_text(DPT_OK), "ok");
    assert_string_equal(dpt_status_text(DPT_EOVERFLOW), "limit exceeded");
    assert_string_equal(dpt_status_text(DPT_STATUS_COUNT), "unknown status");
    assert_string_equal(dpt_status_text((enum dpt_status) - 1), "unknown status");
}

static void test_fail_fills_err(void **state)
{
    (void)state;
    struct dpt_err err = {0};
    assert_int_equal(dpt_fail(&err, DPT_EIO, "read '%s'", "x"), DPT_EIO);
    assert_int_equal(err.status, DPT_EIO);
    assert_string_equal(err.text, "read 'x'");
    assert_int_equal(dpt_wrap(&err, err.status, "restore step %d", 7), DPT_EIO);
    assert_string_equal(err.text, "restore step 7: read 'x'");
    assert_int_equal(dpt_fail(NULL, DPT_ENOMEM, "x"), DPT_ENOMEM);
    assert_int_equal(dpt_wrap(NULL, DPT_EIO, "x"), DPT_EIO);
    assert_int_equal(dpt_fail_errno(NULL, ENOENT, "x"), DPT_ENOENT);
}

static void errno_mapping(void **state)
{
    (void)state;
    static const struct {
        int from;
        enum dpt_status to;
    } cases[] = {{ENOSPC, DPT_ENOSPC}, {EDQUOT, DPT_ENOSPC}, {EFBIG, DPT_ENOSPC},
                 {ENOENT, DPT_ENOENT}, {ENOMEM, DPT_ENOMEM}, {EEXIST, DPT_EEXIST},
                 {EPERM, DPT_EIO}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dpt_err err;
        assert_int_equal(dpt_fail_errno(&err, cases[i].from, "open '%s'", "f"), cases[i].to);
        assert_ptr_equal(strstr(err.text, "open 'f': "), err.text);
        assert_non_null(strstr(err.text, strerror(cases[i].from)));
        assert_true((strstr(err.text, "ulimit -f") != NULL) == (cases[i].from == EFBIG));
    }
}

static void long_texts_are_cut(void **state)
{
    (void)state;
    char text[2 * DPT_ERR_TEXT_BYTES];
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    struct dpt_err err;
    (void)dpt_fail(&err, DPT_EIO, "%s", text);
    assert_int_equal(strlen(err.text), DPT_ERR_TEXT_BYTES - 1);
    (void)dpt_wrap(&err, DPT_EIO, "%s", text);
    assert_int_equal(strlen(err.text), DPT_ERR_TEXT_BYTES - 1);
    (void)dpt_fail_errno(&err, EPERM, "%s", text);
    assert_int_equal(strlen(err.text), DPT_ERR_TEXT_BYTES - 1);
}

static void one_message_is_one_line(void **state)
{
    (void)state;
    struct dpt_err err;
    (void)dpt_fail(&err, DPT_ECONFIG, "'%s' is no number", "1\n2\r\t\033[0m\177é");
    assert_string_equal(err.text, "'1 2   [0m é' is no number");
    (void)dpt_wrap(&err, DPT_ECONFIG, "file '%s'", "a\nb");
    assert_string_equal(err.text, "file 'a b': '1 2   [0m é' is no number");
    (void)dpt_fail_errno(&err, EPERM, "open '%s'", "a\nb");
    assert_ptr_equal(strstr(err.text, "open 'a b': "), err.text);
}

static void test_wrap_adds_context(void **state)
{
    (void)state;
    struct dpt_err err;
    assert_int_equal(dpt_fail_nomem(&err, "index of '%s'", "a"), DPT_ENOMEM);
    assert_string_equal(err.text, "index of 'a': out of memory");
    assert_int_equal(dpt_wrap(&err, DPT_ENOMEM, "data.%s", "val"), DPT_ENOMEM);
    assert_string_equal(err.text, "data.val: index of 'a': out of memory");
    assert_int_equal(dpt_wrap(&err, DPT_OK, "data.val"), DPT_OK);
    assert_string_equal(err.text, "data.val: index of 'a': out of memory");
    assert_int_equal(dpt_fail_nomem(NULL, "index"), DPT_ENOMEM);
    assert_int_equal(dpt_wrap(NULL, DPT_EIO, "index"), DPT_EIO);
}

static void test_errors_with_same_cause(void **state)
{
    (void)state;
    struct dpt_err full, other;
    (void)dpt_fail_errno(&full, ENOSPC, "write 'a'");
    assert_int_equal(full.saved_errno, ENOSPC);
    (void)dpt_fail_errno(&other, ENOSPC, "write 'b'");
    (void)dpt_wrap(&other, other.status, "step 3");
    assert_int_equal(other.saved_errno, ENOSPC);
    assert_true(dpt_err_is_like(&full, &other));
    (void)dpt_fail_errno(&other, EDQUOT, "write 'a'"); /* of the same status */
    assert_false(dpt_err_is_like(&full, &other));
    assert_int_equal(dpt_pass(&other, &full), DPT_ENOSPC);
    assert_int_equal(dpt_pass(NULL, &full), DPT_ENOSPC);
    assert_true(dpt_err_is_like(&full, &other));
    assert_string_equal(other.text, full.text);
    (void)dpt_fail(&other, DPT_ENOSPC, "write 'a'");
    assert_int_equal(other.saved_errno, 0);
    assert_false(dpt_err_is_like(&full, &other));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_status_texts),
                                       cmocka_unit_test(test_fail_fills_err),
                                       cmocka_unit_test(errno_mapping),
                                       cmocka_unit_test(long_texts_are_cut),
                                       cmocka_unit_test(one_message_is_one_line),
                                       cmocka_unit_test(test_wrap_adds_context),
                                       cmocka_unit_test(test_errors_with_same_cause)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
