/* Tables of texts and labels: the samples, their digest, and micro-batches as long as their longest
 * text. */
#include "tests/worker/data/labelled_fixture.h"

#include "worker/plan/sampler.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---------------------------------------------------------------- reading */

/* The samples of data.train, as text: "label:bytes", each with '|' behind it. */
static void expect_samples(const char *expected)
{
    char found[512];
    size_t n = 0;
    struct dpt_data *data = labelled_open();
    for (int64_t i = 0; i < dpt_data_samples(data); i++) {
        const struct sample s = labelled_sample(data, i);
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

static void csv_with_names(void **state)
{
    (void)state;
    labelled_use("t.csv", "id,label,text\r\n7,0,\"a,\nb\"\r\n\r\n8,2,\"\"\"q\"\"\"\r\n9,1,c");
    expect_samples("0:a,\nb|2:\"q\"|1:c|");
    labelled_columns("id", "label"); /* any column is a text */
    expect_samples("0:7|2:8|1:9|");
}

static void csv_with_a_byte_order_mark(void **state)
{
    (void)state;
    labelled_use("t.csv", "\xef\xbb\xbftext,label\na,1\n");
    expect_samples("1:a|");
    labelled_use("t.csv", "\xef\xbb\xbf\"text\",label\na,1\n");
    expect_samples("1:a|");
    labelled_columns("2", "1");
    labelled_use("t.csv", "\xef\xbb\xbf"
                          "1,a\n");
    expect_samples("1:a|");
}

/* As Yelp Review Full has it: no names, labels from 1. */
static void csv_without_names(void **state)
{
    (void)state;
    labelled_columns("2", "1");
    labelled_config.data.first_label = 1;
    labelled_use("T.CSV", "\"3\",\"good\"\n\"1\",\"bad\"\n");
    expect_samples("2:good|0:bad|");
}

static void labels_below_zero(void **state)
{
    (void)state;
    labelled_config.data.first_label = -1;
    labelled_use("t.csv", "text,label\na,-1\nb,1\nc,0\n");
    expect_samples("0:a|2:b|1:c|");
}

static void tsv(void **state)
{
    (void)state;
    labelled_use("t.TSV", "text\tlabel\n\"a, b\"\t1\nc\t0\n");
    expect_samples("1:\"a, b\"|0:c|");
}

static void jsonl(void **state)
{
    (void)state;
    labelled_use("t.jsonl", "{\"text\": \"a\\nb\", \"label\": 2, \"id\": 7}\n"
                            "\n"
                            "{\"label\": 0, \"text\": \"\xc3\xa4\"}\r\n"
                            "{\"label\": 1, \"text\": \"\\u00e4\"}");
    expect_samples("2:a\nb|0:\xc3\xa4|1:\xc3\xa4|");
    labelled_use("t.NDJson", "\xef\xbb\xbf{\"text\": \"a\", \"label\": 1}\n");
    expect_samples("1:a|");
}

/* A NUL is a byte of a text. */
static void nul(void **state)
{
    (void)state;
    labelled_use("t.jsonl", "{\"text\": \"a\\u0000b\", \"label\": 1}");
    struct dpt_data *data = labelled_open();
    struct sample s = labelled_sample(data, 0);
    assert_int_equal(s.length, 3);
    assert_int_equal(s.tokens[1], 0);
    dpt_data_close(&data);
    labelled_use_bytes("t.csv", "text,label\na\0b,1", 16);
    data = labelled_open();
    s = labelled_sample(data, 0);
    assert_int_equal(s.length, 3);
    assert_int_equal(s.tokens[2], 'b');
    dpt_data_close(&data);
}

static void long_texts_are_cut(void **state)
{
    (void)state;
    labelled_use("t.csv", "text,label\n12345678,0\n123456789,1\n1234567,2\n");
    expect_samples("0:12345678|1:12345678|2:1234567|");
}

/* What is not read is not looked at either. */
static void first_rows_alone(void **state)
{
    (void)state;
    labelled_use("t.csv", "text,label\na,0\nb,1\nc,2\nno row\n");
    labelled_config.data.train_samples = 3;
    expect_samples("0:a|1:b|2:c|");
    labelled_config.data.train_samples = 2;
    expect_samples("0:a|1:b|");
    struct dpt_data *data = NULL;
    memcpy(labelled_config.data.val, labelled_config.data.train, sizeof labelled_config.data.val);
    labelled_config.data.val_samples = 1;
    assert_int_equal(dpt_data_open_val(&labelled_config, &data, &labelled_err), DPT_OK);
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
    labelled_use_bytes("t.csv", text, n);
    free(text);
    struct dpt_data *data = labelled_open();
    assert_int_equal(dpt_data_samples(data), ROWS);
    for (int i = 0; i < ROWS; i++) {
        char expected[16];
        const struct sample s = labelled_sample(data, i);
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
    labelled_config.data.tokenizer = DPT_TOKENIZER_GPT2;
    labelled_config.data.any_vocab = true;
    (void)snprintf(labelled_config.data.vocab_bpe, sizeof labelled_config.data.vocab_bpe,
                   DPT_RECORDED "/tiny.bpe");
    (void)snprintf(labelled_config.data.encoder_json, sizeof labelled_config.data.encoder_json,
                   DPT_RECORDED "/tiny.json");
    /* The same text twice, cut and whole: equal tokens, fewer of them than bytes. */
    labelled_use("t.csv", "text,label\nthe other day,0\nthe other day,1\n");
    labelled_config.train.seq_len = 3;
    struct dpt_data *data = labelled_open();
    assert_int_equal(labelled_sample(data, 0).length, 3);
    memcpy(plain, labelled_sample(data, 0).tokens, sizeof plain);
    dpt_data_close(&data);
    labelled_config.train.seq_len = SEQ;
    data = labelled_open();
    const struct sample whole = labelled_sample(data, 1);
    assert_true(whole.length > 3);
    assert_memory_equal(whole.tokens, plain, sizeof plain);
    dpt_data_close(&data);
}

/* ---------------------------------------------------------------- the digest */

static void make_digest(char ret_hex[DPT_HASH_HEX_BYTES])
{
    struct dpt_data_digest digest;
    if (dpt_data_digest(&labelled_config, &digest, &labelled_err) != DPT_OK)
        fail_msg("%s", labelled_err.text);
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
    labelled_use("t.csv", "text,label\nab,0\nc,1\n");
    make_digest(first);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        labelled_config.data.first_label = cases[i].first_label;
        labelled_use(cases[i].name, cases[i].text);
        make_digest(other);
        if ((strcmp(first, other) == 0) != cases[i].same)
            fail_msg("'%s' has %s digest", cases[i].text, cases[i].same ? "another" : "the same");
    }
    labelled_config.data.first_label = 0;
    labelled_config.train.seq_len = 1;
    labelled_use("t.csv", "text,label\nab,0\nc,1\n");
    make_digest(other);
    assert_string_not_equal(first, other);
}

/* Only rows that are read count: rows behind train_samples may differ. */
static void digest_of_first_rows(void **state)
{
    (void)state;
    char first[DPT_HASH_HEX_BYTES], other[DPT_HASH_HEX_BYTES];
    labelled_config.data.train_samples = 1;
    labelled_use("a.csv", "text,label\nab,0\nc,1\n");
    make_digest(first);
    labelled_use("b.csv", "text,label\nab,0\nd,2\n");
    make_digest(other);
    assert_string_equal(first, other);
}

/* A rank compares its data with its agent's. */
static void changed_since(void **state)
{
    (void)state;
    struct dpt_data_digest found;
    labelled_use("t.csv", "text,label\nab,0\nc,1\n");
    assert_int_equal(dpt_data_digest(&labelled_config, &found, &labelled_err), DPT_OK);
    assert_int_equal(found.train_samples, 2);
    struct dpt_data *data = labelled_open();
    assert_int_equal(dpt_data_check(data, &found.train, &labelled_err), DPT_OK);
    dpt_data_close(&data);
    labelled_use("t.csv", "text,label\nab,0\nc,1\n"); /* another file of the same rows */
    data = labelled_open();
    assert_int_equal(dpt_data_check(data, &found.train, &labelled_err), DPT_OK);
    dpt_data_close(&data);
    labelled_use("t.csv", "text,label\nab,0\nc,2\n");
    data = labelled_open();
    assert_int_equal(dpt_data_check(data, &found.train, &labelled_err), DPT_ECORRUPT);
    assert_non_null(strstr(labelled_err.text, "data.train was changed since this worker began"));
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
    labelled_use("t.csv", text);
}

/* Every micro-batch is as long as its longest text, over and over in the ring's memory. */
static void micro_batches_are_ragged(void **state)
{
    (void)state;
    enum { ROWS = 25, STEPS = 40 };
    bool seen[SEQ + 1] = {false};
    use_many(ROWS);
    struct dpt_data *data = labelled_open();
    struct dpt_loader *loader = NULL;
    assert_int_equal(dpt_loader_create(&labelled_config, data, &loader, &labelled_err), DPT_OK);
    dpt_loader_start(loader, 0, 0, SLOTS, 1);
    for (int step = 0; step < STEPS; step++)
        for (int slot = 0; slot < SLOTS; slot++) {
            struct dpt_batch batch;
            int32_t longest = 0;
            if (dpt_loader_next(loader, step, slot, &batch, &labelled_err) != DPT_OK)
                fail_msg("%s", labelled_err.text);
            const int32_t *tokens = batch.part[DPT_SAMPLE_INPUT];
            for (int j = 0; j < MICRO; j++) {
                const int64_t i = ((int64_t)step * SLOTS + slot) * MICRO + j;
                const struct sample s =
                    labelled_sample(data, dpt_sampler_index(labelled_config.seed, ROWS, i));
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
        TEST(digest),
        TEST(digest_of_first_rows),
        TEST(changed_since),
        TEST(micro_batches_are_ragged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
