/* Tables of texts and labels: what becomes of them, what is refused and where, their digest, and
 * micro-batches as long as their longest text. */
#include "worker/data/data.h"

#include "base/fs.h"
#include "tests/tmp.h"
#include "worker/plan/sampler.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SEQ = 8, LABELS = 3, MICRO = 3, SLOTS = 2 };

static char root[128];
static struct dpt_err err;
static struct dpt_config config;

static int setup(void **state)
{
    (void)state;
    memset(&config, 0, sizeof config);
    config.seed = 42;
    config.model.vocab = 50257;
    config.model.labels = LABELS;
    config.data.kind = DPT_DATA_CLASSIFICATION;
    (void)snprintf(config.data.text_column, sizeof config.data.text_column, "text");
    (void)snprintf(config.data.label_column, sizeof config.data.label_column, "label");
    config.train.seq_len = SEQ;
    config.train.micro_batch = MICRO;
    config.train.global_batch = MICRO * SLOTS;
    return test_make_dir(root, sizeof root, "labelled-test") ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    return dpt_fs_remove_tree(root, NULL) == DPT_OK ? 0 : -1;
}

/* Writes data.train. */
static void use_bytes(const char *name, const void *text, size_t bytes)
{
    (void)snprintf(config.data.train, sizeof config.data.train, "%s/%s", root, name);
    assert_int_equal(dpt_fs_write_file_atomic(config.data.train, text, bytes, &err), DPT_OK);
}

static void use(const char *name, const char *text)
{
    use_bytes(name, text, strlen(text));
}

static void columns(const char *text, const char *label)
{
    (void)snprintf(config.data.text_column, sizeof config.data.text_column, "%s", text);
    (void)snprintf(config.data.label_column, sizeof config.data.label_column, "%s", label);
}

static struct dpt_data *open_data(void)
{
    struct dpt_data *data = NULL;
    if (dpt_data_open(&config, &data, &err) != DPT_OK)
        fail_msg("%s", err.text);
    return data;
}

struct sample {
    int32_t tokens[SEQ], label, length;
};

static struct sample read_sample(const struct dpt_data *data, int64_t i)
{
    struct sample s = {{0}, -1, -1};
    const struct dpt_batch one = {.part = {s.tokens, &s.label, &s.length}};
    assert_int_equal(dpt_data_read(data, i, 0, &one, 0, &err), DPT_OK);
    return s;
}

/* The samples of data.train, as text: "label:bytes", each with '|' behind it. */
static void expect_samples(const char *expected)
{
    char found[512];
    size_t n = 0;
    struct dpt_data *data = open_data();
    for (int64_t i = 0; i < dpt_data_samples(data); i++) {
        const struct sample s = read_sample(data, i);
        assert_in_range(s.length, 1, SEQ);
        n += (size_t)snprintf(found + n, sizeof found - n, "%d:", (int)s.label);
        for (int32_t j = 0; j < s.length; j++)
            found[n++] = (char)s.tokens[j];
        found[n++] = '|';
    }
    found[n] = '\0';
    dpt_data_close(&data);
    assert_string_equal(found, expected);
}

static void expect_refusal(enum dpt_status status, const char *why)
{
    struct dpt_data *data = NULL;
    struct dpt_data_digest digest;
    char whole[4096];
    (void)snprintf(whole, sizeof whole, "data.train: %s%s", why[0] == ':' ? config.data.train : "",
                   why);
    assert_int_equal(dpt_data_open(&config, &data, &err), status);
    assert_null(data);
    if (strncmp(err.text, whole, strlen(whole)) != 0)
        fail_msg("'%s' does not begin with '%s'", err.text, whole);
    assert_null(strchr(err.text, '\n'));
    assert_int_equal(dpt_data_digest(&config, &digest, &err), status);
}

/* ---------------------------------------------------------------- what is read */

