/* YAML as a flat list: positions, shapes, and everything a config may not hold. */
#include "base/config_yaml.h"

#include "base/config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct dpt_err err;

static struct dpt_yaml *parse(const char *text, const char *prefix)
{
    struct dpt_yaml *yaml = NULL;
    if (dpt_yaml_parse(text, strlen(text), "c.yaml", prefix, &yaml, &err) != DPT_OK)
        fail_msg("%s", err.text);
    return yaml;
}

static void expect_yaml_key(const struct dpt_yaml *yaml, size_t i, const char *path,
                            const char *value, int line, int column)
{
    assert_true(i < yaml->n_pairs);
    const struct dpt_yaml_pair *pair = &yaml->pair[i];
    assert_string_equal(pair->path, path);
    assert_int_equal(pair->kind, value ? DPT_YAML_SCALAR : DPT_YAML_SECTION);
    assert_int_equal(pair->line, line);
    assert_int_equal(pair->column, column);
    if (value)
        assert_string_equal(pair->value[0].text, value);
}

static void block_and_flow(void **state)
{
    (void)state;
    struct dpt_yaml *yaml =
        parse("# c\nseed: 42\na:\n  b: 'x y'  # c\n  c: {d: [1, \"2\"], e: }\n", NULL);
    assert_int_equal(yaml->n_pairs, 6);
    expect_yaml_key(yaml, 0, "seed", "42", 2, 1);
    assert_true(yaml->pair[0].value[0].plain);
    assert_int_equal(yaml->pair[0].value[0].line, 2);
    assert_int_equal(yaml->pair[0].value[0].column, 7);
    expect_yaml_key(yaml, 1, "a", NULL, 3, 1);
    expect_yaml_key(yaml, 2, "a.b", "x y", 4, 3);
    assert_false(yaml->pair[2].value[0].plain);
    expect_yaml_key(yaml, 3, "a.c", NULL, 5, 3);
    const struct dpt_yaml_pair *list = &yaml->pair[4];
    assert_string_equal(list->path, "a.c.d");
    assert_int_equal(list->kind, DPT_YAML_LIST);
    assert_int_equal(list->n_values, 2);
    assert_string_equal(list->value[0].text, "1");
    assert_string_equal(list->value[1].text, "2");
    assert_true(list->value[0].plain);
    assert_false(list->value[1].plain);
    expect_yaml_key(yaml, 5, "a.c.e", "", 5, 20);
    assert_true(dpt_yaml_is_null(&yaml->pair[5].value[0]));
    dpt_yaml_destroy(&yaml);
    assert_null(yaml);
    dpt_yaml_destroy(&yaml);
}

static void test_empty_documents(void **state)
{
    (void)state;
    static const char *const empty[] = {"",      "\n\n",       "# only a comment\n",
                                        "---\n", "---\n...\n", "{}"};
    for (size_t i = 0; i < sizeof empty / sizeof *empty; i++) {
        struct dpt_yaml *yaml = parse(empty[i], NULL);
        assert_int_equal(yaml->n_pairs, 0);
        dpt_yaml_destroy(&yaml);
    }
}

static void values_of_overrides(void **state)
{
    (void)state;
    struct dpt_yaml *yaml = parse("5", "train.steps");
    assert_int_equal(yaml->n_pairs, 1);
    expect_yaml_key(yaml, 0, "train.steps", "5", 1, 1);
    dpt_yaml_destroy(&yaml);
    yaml = parse("{steps: 5, lanes: auto}", "train");
    assert_int_equal(yaml->n_pairs, 3);
    expect_yaml_key(yaml, 1, "train.steps", "5", 1, 2);
    dpt_yaml_destroy(&yaml);
    assert_int_equal(dpt_yaml_parse("*a", 2, "--set x=*a", "x", &yaml, &err), DPT_ECONFIG);
    assert_ptr_equal(strstr(err.text, "--set x=*a: "), err.text);
    assert_int_equal(dpt_yaml_parse("", 0, "--set x=", "x", &yaml, &err), DPT_ECONFIG);
}

static void test_yaml_nulls(void **state)
{
    (void)state;
    struct dpt_yaml *yaml = parse("{a: ~, b: null, c: NULL, d: , e: 'null', f: '', g: nul}", NULL);
    for (size_t i = 0; i < 7; i++)
        assert_int_equal(dpt_yaml_is_null(&yaml->pair[i].value[0]), i < 4);
    dpt_yaml_destroy(&yaml);
}

