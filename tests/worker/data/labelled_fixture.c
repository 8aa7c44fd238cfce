/* The config of the tests of labelled texts, and their file. */
#include "tests/worker/data/labelled_fixture.h"

#include "base/fs.h"
#include "tests/tmp.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

char labelled_root[128];
struct dpt_err labelled_err;
struct dpt_config labelled_config;

int labelled_setup(void **state)
{
    (void)state;
    memset(&labelled_config, 0, sizeof labelled_config);
    labelled_config.seed = 42;
    labelled_config.model.vocab = 50257;
    labelled_config.model.labels = LABELS;
    labelled_config.data.kind = DPT_DATA_CLASSIFICATION;
    (void)snprintf(labelled_config.data.text_column, sizeof labelled_config.data.text_column,
                   "text");
    (void)snprintf(labelled_config.data.label_column, sizeof labelled_config.data.label_column,
                   "label");
    labelled_config.train.seq_len = SEQ;
    labelled_config.train.micro_batch = MICRO;
    labelled_config.train.global_batch = MICRO * SLOTS;
    return test_make_dir(labelled_root, sizeof labelled_root, "labelled-test") ? 0 : -1;
}

int labelled_teardown(void **state)
{
    (void)state;
    return dpt_fs_remove_tree(labelled_root, NULL) == DPT_OK ? 0 : -1;
}

void labelled_use_bytes(const char *name, const void *text, size_t bytes)
{
    (void)snprintf(labelled_config.data.train, sizeof labelled_config.data.train, "%s/%s",
                   labelled_root, name);
    assert_int_equal(
        dpt_fs_write_file_atomic(labelled_config.data.train, text, bytes, &labelled_err), DPT_OK);
}

void labelled_use(const char *name, const char *text)
{
    labelled_use_bytes(name, text, strlen(text));
}

void labelled_columns(const char *text, const char *label)
{
    (void)snprintf(labelled_config.data.text_column, sizeof labelled_config.data.text_column, "%s",
                   text);
    (void)snprintf(labelled_config.data.label_column, sizeof labelled_config.data.label_column,
                   "%s", label);
}

struct dpt_data *labelled_open(void)
{
    struct dpt_data *data = NULL;
    if (dpt_data_open(&labelled_config, &data, &labelled_err) != DPT_OK)
        fail_msg("%s", labelled_err.text);
    return data;
}

struct sample labelled_sample(const struct dpt_data *data, int64_t i)
{
    struct sample s = {{0}, -1, -1};
    const struct dpt_batch one = {.part = {s.tokens, &s.label, &s.length}};
    assert_int_equal(dpt_data_read(data, i, 0, &one, 0, &labelled_err), DPT_OK);
    return s;
}
