/* Keys of classification: their effect, and impossible combinations. */
#include "base/config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static struct dpt_err err;

static void classification_keys_are_read(void **state)
{
    (void)state;
    static struct dpt_config c;
    static const char text[] = "model: {labels: 5}\n"
                               "data:\n"
                               "  kind: classification\n"
                               "  train: reviews.csv\n"
                               "  text_column: 2\n"
                               "  label_column: 1\n"
                               "  first_label: 1\n"
                               "  train_samples: 32\n"
                               "  val_samples: 16\n";
    if (dpt_config_load_text(text, "c.yaml", NULL, 0, &c, &err) != DPT_OK)
        fail_msg("%s", err.text);
    assert_int_equal(c.data.kind, DPT_DATA_CLASSIFICATION);
    assert_true(dpt_config_reads_text(&c));
    assert_int_equal(c.model.labels, 5);
    assert_int_equal(c.model.vocab, 256); /* of byte tokens */
    assert_string_equal(c.data.text_column, "2");
    assert_string_equal(c.data.label_column, "1");
    assert_int_equal(c.data.first_label, 1);
    assert_int_equal(c.data.train_samples, 32);
    assert_int_equal(c.data.val_samples, 16);
}

static void classification_defaults(void **state)
{
    (void)state;
    static struct dpt_config c;
    dpt_config_defaults(&c);
    assert_int_equal(c.model.labels, 0);
    assert_string_equal(c.data.text_column, "text");
    assert_string_equal(c.data.label_column, "label");
    assert_int_equal(c.data.first_label, 0);
    assert_int_equal(c.data.train_samples, 0);
    assert_int_equal(c.data.val_samples, 0);
    assert_true(dpt_config_reads_text(&c));
    c.data.kind = DPT_DATA_TOKENS;
    assert_false(dpt_config_reads_text(&c));
}

static const struct {
    const char *set[3], *error; /* NULL: it can be */
} combination_cases[] = {
    {{"data={kind: classification}", "model.labels=2"}, NULL},
    {{"data={kind: classification}"},
     "data.kind: classification needs model.labels, the number of classes, which is 0 here; "
     "set "
     "it to at least 2, or data.kind: text"},
    {{"data={kind: classification}", "model.labels=1"},
     "data.kind: classification needs model.labels, the number of classes, which is 1 here; "
     "set "
     "it to at least 2, or data.kind: text"},
    {{"model.labels=5"},
     "model.labels (5) are classes of data.kind: classification, cifar10 or images; set one of "
     "these, or labels to 0 (data.kind is text)"},
    {{"data={kind: tokens}", "model.labels=5"},
     "model.labels (5) are classes of data.kind: classification, cifar10 or images; set one of "
     "these, or labels to 0 (data.kind is tokens)"},
    {{"data={kind: classification, tokenizer: gpt2}", "model.labels=2"},
     "data.tokenizer: gpt2 needs data.vocab_bpe; name OpenAI's file, or set data.tokenizer: "
     "bytes"},
    {{"data={kind: classification, tokenizer: hf}", "model={labels: 2, vocab: 500}"},
     "data.tokenizer: hf needs data.tokenizer_json; name the file, or set data.tokenizer: "
     "bytes"},
    {{"data={kind: classification, tokenizer: hf}", "model.labels=2"},
     "model.vocab: auto is not known with data.tokenizer: hf; set it to the number of that "
     "tokenizer's tokens, which dpt-data encode prints, or more"},
    {{"data={kind: classification}", "model={labels: 2, vocab: 100}"},
     "100 is too small for byte tokens; at least 256, or auto"},
    {{"data={kind: classification, text_column: 2, label_column: 1}", "model.labels=2"}, NULL},
    {{"data={kind: classification, text_column: 2}", "model.labels=2"},
     "data.text_column is '2' and data.label_column 'label', one by its number, for a file "
     "without names, and one by its name; give two numbers or two names"},
    {{"data={kind: classification, text_column: label}", "model.labels=2"},
     "data.text_column and data.label_column are both 'label'; name the column of the labels "
     "and that of the texts"},
    {{"data={kind: classification, text_column: 0, label_column: 1}", "model.labels=2"},
     "data.text_column is 0, and columns are counted from 1"},
    {{"data={train_samples: 32}"},
     "data.train_samples (32) are rows of data.kind: classification; set that, or write 0 "
     "here"},
    {{"data={kind: tokens, val_samples: 16}"},
     "data.val_samples (16) are rows of data.kind: classification; set that, or write 0 here"},
};

static void test_classes_combinations(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof combination_cases / sizeof *combination_cases; i++) {
        static struct dpt_config c;
        size_t n = 0;
        while (n < 3 && combination_cases[i].set[n])
            n++;
        const enum dpt_status status =
            dpt_config_load_text("", "c.yaml", combination_cases[i].set, n, &c, &err);
        if (combination_cases[i].error == NULL) {
            if (status != DPT_OK)
                fail_msg("%s", err.text);
            continue;
        }
        assert_int_equal(status, DPT_ECONFIG);
        const char *told = strstr(err.text, combination_cases[i].error);
        if (!told || strcmp(told, combination_cases[i].error) != 0)
            fail_msg("'%s' does not end with '%s'", err.text, combination_cases[i].error);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(classification_keys_are_read),
        cmocka_unit_test(classification_defaults),
        cmocka_unit_test(test_classes_combinations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