/* Each with its place and a word of the reason. */
static void test_yaml_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *where, *why;
    } cases[] = {
        {"a: 1\nb: 2\na: 3\n", "c.yaml:3:1: ", "a is given twice, first on line 1"},
        {"a: {b: 1, b: 2}\n", "c.yaml:1:11: ", "a.b is given twice"},
        {"a: {b: 1}\na: {c: 1}\n", "c.yaml:2:1: ", "a is given twice"},
        {"a: &x 1\n", "c.yaml:1:4: ", "anchors"},
        {"&x a: 1\n", "c.yaml:1:1: ", "anchors"},
        {"a: &x {b: 1}\n", "c.yaml:1:4: ", "anchors"},
        {"a: *x\n", "c.yaml:1:4: ", "aliases"},
        {"*x : 1\n", "c.yaml:1:1: ", "aliases"},
        {"a: [1, *x]\n", "c.yaml:1:8: ", "aliases"},
        {"a: !!int 1\n", "c.yaml:1:4: ", "tags"},
        {"a: !x [1]\n", "c.yaml:1:4: ", "tags"},
        {"!x {a: 1}\n", "c.yaml:1:1: ", "tags"},
        {"a: 1\n---\nb: 2\n", "c.yaml:2:1: ", "a second document"},
        {"a:\n\tb: 1\n", "c.yaml:2:1: ", "spaces, not tabs"},
        {"a: 1\n b: 2\n", "c.yaml:2:3: ", "mapping values are not allowed"},
        {"a: [1, 2\n", "c.yaml:2:1: ", "did not find expected ',' or ']'"},
        {"a: 'x\n", "c.yaml:2:1: ", "unexpected end of stream"},
        {"just text\n", "c.yaml:1:1: ", "expected keys and values"},
        {"[1, 2]\n", "c.yaml:1:1: ", "expected keys and values"},
        {"? [a]\n: 1\n", "c.yaml:1:3: ", "a key must be a word"},
        {"? {a: 1}\n: 1\n", "c.yaml:1:3: ", "a key must be a word"},
        {"'': 1\n", "c.yaml:1:1: ", "a key must be a word"},
        {"\"a\\0b\": 1\n", "c.yaml:1:1: ", "a key must be a word"},
        {"a: \"x\\0y\"\n", "c.yaml:1:4: ", "NUL"},
        {"a.b: 1\n", "c.yaml:1:1: ", "has a dot"},
        {"a: [[1]]\n", "c.yaml:1:5: ", "plain values only"},
        {"a: [{b: 1}]\n", "c.yaml:1:5: ", "plain values only"},
        {"a: {b: {c: {d: {e: 1}}}}\n", "c.yaml:1:17: ", "nested too deeply"},
        {"a: \"\\ud800\"\n", "c.yaml:1:", "escape"},
        {"a: 1\nb: \x01\n", "c.yaml:2:4: ", "control characters"},
        {"a: 1\nb: \xff\n", "c.yaml:2:4: ", "UTF-8"},
        {"a: \xc0\x80\n", "c.yaml:1:4: ", "UTF-8"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dpt_yaml *yaml = NULL;
        enum dpt_status status =
            dpt_yaml_parse(cases[i].text, strlen(cases[i].text), "c.yaml", NULL, &yaml, &err);
        assert_null(yaml);
        if (status != DPT_ECONFIG || strstr(err.text, cases[i].where) != err.text ||
            !strstr(err.text, cases[i].why))
            fail_msg("'%s' gives '%s', not %s…%s", cases[i].text, err.text, cases[i].where,
                     cases[i].why);
    }
}

static void nul_bytes(void **state)
{
    (void)state;
    struct dpt_yaml *yaml = NULL;
    assert_int_equal(dpt_yaml_parse("a: 1\nb: \0", 9, "c.yaml", NULL, &yaml, &err), DPT_ECONFIG);
    assert_string_equal(err.text, "c.yaml:2:4: a NUL byte: not a text file");
    assert_int_equal(dpt_yaml_parse("\xff\xfe"
                                    "a\0:\0",
                                    6, "c.yaml", NULL, &yaml, &err),
                     DPT_ECONFIG);
}