static void csv_with_names(void **state)
{
    (void)state;
    use("t.csv", "id,label,text\r\n7,0,\"a,\nb\"\r\n\r\n8,2,\"\"\"q\"\"\"\r\n9,1,c");
    expect_samples("0:a,\nb|2:\"q\"|1:c|");
    columns("id", "label"); /* any column is a text */
    expect_samples("0:7|2:8|1:9|");
}

static void csv_with_a_byte_order_mark(void **state)
{
    (void)state;
    use("t.csv", "\xef\xbb\xbftext,label\na,1\n");
    expect_samples("1:a|");
    use("t.csv", "\xef\xbb\xbf\"text\",label\na,1\n");
    expect_samples("1:a|");
    columns("2", "1");
    use("t.csv", "\xef\xbb\xbf"
                 "1,a\n");
    expect_samples("1:a|");
}

/* As Yelp Review Full has it: no names, labels from 1. */
static void csv_without_names(void **state)
{
    (void)state;
    columns("2", "1");
    config.data.first_label = 1;
    use("T.CSV", "\"3\",\"good\"\n\"1\",\"bad\"\n");
    expect_samples("2:good|0:bad|");
}

static void labels_below_zero(void **state)
{
    (void)state;
    config.data.first_label = -1;
    use("t.csv", "text,label\na,-1\nb,1\nc,0\n");
    expect_samples("0:a|2:b|1:c|");
}

static void tsv(void **state)
{
    (void)state;
    use("t.TSV", "text\tlabel\n\"a, b\"\t1\nc\t0\n");
    expect_samples("1:\"a, b\"|0:c|");
}

static void jsonl(void **state)
{
    (void)state;
    use("t.jsonl", "{\"text\": \"a\\nb\", \"label\": 2, \"id\": 7}\n"
                   "\n"
                   "{\"label\": 0, \"text\": \"\xc3\xa4\"}\r\n"
                   "{\"label\": 1, \"text\": \"\\u00e4\"}");
    expect_samples("2:a\nb|0:\xc3\xa4|1:\xc3\xa4|");
    use("t.NDJson", "\xef\xbb\xbf{\"text\": \"a\", \"label\": 1}\n");
    expect_samples("1:a|");
}

/* A NUL is a byte of a text. */
static void nul(void **state)
{
    (void)state;
    use("t.jsonl", "{\"text\": \"a\\u0000b\", \"label\": 1}");
    struct dpt_data *data = open_data();
    struct sample s = read_sample(data, 0);
    assert_int_equal(s.length, 3);
    assert_int_equal(s.tokens[1], 0);
    dpt_data_close(&data);
    use_bytes("t.csv", "text,label\na\0b,1", 16);
    data = open_data();
    s = read_sample(data, 0);
    assert_int_equal(s.length, 3);
    assert_int_equal(s.tokens[2], 'b');
    dpt_data_close(&data);
}

static void long_texts_are_cut(void **state)
{
    (void)state;
    use("t.csv", "text,label\n12345678,0\n123456789,1\n1234567,2\n");
    expect_samples("0:12345678|1:12345678|2:1234567|");
    struct dpt_data *data = open_data();
    assert_int_equal(dpt_data_tokens(data), 23);
    dpt_data_close(&data);
}

/* What is not read is not looked at either. */
static void first_rows_alone(void **state)
{
    (void)state;
    use("t.csv", "text,label\na,0\nb,1\nc,2\nno row\n");
    config.data.train_samples = 3;
    expect_samples("0:a|1:b|2:c|");
    config.data.train_samples = 2;
    expect_samples("0:a|1:b|");
    struct dpt_data *data = NULL;
    memcpy(config.data.val, config.data.train, sizeof config.data.val);
    config.data.val_samples = 1;
    assert_int_equal(dpt_data_open_val(&config, &data, &err), DPT_OK);
    assert_int_equal(dpt_data_samples(data), 1);
    dpt_data_close(&data);
}

