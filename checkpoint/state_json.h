/* The two JSON files beside the tensors: state.json (all that a run needs to resume) and the index
 * in Hugging Face's format. */
#ifndef DPT_CHECKPOINT_STATE_JSON_H
#define DPT_CHECKPOINT_STATE_JSON_H

#include "base/err.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/files.h"

#include <stddef.h>

enum { DPT_STATE_BYTES_MAX = 16 << 20, DPT_INDEX_BYTES_MAX = 64 << 20 };

/* A state, and the parsed text that owns its strings. Zero-initialise. */
struct dpt_state_json {
    struct dpt_checkpoint_state state;
    struct json_t *root;
    char *history_json;
};

void dpt_state_json_fini(struct dpt_state_json *copy);

/* Prints state.json; owned text. The history must be a JSON array. */
DPT_MUST_USE enum dpt_status dpt_state_json_print(const struct dpt_checkpoint_state *state,
                                                  char **ret_text, struct dpt_err *err);
/* Parses any bytes; `ret` (zeroed) is filled only on success. */
DPT_MUST_USE enum dpt_status dpt_state_json_parse(const char *text, size_t bytes,
                                                  struct dpt_state_json *ret, struct dpt_err *err);

/* Prints the index: the file of each tensor, and the bytes of all tensors. Owned text. */
DPT_MUST_USE enum dpt_status dpt_index_print(const struct dpt_checkpoint_tensor *tensors,
                                             const struct dpt_files *files, char **ret_text,
                                             struct dpt_err *err);

struct dpt_index {
    struct json_t *map; /* tensor -> file */
    int n;
    int64_t total_bytes;
};

/* Parses any bytes; `ret` (zeroed) is filled only on success. */
DPT_MUST_USE enum dpt_status dpt_index_parse(const char *text, size_t bytes, struct dpt_index *ret,
                                             struct dpt_err *err);
void dpt_index_fini(struct dpt_index *index);

/* DPT_ECORRUPT unless the index maps `tensor` to `file`. */
DPT_MUST_USE enum dpt_status dpt_index_check(const struct dpt_index *index, const char *tensor,
                                             const char *file, struct dpt_err *err);

#endif
