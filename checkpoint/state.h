/* The two JSON files beside the tensors: state.json (what a run needs to go on) and the index in
 * Hugging Face's form. */
#ifndef DPT_CHECKPOINT_STATE_H
#define DPT_CHECKPOINT_STATE_H

#include "base/err.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/files.h"

#include <stddef.h>

enum { DPT_STATE_BYTES_MAX = 16 << 20, DPT_INDEX_BYTES_MAX = 64 << 20 };

/* A state whose strings lie in a parsed text. Zero-initialise. */
struct dpt_state_copy {
    struct dpt_checkpoint_state state;
    struct json_t *root;
    char *history_json;
};

void dpt_state_fini(struct dpt_state_copy *copy);

/* Owned text. The history must be a JSON array. */
DPT_MUST_USE enum dpt_status dpt_state_print(const struct dpt_checkpoint_state *state,
                                             char **ret_text, struct dpt_err *err);
/* Parses any bytes; `ret` (zeroed) is filled only on success. */
DPT_MUST_USE enum dpt_status dpt_state_parse(const char *text, size_t bytes, const char *what,
                                             struct dpt_state_copy *ret, struct dpt_err *err);

/* Which file holds each tensor, and the bytes of them all. Owned text. */
DPT_MUST_USE enum dpt_status dpt_index_print(const struct dpt_checkpoint_tensor *tensors,
                                             const struct dpt_files *files, char **ret_text,
                                             struct dpt_err *err);

/* An index of any bytes against one tensor: DPT_ECORRUPT unless it maps `tensor` to `file`. Opaque
 * so that the text is parsed once. */
struct dpt_index;
DPT_MUST_USE enum dpt_status dpt_index_parse(const char *text, size_t bytes, const char *what,
                                             struct dpt_index **ret, struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_index_check(const struct dpt_index *index, const char *tensor,
                                             const char *file, struct dpt_err *err);
int64_t dpt_index_total_bytes(const struct dpt_index *index);
int dpt_index_n(const struct dpt_index *index);
void dpt_index_destroy(struct dpt_index **index);

#endif
