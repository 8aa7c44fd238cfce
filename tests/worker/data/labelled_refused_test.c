/* Tables of texts and labels that are refused: each message names the file and the line. */
#include "tests/worker/data/labelled_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void expect_refusal(enum dpt_status status, const char *why)
{
    struct dpt_data *data = NULL;
    struct dpt_data_digest digest;
    char whole[4096];
    (void)snprintf(whole, sizeof whole, "data.train: %s%s",
                   why[0] == ':' ? labelled_config.data.train : "", why);
    assert_int_equal(dpt_data_open(&labelled_config, &data, &labelled_err), status);
    assert_null(data);
    if (strncmp(labelled_err.text, whole, strlen(whole)) != 0)
        fail_msg("'%s' does not begin with '%s'", labelled_err.text, whole);
    assert_null(strchr(labelled_err.text, '\n'));
    assert_int_equal(dpt_data_digest(&labelled_config, &digest, &labelled_err), status);
}

static const struct {
    const char *name, *text;
    enum dpt_status status;
    const char *why;
} row_cases[] = {
    {"t.csv", "text,label\na,0\nb,3\n", DPT_ECONFIG,
     ":3: label 3 is not among 0 … 2; correct it, or set data.first_label (0) and model.labels "
     "(3) to what the file has"},
    {"t.csv", "text,label\na,-1\n", DPT_ECONFIG, ":2: label -1 is not among 0 … 2"},
    {"t.csv", "text,label\n\"x\ny\",0\na,9223372036854775807\n", DPT_ECONFIG,
     ":4: label 9223372036854775807 is not among 0 … 2"},
    {"t.csv", "text,label\na,good\n", DPT_ECORRUPT,
     ":2: label 'good' (column 2) is no integer; labels are the numbers of classes"},
    {"t.csv", "text,label\na,1.0\n", DPT_ECORRUPT, ":2: label '1.0' (column 2) is no integer"},
    {"t.csv", "text,label\na, 1\n", DPT_ECORRUPT, ":2: label ' 1' (column 2) is no integer"},
    {"t.csv", "text,label\na,\n", DPT_ECORRUPT, ":2: label '' (column 2) is no integer"},
    {"t.csv", "text,label\na,0\nb\n", DPT_ECORRUPT,
     ":3: the row has 1 column, the first one 2; give it the others, or remove it"},
    {"t.csv", "text,label\na,0\nb, c,1\n", DPT_ECORRUPT,
     ":3: the row has 3 columns, the first one 2; put texts that hold commas in quotes"},
    {"t.tsv", "text\tlabel\na\tb\t0\n", DPT_ECORRUPT,
     ":2: the row has 3 columns, the first one 2; write no tabs inside a text"},
    {"t.csv", "text,label\n,0\n", DPT_ECORRUPT,
     ":2: its text is empty; remove the row, or give it one"},
    {"t.csv", "text,label\na,0\n\"b,1\nc,2\n", DPT_ECORRUPT,
     ":3: a quoted field that begins here does not end"},
    {"t.csv", "text,label\na,0\n\n\"b\"c,1\n", DPT_ECORRUPT,
     ":4: a quoted field continues behind its closing quote; double the quotes inside it"},
    {"t.csv", "review,label\na,0\n", DPT_ECONFIG,
     ":1: no column is named 'text'; set data.text_column to one of 'review', 'label', or to "
     "its number if this row is data"},
    {"t.csv", "text,stars\na,0\n", DPT_ECONFIG,
     ":1: no column is named 'label'; set data.label_column to one of 'text', 'stars'"},
    {"t.csv", "text,label,text\na,0,b\n", DPT_ECORRUPT,
     ":1: columns 1 and 3 are both named 'text' (data.text_column); rename one"},
    {"t.jsonl", "{\"text\": \"a\", \"label\": 0}\n\n{\"text\": \"b\", \"label\": 7}\n", DPT_ECONFIG,
     ":3: label 7 is not among 0 … 2"},
    {"t.jsonl", "{\"text\": \"a\", \"label\": 0\n", DPT_ECORRUPT, ":1: no JSON (column "},
    {"t.jsonl", "{\"text\": \"a\xff\", \"label\": 0}\n", DPT_ECORRUPT, ":1: no JSON (column "},
    {"t.jsonl", "[1, 2]\n", DPT_ECORRUPT,
     ":1: no JSON object; each line is one with a text and a label"},
    {"t.jsonl", "{\"text\": \"a\"}\n", DPT_ECONFIG,
     ":1: it has no member 'label'; give it one, or set data.label_column to the name in "
     "the file"},
    {"t.jsonl", "{\"label\": 1}\n", DPT_ECONFIG,
     ":1: it has no member 'text'; give it one, or set data.text_column to"},
    {"t.jsonl", "{\"text\": 5, \"label\": 1}\n", DPT_ECORRUPT,
     ":1: 'text' is no string; put the text in quotes"},
    {"t.jsonl", "{\"text\": \"a\", \"label\": \"1\"}\n", DPT_ECORRUPT,
     ":1: 'label' is no integer; labels are the numbers of classes"},
    {"t.jsonl", "{\"text\": \"a\", \"text\": \"b\", \"label\": 1}\n", DPT_ECORRUPT,
     ":1: no JSON (column "},
    {"t.jsonl", "{\"text\": \"\", \"label\": 1}\n", DPT_ECORRUPT, ":1: its text is empty"},
};