/* `n` times the text made from `fmt` and a counter. */
static char *repeat(int n, const char *fmt)
{
    char *text = calloc((size_t)n, 16), *to = text;
    assert_non_null(text);
    for (int i = 0; i < n; i++)
        to += snprintf(to, 16, "%s%d\n", fmt, i);
    return text;
}

static void test_yaml_limits(void **state)
{
    (void)state;
    struct dpt_yaml *yaml = NULL;
    static char huge[DPT_CONFIG_TEXT_BYTES_MAX + 1];
    memset(huge, '#', sizeof huge);
    assert_int_equal(dpt_yaml_parse(huge, sizeof huge, "c.yaml", NULL, &yaml, &err), DPT_ECONFIG);
    assert_string_equal(err.text, "c.yaml: 65537 bytes, at most 65536 are allowed");
    assert_int_equal(dpt_yaml_parse(huge, sizeof huge - 1, "c.yaml", NULL, &yaml, &err), DPT_OK);
    dpt_yaml_destroy(&yaml);
    /* Brackets to the last byte: libyaml and we give up early. */
    memset(huge, '[', sizeof huge);
    assert_int_equal(dpt_yaml_parse(huge, sizeof huge - 1, "c.yaml", NULL, &yaml, &err),
                     DPT_ECONFIG);
    memset(huge, '{', sizeof huge);
    assert_int_equal(dpt_yaml_parse(huge, sizeof huge - 1, "c.yaml", NULL, &yaml, &err),
                     DPT_ECONFIG);
    memset(huge, 'a', sizeof huge);
    huge[sizeof huge - 3] = ':';
    huge[sizeof huge - 2] = ' ';
    assert_int_equal(dpt_yaml_parse(huge, sizeof huge - 1, "c.yaml", NULL, &yaml, &err),
                     DPT_ECONFIG);
    memset(huge, 'a', 200);
    memcpy(huge + 200, ": 1", 3);
    assert_int_equal(dpt_yaml_parse(huge, 203, "c.yaml", NULL, &yaml, &err), DPT_ECONFIG);
    assert_ptr_equal(strstr(err.text, "c.yaml:1:1: unknown key 'aaaa"), err.text);

    char *text = repeat(DPT_YAML_PAIRS_MAX + 1, "? k"); /* keys without values */
    assert_int_equal(dpt_yaml_parse(text, strlen(text), "c.yaml", NULL, &yaml, &err), DPT_ECONFIG);
    assert_string_equal(err.text, "c.yaml:257:3: more than 256 keys");
    free(text);
    text = repeat(DPT_YAML_VALUES_MAX + 1, "a: [1,");
    memcpy(text, "a: [\n ", 6);
    for (char *p = text + 6; *p; p++) /* one list of many values */
        if (*p == 'a' || *p == ':' || *p == '[')
            *p = ' ';
    assert_int_equal(dpt_yaml_parse(text, strlen(text), "c.yaml", NULL, &yaml, &err), DPT_ECONFIG);
    assert_non_null(strstr(err.text, "more than 512 values"));
    free(text);
}

/* U+FEFF at a file's start, as some editors write it, is no part of the first key. */
static void byte_order_mark(void **state)
{
    (void)state;
    struct dpt_yaml *yaml = parse("\xef\xbb\xbfseed: 42\nrun: x\n", NULL);
    assert_int_equal(yaml->n_pairs, 2);
    expect_yaml_key(yaml, 0, "seed", "42", 1, 1);
    expect_yaml_key(yaml, 1, "run", "x", 2, 1);
    dpt_yaml_destroy(&yaml);
    yaml = parse("\xef\xbb\xbf", NULL);
    assert_int_equal(yaml->n_pairs, 0);
    dpt_yaml_destroy(&yaml);
    static const char *const utf16 = "\xff\xfes";
    assert_int_equal(dpt_yaml_parse(utf16, 3, "c.yaml", NULL, &yaml, &err), DPT_ECONFIG);
    assert_string_equal(err.text, "c.yaml:1:1: invalid leading UTF-8 octet; a config is UTF-8");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(byte_order_mark),
                                       cmocka_unit_test(block_and_flow),
                                       cmocka_unit_test(test_empty_documents),
                                       cmocka_unit_test(values_of_overrides),
                                       cmocka_unit_test(test_yaml_nulls),
                                       cmocka_unit_test(test_yaml_refused),
                                       cmocka_unit_test(nul_bytes),
                                       cmocka_unit_test(test_yaml_limits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
