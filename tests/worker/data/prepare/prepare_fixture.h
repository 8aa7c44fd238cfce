/* Shared by the tests of dpt-data encode: texts in a temporary folder, the options, and a
 * comparison of output folders. */
#ifndef DPT_TESTS_WORKER_DATA_PREPARE_PREPARE_FIXTURE_H
#define DPT_TESTS_WORKER_DATA_PREPARE_PREPARE_FIXTURE_H

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

/* The path ROOT/NAME, in one of four static buffers in turn. */
const char *in_root(const char *name);

void write_text(const char *name, int lines, uint64_t seed);
void write_string(const char *name, const char *text);
/* Writes DOCUMENTS documents "document I …", with some blank lines between them. */
void write_jsonl(const char *name);

/* add adds ROOT/NAME to the inputs. add_all adds five texts, one of them without a newline at its
 * end, and a file of documents. */
void add(const char *name, bool val);
void add_all(void);

enum dpt_status encode(const char *out);

/* Checks that both folders have the same files with the same bytes. */
void expect_same(const char *a, const char *b);

/* Checks that encode fails with this status and one line that contains `what`. */
void expect_refusal(const char *out, enum dpt_status status, const char *what);

#endif
