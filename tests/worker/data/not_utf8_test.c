/* Texts that a run encodes itself and that are not UTF-8: warned of or refused. */
#include "worker/data/data.h"

#include "base/fs.h"
#include "tests/logged.h"
#include "tests/tmp.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static char root[128];
static struct dpt_err err;
static struct dpt_config config;

static int setup(void **state)
{
    (void)state;
    dpt_config_defaults(&config);
    config.model.vocab = 50257;
    config.model.labels = 3;
    config.data.kind = DPT_DATA_CLASSIFICATION;
    config.data.any_vocab = true;
    (void)snprintf(config.data.vocab_bpe, sizeof config.data.vocab_bpe, DPT_RECORDED "/tiny.bpe");
    (void)snprintf(config.data.encoder_json, sizeof config.data.encoder_json,
                   DPT_RECORDED "/tiny.json");
    config.train.seq_len = 8;
    return test_make_dir(root, sizeof root, "not-utf8-test") ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    return dpt_fs_remove_tree(root, NULL) == DPT_OK ? 0 : -1;
}

/* Writes data.train. */
static void use_text_file(const char *name, const void *text, size_t bytes)
{
    (void)snprintf(config.data.train, sizeof config.data.train, "%s/%s", root, name);
    assert_int_equal(dpt_fs_write_file_atomic(config.data.train, text, bytes, &err), DPT_OK);
}

/* Opens the data, which logs this and nothing else. */
static void expect_log(enum dpt_tokenizer tokenizer, const char *expected)
{
    struct dpt_data *data = NULL;
    config.data.tokenizer = tokenizer;
    test_log_begin();
    const enum dpt_status status = dpt_data_open(&config, &data, &err);
    test_log_end();
    if (status != DPT_OK)
        fail_msg("%s", err.text);
    dpt_data_close(&data);
    assert_string_equal(test_logged, expected);
}

static void table_in_latin_1(void **state)
{
    (void)state;
    static const char table[] = "text,label\nplain,0\n\"caf\xe9 cr\xe8me\",1\n\xfc"
                                "ber,2\n";
    char warning[2048];
    use_text_file("t.csv", table, strlen(table));
    (void)snprintf(warning, sizeof warning,
                   "W: '%s' is not UTF-8: 3 sequences of bytes from line 3 on became U+FFFD; save "
                   "the file as UTF-8\n",
                   config.data.train);
    expect_log(DPT_TOKENIZER_GPT2, warning);
    expect_log(DPT_TOKENIZER_BYTES, "");
    config.data.train_samples = 1; /* rows that are not read do not count */
    expect_log(DPT_TOKENIZER_GPT2, "");
}

static void text_in_latin_1(void **state)
{
    (void)state;
    static const char text[] = "caf\xe9 in a line of text that is long enough for one sample\n";
    char warning[2048];
    config.data.kind = DPT_DATA_TEXT;
    use_text_file("t.txt", text, strlen(text));
    (void)snprintf(warning, sizeof warning,
                   "W: '%s' is not UTF-8: 1 sequence of bytes became U+FFFD; save the file as "
                   "UTF-8\n",
                   config.data.train);
    expect_log(DPT_TOKENIZER_GPT2, warning);
    expect_log(DPT_TOKENIZER_BYTES, "");
}

static void expect_refusal(const char *why)
{
    struct dpt_data *data = NULL;
    char whole[DPT_ERR_TEXT_BYTES + 128];
    (void)snprintf(whole, sizeof whole, "data.train: %s:1: %s", config.data.train, why);
    assert_int_equal(dpt_data_open(&config, &data, &err), DPT_ECORRUPT);
    assert_string_equal(err.text, whole);
}

/* As spreadsheets save "Unicode text": the message has the reason, none of the bytes. */
static void table_in_utf_16(void **state)
{
    (void)state;
    static const char little[] = "\xff\xfet\0e\0x\0t\0,\0l\0\n", big[] = "\xfe\xff\0t\0e\0x\0t";
    use_text_file("t.csv", little, sizeof little);
    expect_refusal("the file is UTF-16; save it as UTF-8");
    use_text_file("t.jsonl", big, sizeof big - 1);
    expect_refusal("the file is UTF-16; save it as UTF-8");
    use_text_file("t.tsv", little, 2);
    expect_refusal("the file is UTF-16; save it as UTF-8");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(table_in_latin_1),
        TEST(text_in_latin_1),
        TEST(table_in_utf_16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