/* Rows that cross the blocks in which the file is read. */
static void large_file(void **state)
{
    (void)state;
    enum { ROWS = 8000 };
    const size_t room = 40 * ROWS;
    char *text = malloc(room);
    assert_non_null(text);
    size_t n = (size_t)snprintf(text, room, "label,text,more\n");
    for (int i = 0; i < ROWS; i++)
        n += (size_t)snprintf(text + n, room - n, "%d,\"%d\n\",%.*s\n", i % LABELS, i, i % 20,
                              "....................");
    use_bytes("t.csv", text, n);
    free(text);
    struct dpt_data *data = open_data();
    assert_int_equal(dpt_data_samples(data), ROWS);
    for (int i = 0; i < ROWS; i++) {
        char expected[16];
        const struct sample s = read_sample(data, i);
        const int length = snprintf(expected, sizeof expected, "%d\n", i);
        assert_int_equal(s.label, i % LABELS);
        assert_int_equal(s.length, length);
        for (int j = 0; j < length; j++)
            assert_int_equal(s.tokens[j], expected[j]);
    }
    dpt_data_close(&data);
}

static void gpt2_tokens(void **state)
{
    (void)state;
    int32_t plain[3];
    config.data.tokenizer = DPT_TOKENIZER_GPT2;
    config.data.any_vocab = true;
    (void)snprintf(config.data.vocab_bpe, sizeof config.data.vocab_bpe, DPT_RECORDED "/tiny.bpe");
    (void)snprintf(config.data.encoder_json, sizeof config.data.encoder_json,
                   DPT_RECORDED "/tiny.json");
    /* The same text twice, cut and whole: equal tokens, fewer of them than bytes. */
    use("t.csv", "text,label\nthe other day,0\nthe other day,1\n");
    config.train.seq_len = 3;
    struct dpt_data *data = open_data();
    assert_int_equal(read_sample(data, 0).length, 3);
    memcpy(plain, read_sample(data, 0).tokens, sizeof plain);
    dpt_data_close(&data);
    config.train.seq_len = SEQ;
    data = open_data();
    const struct sample whole = read_sample(data, 1);
    assert_true(whole.length > 3);
    assert_memory_equal(whole.tokens, plain, sizeof plain);
    dpt_data_close(&data);
}

/* ---------------------------------------------------------------- what is refused */

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
     ":4: a quoted field goes on behind its closing quote; double the quotes inside it"},
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
     ":1: it has no member 'label'; give it one, or set data.label_column to the name that it "
     "has"},
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
        use(row_cases[i].name, row_cases[i].text);
        expect_refusal(row_cases[i].status, row_cases[i].why);
    }
}

static void columns_by_number(void **state)
{
    (void)state;
    columns("3", "1");
    use("t.csv", "1,a\n");
    expect_refusal(DPT_ECONFIG, ":1: data.text_column is 3, and the row has 2 columns; set it to "
                                "one");
    columns("1", "2");
    use("t.csv", "text,label\na,1\n"); /* a row of names, which is none */
    expect_refusal(DPT_ECORRUPT, ":1: label 'label' (column 2) is no integer");
    use("t.jsonl", "{\"text\": \"a\", \"label\": 0}\n");
    char why[2048];
    (void)snprintf(why, sizeof why,
                   "the members of a line of '%s' have names; set data.text_column and "
                   "data.label_column",
                   config.data.train);
    expect_refusal(DPT_ECONFIG, why);
}

