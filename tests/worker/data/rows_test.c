/* Rows of tables: awkward CSV, TSV and lines, given at once and cut at every place. */
#include "worker/data/rows.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct dpt_err err;

/* What is found, as text: fields end with '|', rows with their line and ';'. */
struct found {
    char text[512];
    size_t bytes;
};

static void note(struct found *found, const char *text, size_t bytes)
{
    assert_true(found->bytes + bytes < sizeof found->text);
    memcpy(found->text + found->bytes, text, bytes);
    found->bytes += bytes;
    found->text[found->bytes] = '\0';
}

static void note_row(struct found *found, const struct dpt_rows *rows)
{
    char line[32];
    for (int i = 0; i < rows->n_fields; i++) {
        size_t bytes;
        const char *field = dpt_rows_field(rows, i, &bytes);
        assert_int_equal(field[bytes], '\0');
        note(found, field, bytes);
        note(found, "|", 1);
    }
    (void)snprintf(line, sizeof line, "%d;", (int)rows->line);
    note(found, line, strlen(line));
}

/* Gives the text in pieces of at most `piece` bytes, each in a separate allocation of its size. */
static enum dpt_status split_rows(enum dpt_rows_form form, const char *text, size_t bytes,
                                  size_t piece, struct found *ret, int64_t *ret_line)
{
    struct dpt_rows rows = {.form = form};
    enum dpt_status status = DPT_OK;
    bool row = false;
    *ret = (struct found){.bytes = 0};
    for (size_t at = 0; status == DPT_OK && at < bytes;) {
        const size_t n = bytes - at < piece ? bytes - at : piece;
        size_t taken = 0;
        char *copy = malloc(n);
        assert_non_null(copy);
        memcpy(copy, text + at, n);
        status = dpt_rows_feed(&rows, copy, n, &taken, &row, &err);
        free(copy);
        if (status != DPT_OK)
            break;
        assert_true(taken <= n && (taken == n || row));
        at += taken;
        if (row)
            note_row(ret, &rows);
    }
    if (status == DPT_OK)
        status = dpt_rows_end(&rows, &row, &err);
    if (status == DPT_OK && row)
        note_row(ret, &rows);
    *ret_line = rows.line;
    dpt_rows_fini(&rows);
    return status;
}

struct example {
    const char *text, *rows;
};

static void expect_all(enum dpt_rows_form form, const struct example *examples, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const size_t bytes = strlen(examples[i].text);
        for (size_t piece = 1; piece <= bytes + 1; piece++) {
            struct found found;
            int64_t line;
            if (split_rows(form, examples[i].text, bytes, piece, &found, &line) != DPT_OK)
                fail_msg("'%s' in pieces of %zu: %s", examples[i].text, piece, err.text);
            if (strcmp(found.text, examples[i].rows) != 0)
                fail_msg("'%s' in pieces of %zu: '%s', not '%s'", examples[i].text, piece,
                         found.text, examples[i].rows);
        }
    }
}

static void test_csv_rows(void **state)
{
    (void)state;
    static const struct example examples[] = {
        {"", ""},
        {"\n", ""},
        {"a", "a|1;"},
        {"a,b\n1,2\n", "a|b|1;1|2|2;"},
        {"a,b\r\n1,2\r\n", "a|b|1;1|2|2;"},
        {"a,b\r1,2\r", "a|b|1;1|2|2;"},
        {"a,b\n1,2", "a|b|1;1|2|2;"},
        {"a,b\n\n\r\n1,2\n\n", "a|b|1;1|2|4;"},
        {"\r\r\na\r\n", "a|3;"},
        {",\n,,\n", "||1;|||2;"},
        {"\"\"\n", "|1;"},
        {"\"\",\"\"", "||1;"},
        {"\"a,b\",c", "a,b|c|1;"},
        {"\"say \"\"so\"\"\",\"\"\"\"", "say \"so\"|\"|1;"},
        {"\"two\nlines\",1\nx,2", "two\nlines|1|1;x|2|3;"},
        {"\"a\rb\rc\",0\rd,1\r", "a\rb\rc|0|1;d|1|4;"},
        {"\"a\r\rb\r\",0\r\"\r\n\r\",1\rd", "a\r\rb\r|0|1;\r\n\r|1|5;d|8;"},
        {"\"a\r\"\"\nb\"\nc", "a\r\"\nb|1;c|4;"},
        {"\"two\r\n\r\nlines\",1\r\nx,2", "two\r\n\r\nlines|1|1;x|2|4;"},
        {"\"a\rb\",1\nx", "a\rb|1|1;x|3;"},
        {"5\" pipe,a \"b\" c\n", "5\" pipe|a \"b\" c|1;"},
        {" \"a\" , b \n", " \"a\" | b |1;"},
        {"a\tb,c", "a\tb|c|1;"},
        {"\"x\"", "x|1;"},
        {"\"x\"\r\n\"y\"\r\n", "x|1;y|2;"},
        {"5,\"back\\slash \\\"\"quoted\\\"\"\"\n", "5|back\\slash \\\"quoted\\\"|1;"},
        {"\xc3\xa4,\xff\xfe\n", "\xc3\xa4|\xff\xfe|1;"},
    };
    expect_all(DPT_ROWS_CSV, examples, sizeof examples / sizeof *examples);
}

