/* YAML text as a flat list of (path, value, position). It is made from libyaml's events without
 * knowledge of the keys.
 *
 * It accepts one document, mappings of text keys that are at most four deep, and values that are
 * scalars or lists of scalars. It refuses, with the position: a key given twice, anchors, aliases,
 * tags, more documents, deeper nesting, NUL bytes, invalid UTF-8 and errors of libyaml. */
#ifndef DPT_BASE_CONFIG_YAML_H
#define DPT_BASE_CONFIG_YAML_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

enum {
    DPT_YAML_PAIRS_MAX = 256,
    DPT_YAML_VALUES_MAX = 512, /* scalars of all pairs */
    DPT_YAML_PATH_BYTES = 128,
    DPT_YAML_DEPTH_MAX = 4
};

enum dpt_yaml_kind { DPT_YAML_SCALAR, DPT_YAML_LIST, DPT_YAML_SECTION };

struct dpt_yaml_value {
    char *text; /* without NUL inside; owned by the document */
    bool plain; /* written without quotes, so it may mean null, auto, true or a number */
    int line, column;
};

struct dpt_yaml_pair {
    char path[DPT_YAML_PATH_BYTES]; /* "train.steps" */
    enum dpt_yaml_kind kind;
    const struct dpt_yaml_value *value; /* [n_values]: 1 for a scalar, 0 for a section */
    size_t n_values;
    int line, column; /* position of the key, from 1 */
};

struct dpt_yaml {
    struct dpt_yaml_pair pair[DPT_YAML_PAIRS_MAX]; /* a section comes before its keys */
    size_t n_pairs;
    struct dpt_yaml_value value[DPT_YAML_VALUES_MAX];
    size_t n_values;
};

/* Parses `text`. Errors name it `source` ("source:line:column: …"). If `prefix` is not NULL, the
 * text is the value of that path (as in --set prefix=text), and errors have no line. Returns an
 * owned document. Errors: DPT_ECONFIG, DPT_ENOMEM. */
DPT_MUST_USE enum dpt_status dpt_yaml_parse(const char *text, size_t bytes, const char *source,
                                            const char *prefix, struct dpt_yaml **ret_yaml,
                                            struct dpt_err *err);
void dpt_yaml_destroy(struct dpt_yaml **yaml);

/* Whether the value is null: without quotes, and the word null, ~ or empty. */
bool dpt_yaml_is_null(const struct dpt_yaml_value *value);

#endif