static void bad_files(void **state)
{
    (void)state;
    char why[2048];
    use("t.txt", "text,label\na,1\n");
    (void)snprintf(why, sizeof why,
                   "'%s' ends with neither .csv, .tsv nor .jsonl, which says what kind of table it "
                   "is; rename it, or convert it to one of these",
                   config.data.train);
    expect_refusal(DPT_ECONFIG, why);
    static const char *const empty[] = {"", "\n\n", "text,label\n", "\xef\xbb\xbf"};
    for (size_t i = 0; i < sizeof empty / sizeof *empty; i++) {
        use("t.csv", empty[i]);
        (void)snprintf(why, sizeof why, "'%s' has no row of data; name another file",
                       config.data.train);
        expect_refusal(DPT_ECONFIG, why);
    }
    use("t.csv", "text,label\na,1\nb,2\n");
    config.data.train_samples = 3;
    (void)snprintf(why, sizeof why,
                   "'%s' has 2 rows of data, and data.train_samples is 3; set it to at most that, "
                   "or 0 for all",
                   config.data.train);
    expect_refusal(DPT_ECONFIG, why);
    config.data.train_samples = 0;
    (void)snprintf(config.data.train, sizeof config.data.train, "%s/none.csv", root);
    expect_refusal(DPT_ENOENT, "open '");
    (void)snprintf(config.data.train, sizeof config.data.train, "%s", root);
    (void)snprintf(why, sizeof why, "'%s' is no regular file", root);
    expect_refusal(DPT_EIO, why);
    struct dpt_data *data = NULL;
    config.data.train[0] = '\0';
    assert_int_equal(dpt_data_open(&config, &data, &err), DPT_ECONFIG);
    assert_string_equal(err.text, "data.train is empty: name a .csv, .tsv or .jsonl file");
    use("t.csv", "text,label\na,1\n");
    config.model.vocab = 200;
    assert_int_equal(dpt_data_open(&config, &data, &err), DPT_ECONFIG);
    assert_non_null(strstr(err.text, "the tokens of a text's bytes need 256 at least"));
}

/* ---------------------------------------------------------------- the digest */

static void make_digest(char ret_hex[DPT_HASH_HEX_BYTES])
{
    struct dpt_data_digest digest;
    if (dpt_data_digest(&config, &digest, &err) != DPT_OK)
        fail_msg("%s", err.text);
    memcpy(ret_hex, digest.used, DPT_HASH_HEX_BYTES);
}

/* Equal for the same texts and labels in any form; another text, label, order or cut is seen. */
static void digest(void **state)
{
    (void)state;
    static const struct {
        const char *name, *text;
        int first_label;
        bool same;
    } cases[] = {
        {"o.csv", "id,label,text\r\n1,0,\"ab\"\r\n2,1,c\r\n", 0, true},
        {"t.tsv", "label\ttext\n0\tab\n1\tc\n", 0, true},
        {"t.jsonl", "{\"label\": 0, \"text\": \"ab\"}\n{\"label\": 1, \"text\": \"c\"}\n", 0, true},
        {"o.csv", "text,label\nab,1\nc,2\n", 1, true},
        {"o.csv", "text,label\nab,0\nc,2\n", 0, false},
        {"o.csv", "text,label\nab,1\nc,1\n", 0, false},
        {"o.csv", "text,label\nab,0\nd,1\n", 0, false},
        {"o.csv", "text,label\na,0\nbc,1\n", 0, false},
        {"o.csv", "text,label\nc,1\nab,0\n", 0, false},
        {"o.csv", "text,label\nab,0\nc,1\nab,0\n", 0, false},
        {"o.csv", "text,label\nab,0\n", 0, false},
    };
    char first[DPT_HASH_HEX_BYTES], other[DPT_HASH_HEX_BYTES];
    use("t.csv", "text,label\nab,0\nc,1\n");
    make_digest(first);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        config.data.first_label = cases[i].first_label;
        use(cases[i].name, cases[i].text);
        make_digest(other);
        if ((strcmp(first, other) == 0) != cases[i].same)
            fail_msg("'%s' has %s digest", cases[i].text, cases[i].same ? "another" : "the same");
    }
    config.data.first_label = 0;
    config.train.seq_len = 1;
    use("t.csv", "text,label\nab,0\nc,1\n");
    make_digest(other);
    assert_string_not_equal(first, other);
}

/* Only what is read counts: rows behind train_samples may differ. */
static void digest_of_first_rows(void **state)
{
    (void)state;
    char first[DPT_HASH_HEX_BYTES], other[DPT_HASH_HEX_BYTES];
    config.data.train_samples = 1;
    use("a.csv", "text,label\nab,0\nc,1\n");
    make_digest(first);
    use("b.csv", "text,label\nab,0\nd,2\n");
    make_digest(other);
    assert_string_equal(first, other);
}