static void test_tsv_rows(void **state)
{
    (void)state;
    static const struct example examples[] = {
        {"a\tb\n1\t2\n", "a|b|1;1|2|2;"},
        {"a\tb\r\n\r\n1\t2", "a|b|1;1|2|3;"},
        {"\"a\tb\"\n\"\t\"\"\n", "\"a|b\"|1;\"|\"\"|2;"},
        {"a,b\t\n", "a,b||1;"},
        {"\t\n", "||1;"},
    };
    expect_all(DPT_ROWS_TSV, examples, sizeof examples / sizeof *examples);
}

static void test_json_lines(void **state)
{
    (void)state;
    static const struct example examples[] = {
        {"{}\n\n \t\r\n[\"a,b\t\"]", "{}|1;[\"a,b\t\"]|4;"},
        {"{}\r\n{}\r\n", "{}\r|1;{}\r|2;"},
        {"a\rb\n", "a\rb|1;"},
    };
    expect_all(DPT_ROWS_LINES, examples, sizeof examples / sizeof *examples);
}

/* A NUL is a byte like any other, and no end of a blank line. */
static void test_nul_is_a_byte(void **state)
{
    (void)state;
    struct found found;
    int64_t line;
    assert_int_equal(split_rows(DPT_ROWS_CSV, "a\0b,c", 5, 5, &found, &line), DPT_OK);
    assert_int_equal(found.bytes, 8);
    assert_memory_equal(found.text, "a\0b|c|1;", 8);
    assert_int_equal(split_rows(DPT_ROWS_LINES, " \0 \n", 4, 4, &found, &line), DPT_OK);
    assert_int_equal(found.bytes, 6);
}

static void test_rows_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int line;
        const char *why;
    } cases[] = {
        {"a,b\n\"x\"y,1\n", 2, "a quoted field continues behind its closing quote"},
        {"a,b\n\"x\" ,1\n", 2, "a quoted field continues behind its closing quote"},
        {"a,b\n\"1\n2\n3\"x\n", 4, "a quoted field continues behind its closing quote"},
        {"a,b\n1,2\n\n3,\"x\n4,5\n", 4, "a quoted field that begins here does not end"},
        {"\"", 1, "a quoted field that begins here does not end"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t piece = 1; piece < 20; piece++) {
            struct found found;
            int64_t line;
            assert_int_equal(split_rows(DPT_ROWS_CSV, cases[i].text, strlen(cases[i].text), piece,
                                        &found, &line),
                             DPT_ECORRUPT);
            assert_int_equal(line, cases[i].line);
            if (!strstr(err.text, cases[i].why))
                fail_msg("'%s' is not in: %s", cases[i].why, err.text);
        }
}

/* As many columns as are allowed, and one more. */
static void too_many_columns(void **state)
{
    (void)state;
    static char commas[DPT_ROW_FIELDS_MAX + 1];
    memset(commas, ',', sizeof commas);
    for (size_t n = DPT_ROW_FIELDS_MAX - 1; n <= DPT_ROW_FIELDS_MAX; n++) {
        struct dpt_rows rows = {.form = DPT_ROWS_CSV};
        size_t taken;
        bool row = false;
        enum dpt_status status = dpt_rows_feed(&rows, commas, n, &taken, &row, &err);
        if (status == DPT_OK)
            status = dpt_rows_end(&rows, &row, &err);
        assert_int_equal(status, n < DPT_ROW_FIELDS_MAX ? DPT_OK : DPT_EOVERFLOW);
        if (n < DPT_ROW_FIELDS_MAX)
            assert_int_equal(rows.n_fields, DPT_ROW_FIELDS_MAX);
        else
            assert_non_null(strstr(err.text, "more than 1024 columns"));
        dpt_rows_fini(&rows);
    }
}

/* A quote that is never closed does not take the whole file to memory. */
static void too_long(void **state)
{
    (void)state;
    static char text[1 << 20];
    struct dpt_rows rows = {.form = DPT_ROWS_CSV};
    enum dpt_status status = DPT_OK;
    memset(text, 'x', sizeof text);
    text[0] = '"';
    int pieces = 0;
    for (; status == DPT_OK && pieces < 20; pieces++) {
        size_t taken;
        bool row;
        status = dpt_rows_feed(&rows, text, sizeof text, &taken, &row, &err);
        text[0] = 'x';
    }
    assert_int_equal(status, DPT_EOVERFLOW);
    assert_int_equal(pieces, 17);
    assert_non_null(strstr(err.text, "a row of more than 16777216 bytes; is a quote missing?"));
    dpt_rows_fini(&rows);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_csv_rows),     cmocka_unit_test(test_tsv_rows),
        cmocka_unit_test(test_json_lines),   cmocka_unit_test(test_nul_is_a_byte),
        cmocka_unit_test(test_rows_refused), cmocka_unit_test(too_many_columns),
        cmocka_unit_test(too_long),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
