/* What the tests of dpt-data encode share: texts in a folder of their own, the options, comparing
 * what was written. */
#ifndef DPT_TESTS_WORKER_DATA_PREPARE_FIXTURE_H
#define DPT_TESTS_WORKER_DATA_PREPARE_FIXTURE_H

#include "base/fs.h"
#include "worker/data/prepare/encode.h"
#include "worker/data/prepare/shards.h"

enum { LINES = 400, DOCUMENTS = 60 };

extern char root[128];
extern struct dpt_err err;
extern struct dpt_inputs inputs;
extern struct dpt_encode_options options; /* the tiny vocabulary, small blocks and shards */
extern struct dpt_encode_result result;

#define OK(call)                                                                                   \
    do {                                                                                           \
        if ((call) != DPT_OK)                                                                      \
            fail_msg("%s", err.text);                                                              \
    } while (0)

int setup(void **state);
int teardown(void **state);

/* ROOT/NAME; four at a time. */
const char *in_root(const char *name);

void write_text(const char *name, int lines, uint64_t seed);
void write_string(const char *name, const char *text);
/* DOCUMENTS of them, "document I …", with a blank line now and then. */
void write_jsonl(const char *name);

/* Adds ROOT/NAME to the inputs; all: five texts, one of them without a last line's end, and a file
 * of documents. */
void add(const char *name, bool val);
void add_all(void);

enum dpt_status encode(const char *out);

/* Both folders have the same files with the same bytes. */
void expect_same(const char *a, const char *b);

/* One line that says `what`. */
void expect_refusal(const char *out, enum dpt_status status, const char *what);

#endif
