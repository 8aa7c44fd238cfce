/* Strict numbers: accepted and refused forms. */
#include "base/parse.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct dpt_err err;

static void test_parse_integers(void **state)
{
    (void)state;
    int64_t v = 77;
    assert_int_equal(dpt_parse_i64("0", 0, 5, &v, &err), DPT_OK);
    assert_int_equal(v, 0);
    assert_int_equal(dpt_parse_i64("-9223372036854775808", INT64_MIN, INT64_MAX, &v, &err), DPT_OK);
    assert_true(v == INT64_MIN);
    assert_int_equal(dpt_parse_i64("9223372036854775807", INT64_MIN, INT64_MAX, &v, &err), DPT_OK);
    assert_true(v == INT64_MAX);
    static const char *const bad[] = {"",
                                      " 1",
                                      "1 ",
                                      "+1",
                                      "01",
                                      "-0",
                                      "-",
                                      "1.0",
                                      "0x1",
                                      "1e3",
                                      "one",
                                      "1_000",
                                      "--1",
                                      "6",
                                      "-1",
                                      "9223372036854775808",
                                      "99999999999999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        v = 77;
        assert_int_equal(dpt_parse_i64(bad[i], 0, 5, &v, &err), DPT_EINVAL);
        assert_int_equal(v, 77);
        assert_ptr_equal(strstr(err.text, "expected an integer from 0 to 5, got '"), err.text);
    }
}

static void unsigned_integers(void **state)
{
    (void)state;
    uint64_t v = 77;
    assert_int_equal(dpt_parse_u64("18446744073709551615", UINT64_MAX, &v, &err), DPT_OK);
    assert_true(v == UINT64_MAX);
    static const char *const bad[] = {"", "-1", "18446744073709551616", "-18446744073709551615",
                                      "x"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(dpt_parse_u64(bad[i], UINT64_MAX, &v, &err), DPT_EINVAL);
    assert_int_equal(dpt_parse_u64("8", 7, &v, &err), DPT_EINVAL);
    assert_true(v == UINT64_MAX);
}

static void test_parse_doubles(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        double value;
    } good[] = {{"0", 0},     {"-0.0", 0},      {"5", 5},           {".5", 0.5},
                {"5.", 5},    {"+1.5", 1.5},    {"3.0e-4", 3e-4},   {"1E+3", 1000},
                {"0.1", 0.1}, {"1e308", 1e308}, {"1e-307", 1e-307}, {"007", 7}};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        double v = 77;
        assert_int_equal(dpt_parse_double(good[i].text, &v, &err), DPT_OK);
        assert_true(v == good[i].value);
    }
    static const char *const bad[] = {
        "",    ".",  "e5", "1e",    "1e+",   "0x1p3",  "inf",    "-inf",          "nan", ".nan",
        "1,5", " 1", "1 ", "1.2.3", "1e400", "-1e400", "1e-400", "1e99999999999", "1f",  "+-1"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        double v = 77;
        assert_int_equal(dpt_parse_double(bad[i], &v, &err), DPT_EINVAL);
        assert_true(v == 77);
    }
}

static void shortest_texts(void **state)
{
    (void)state;
    static const struct {
        double value;
        const char *text;
    } cases[] = {{0, "0"},
                 {0.1, "0.1"},
                 {3e-4, "0.0003"},
                 {1e-8, "1e-08"},
                 {25, "25"},
                 {-1.5, "-1.5"},
                 {1e22, "1e+22"},
                 {1.0 / 3, "0.3333333333333333"},
                 {0x1.fffffffffffffp1023, "1.7976931348623157e+308"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[DPT_DOUBLE_TEXT_BYTES];
        double back;
        dpt_format_double(cases[i].value, text);
        assert_string_equal(text, cases[i].text);
        assert_int_equal(dpt_parse_double(text, &back, &err), DPT_OK);
        assert_memory_equal(&back, &cases[i].value, sizeof back);
    }
}

static void test_parse_endpoints(void **state)
{
    (void)state;
    static const char *const good[] = {"127.0.0.1:29500", "head:1", "[::1]:65535", "a.b-c:80"};
    static const char *const bad[] = {"",       "head",       "head:", ":80",
                                      "head:0", "head:65536", "::1:5", "[]:80",
                                      "head:x", "head:+80",   "[::1]", "head:080"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_int_equal(dpt_parse_endpoint(good[i], &err), DPT_OK);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(dpt_parse_endpoint(bad[i], &err), DPT_EINVAL);
}

static void test_split_endpoints(void **state)
{
    (void)state;
    static const char *const parts[][3] = {{"127.0.0.1:29500", "127.0.0.1", "29500"},
                                           {"head:1", "head", "1"},
                                           {"[::1]:65535", "::1", "65535"},
                                           {"[fe80::1%eth0]:80", "fe80::1%eth0", "80"}};
    struct dpt_endpoint endpoint;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        assert_int_equal(dpt_split_endpoint(parts[i][0], &endpoint, &err), DPT_OK);
        assert_string_equal(endpoint.host, parts[i][1]);
        assert_string_equal(endpoint.port, parts[i][2]);
    }
    char text[sizeof endpoint.host + sizeof ":80"];
    const size_t most = sizeof endpoint.host - 1;
    memset(text, 'h', sizeof text);
    memcpy(text + most, ":80", sizeof ":80");
    assert_int_equal(dpt_split_endpoint(text, &endpoint, &err), DPT_OK);
    assert_int_equal(strlen(endpoint.host), most);
    memcpy(text + most, "h:80", sizeof "h:80");
    assert_int_equal(dpt_split_endpoint(text, &endpoint, &err), DPT_EINVAL);
    assert_non_null(strstr(err.text, "more than 255 bytes"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse_integers),  cmocka_unit_test(unsigned_integers),
        cmocka_unit_test(test_parse_doubles),   cmocka_unit_test(shortest_texts),
        cmocka_unit_test(test_parse_endpoints), cmocka_unit_test(test_split_endpoints)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