/* A rank compares what it reads with what its agent found. */
static void changed_since(void **state)
{
    (void)state;
    struct dpt_data_digest found;
    use("t.csv", "text,label\nab,0\nc,1\n");
    assert_int_equal(dpt_data_digest(&config, &found, &err), DPT_OK);
    assert_int_equal(found.train_samples, 2);
    struct dpt_data *data = open_data();
    assert_int_equal(dpt_data_check(data, &found.train, &err), DPT_OK);
    dpt_data_close(&data);
    use("t.csv", "text,label\nab,0\nc,1\n"); /* another file of the same rows */
    data = open_data();
    assert_int_equal(dpt_data_check(data, &found.train, &err), DPT_OK);
    dpt_data_close(&data);
    use("t.csv", "text,label\nab,0\nc,2\n");
    data = open_data();
    assert_int_equal(dpt_data_check(data, &found.train, &err), DPT_ECORRUPT);
    assert_non_null(strstr(err.text, "data.train was changed since this worker began"));
    dpt_data_close(&data);
}

/* ---------------------------------------------------------------- the loader */

static void use_many(int rows)
{
    char text[4096];
    size_t n = (size_t)snprintf(text, sizeof text, "label,text\n");
    for (int i = 0; i < rows; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%d,%.*s\n", i % LABELS, 1 + i % SEQ,
                              "abcdefghi" + i % 2);
    use("t.csv", text);
}

/* Every micro-batch is as long as its longest text, over and over in the ring's memory. */
static void micro_batches_are_ragged(void **state)
{
    (void)state;
    enum { ROWS = 25, STEPS = 40 };
    bool seen[SEQ + 1] = {false};
    use_many(ROWS);
    struct dpt_data *data = open_data();
    struct dpt_loader *loader = NULL;
    assert_int_equal(dpt_loader_create(&config, data, &loader, &err), DPT_OK);
    dpt_loader_start(loader, 0, 0, SLOTS, 1);
    for (int step = 0; step < STEPS; step++)
        for (int slot = 0; slot < SLOTS; slot++) {
            struct dpt_batch batch;
            int32_t longest = 0;
            if (dpt_loader_next(loader, step, slot, &batch, &err) != DPT_OK)
                fail_msg("%s", err.text);
            const int32_t *tokens = batch.part[DPT_SAMPLE_INPUT];
            for (int j = 0; j < MICRO; j++) {
                const int64_t i = ((int64_t)step * SLOTS + slot) * MICRO + j;
                const struct sample s = read_sample(data, dpt_sample_index(config.seed, ROWS, i));
                longest = s.length > longest ? s.length : longest;
                assert_int_equal(((int32_t *)batch.part[DPT_SAMPLE_TARGET])[j], s.label);
                assert_int_equal(((int32_t *)batch.part[DPT_SAMPLE_LENGTH])[j], s.length);
                for (int t = 0; t < batch.positions; t++)
                    assert_int_equal(tokens[j * batch.positions + t],
                                     t < s.length ? s.tokens[t] : 0);
            }
            assert_int_equal(batch.positions, longest);
            seen[longest] = true;
        }
    assert_true(seen[SEQ]);
    assert_true(seen[SEQ - 1] || seen[SEQ - 2] || seen[SEQ - 3]); /* not all are of one length */
    dpt_loader_destroy(&loader);
    dpt_data_close(&data);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(csv_with_names),
        TEST(csv_with_a_byte_order_mark),
        TEST(csv_without_names),
        TEST(labels_below_zero),
        TEST(tsv),
        TEST(jsonl),
        TEST(nul),
        TEST(long_texts_are_cut),
        TEST(first_rows_alone),
        TEST(large_file),
        TEST(gpt2_tokens),
        TEST(bad_rows),
        TEST(columns_by_number),
        TEST(bad_files),
        TEST(digest),
        TEST(digest_of_first_rows),
        TEST(changed_since),
        TEST(micro_batches_are_ragged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
