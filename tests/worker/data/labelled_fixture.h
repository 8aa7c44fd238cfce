/* A config for labelled texts in a temporary folder, whose data.train the tests write. */
#ifndef DPT_TESTS_WORKER_DATA_LABELLED_FIXTURE_H
#define DPT_TESTS_WORKER_DATA_LABELLED_FIXTURE_H

#include "worker/data/data.h"

enum { SEQ = 8, LABELS = 3, MICRO = 3, SLOTS = 2 };

extern char labelled_root[128];
extern struct dpt_err labelled_err;
extern struct dpt_config labelled_config;

int labelled_setup(void **state);
int labelled_teardown(void **state);
#define TEST(name) cmocka_unit_test_setup_teardown(name, labelled_setup, labelled_teardown)

/* Writes data.train. */
void labelled_use_bytes(const char *name, const void *text, size_t bytes);
void labelled_use(const char *name, const char *text);

/* Sets data.text_column and data.label_column. */
void labelled_columns(const char *text, const char *label);

/* Opens data.train; an error fails the test. */
struct dpt_data *labelled_open(void);

struct sample {
    int32_t tokens[SEQ], label, length;
};

struct sample labelled_sample(const struct dpt_data *data, int64_t i);

#endif
