/* The folder that dpt-data encode fills: train_NNNNNN.bin and val_NNNNNN.bin, complete or absent.
 *
 * A shard grows as NAME.part and gets its final name when it is full. dpt_shards_save makes the
 * appended tokens durable, writes the state beside the parts, and then renames full shards. After
 * the death of the process at any moment, dpt_shards_resume finds the state of the last save and
 * truncates the parts to it; the encode writes the rest again, with the same bytes.
 *
 *   append … append        save                                      append …
 *   parts grow             fsync parts, write state, rename full ones   ↑ resume starts here */
#ifndef DPT_WORKER_DATA_PREPARE_SHARDS_H
#define DPT_WORKER_DATA_PREPARE_SHARDS_H

#include "worker/data/prepare/cutter.h"
#include "worker/data/prepare/shard_list.h"

#include <limits.h>

#define DPT_STATE_NAME  "dpt-data.state"
#define DPT_RECORD_NAME "dpt-data.json"
#define DPT_SUMS_NAME   "SHA256SUMS"

/* How far an encode has come: the state file's content, except the settings. */
struct dpt_shards_progress {
    struct dpt_cut_position at;
    int64_t replaced; /* sequences of invalid UTF-8 */
    /* Hash of the inputs and the times of their last changes. A changed input is not resumed. */
    char inputs[DPT_HASH_HEX_BYTES];
};

struct dpt_shards {
    char dir[PATH_MAX];
    int dir_fd; /* locked while open */
    int64_t shard_tokens;
    int token_bytes; /* 2: GPT-2's form of shards; 4: Llama 3's */
    struct dpt_shard_list list[DPT_SPLIT_COUNT];
    struct json_t *settings; /* everything the shards' bytes depend on; borrowed */
    struct dpt_shards_progress progress;
};

/* Creates the folder if it is absent, and locks it. DPT_EREFUSED: another process has the lock. */
DPT_MUST_USE enum dpt_status dpt_shards_open(struct dpt_shards *shards, const char *dir,
                                             int64_t shard_tokens, int token_bytes,
                                             struct dpt_err *err);
void dpt_shards_close(struct dpt_shards *shards);

/* Continues from the state in the folder, if there is one. The caller has set `settings` and
 * progress.inputs. *ret_done: the folder is finished with these settings. DPT_EREFUSED: the state
 * has other settings or inputs, the folder is finished with other settings, or its shards have no
 * record. DPT_ECORRUPT: a full shard is absent or has another length. */
DPT_MUST_USE enum dpt_status dpt_shards_resume(struct dpt_shards *shards, bool *ret_done,
                                               struct dpt_err *err);

/* Appends tokens, beginning new shards as they get full. */
DPT_MUST_USE enum dpt_status dpt_shards_append(struct dpt_shards *shards, enum dpt_split split,
                                               const uint32_t *ids, size_t n, struct dpt_err *err);

/* Whether a full shard waits for its final name. */
bool dpt_shards_want_save(const struct dpt_shards *shards);

DPT_MUST_USE enum dpt_status dpt_shards_save(struct dpt_shards *shards, struct dpt_err *err);

/* Gives the last shards their headers and names, writes SHA256SUMS and dpt-data.json, and removes
 * the state. */
DPT_MUST_USE enum dpt_status dpt_shards_finish(struct dpt_shards *shards, struct dpt_err *err);

#endif