static void bad_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof row_cases / sizeof *row_cases; i++) {
        labelled_use(row_cases[i].name, row_cases[i].text);
        expect_refusal(row_cases[i].status, row_cases[i].why);
    }
}

static void columns_by_number(void **state)
{
    (void)state;
    labelled_columns("3", "1");
    labelled_use("t.csv", "1,a\n");
    expect_refusal(DPT_ECONFIG, ":1: data.text_column is 3, and the row has 2 columns; set it to "
                                "one");
    labelled_columns("1", "2");
    labelled_use("t.csv", "text,label\na,1\n"); /* a row of names, which is none */
    expect_refusal(DPT_ECORRUPT, ":1: label 'label' (column 2) is no integer");
    labelled_use("t.jsonl", "{\"text\": \"a\", \"label\": 0}\n");
    char why[2048];
    (void)snprintf(why, sizeof why,
                   "the members of a line of '%s' have names; set data.text_column and "
                   "data.label_column",
                   labelled_config.data.train);
    expect_refusal(DPT_ECONFIG, why);
}

static void bad_files(void **state)
{
    (void)state;
    char why[2048];
    labelled_use("t.txt", "text,label\na,1\n");
    (void)snprintf(
        why, sizeof why,
        "the name '%s' does not end in .csv, .tsv or .jsonl: the ending tells the kind of "
        "table; rename it, or convert it to one of these",
        labelled_config.data.train);
    expect_refusal(DPT_ECONFIG, why);
    static const char *const empty[] = {"", "\n\n", "text,label\n", "\xef\xbb\xbf"};
    for (size_t i = 0; i < sizeof empty / sizeof *empty; i++) {
        labelled_use("t.csv", empty[i]);
        (void)snprintf(why, sizeof why, "'%s' has no row of data; name another file",
                       labelled_config.data.train);
        expect_refusal(DPT_ECONFIG, why);
    }
    labelled_use("t.csv", "text,label\na,1\nb,2\n");
    labelled_config.data.train_samples = 3;
    (void)snprintf(why, sizeof why,
                   "'%s' has 2 rows of data, and data.train_samples is 3; set it to at most that, "
                   "or 0 for all",
                   labelled_config.data.train);
    expect_refusal(DPT_ECONFIG, why);
    labelled_config.data.train_samples = 0;
    (void)snprintf(labelled_config.data.train, sizeof labelled_config.data.train, "%s/none.csv",
                   labelled_root);
    expect_refusal(DPT_ENOENT, "open '");
    (void)snprintf(labelled_config.data.train, sizeof labelled_config.data.train, "%s",
                   labelled_root);
    (void)snprintf(why, sizeof why, "'%s' is no regular file", labelled_root);
    expect_refusal(DPT_EIO, why);
    struct dpt_data *data = NULL;
    labelled_config.data.train[0] = '\0';
    assert_int_equal(dpt_data_open(&labelled_config, &data, &labelled_err), DPT_ECONFIG);
    assert_string_equal(labelled_err.text, "data.train is empty: name a .csv, .tsv or .jsonl file");
    labelled_use("t.csv", "text,label\na,1\n");
    labelled_config.model.vocab = 200;
    assert_int_equal(dpt_data_open(&labelled_config, &data, &labelled_err), DPT_ECONFIG);
    assert_non_null(strstr(labelled_err.text, "the tokens of a text's bytes need 256 at least"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {TEST(bad_rows), TEST(columns_by_number), TEST(bad_files)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
