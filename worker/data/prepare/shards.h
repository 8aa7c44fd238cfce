/* The folder that dpt-data encode fills: train_NNNNNN.bin and val_NNNNNN.bin, whole or absent.
 *
 * A shard grows as NAME.part and gets its final name when it is full. dpt_shards_save makes what
 * was appended durable, writes the state beside it, and only then renames what is full: whatever
 * moment the process dies at, dpt_shards_resume finds the state of the last save, cuts the parts
 * back to it, and the rest is made again, with the same bytes.
 *
 *   append … append        save                                      append …
 *   parts grow             fsync parts, write state, rename full ones   ↑ resume starts here */
#ifndef DPT_WORKER_DATA_PREPARE_SHARDS_H
#define DPT_WORKER_DATA_PREPARE_SHARDS_H

#include "base/sha256.h"
#include "worker/data/prepare/cut.h"

#include <limits.h>

#define DPT_STATE_NAME  "dpt-data.state"
#define DPT_RECORD_NAME "dpt-data.json"
#define DPT_SUMS_NAME   "SHA256SUMS"
enum { DPT_SHARD_NAME_BYTES = 32, DPT_PREPARED_SHARDS_MAX = 65536 };

/* The shards of one split. */
struct dpt_shard_list {
    int full;          /* shards with shard_tokens tokens, or at the end the last one too */
    int renamed;       /* of those, shards that have their final name */
    int64_t current;   /* tokens of the next shard so far */
    int64_t tokens;    /* of all */
    int64_t documents; /* that went here */
    char (*sha256)[DPT_SHA256_HEX_BYTES]; /* (room), `full` of them known */
    int64_t *shard_tokens;                /* (room), likewise */
    int room;
    int fd; /* of the part that grows; -1: none */
};

struct dpt_shards {
    char dir[PATH_MAX];
    int dir_fd; /* locked against others while open */
    int64_t shard_tokens;
    int token_bytes; /* 2: GPT-2's form of shards; 4: Llama 3's */
    struct dpt_shard_list list[DPT_SPLIT_COUNT];
};

/* How far an encode got: what a state file says beside the settings. */
struct dpt_shards_progress {
    struct dpt_cut_position at;
    int64_t replaced; /* sequences of invalid UTF-8 */
    /* Of the inputs with the times of their last change: what is resumed must still be the same. */
    char inputs[DPT_HASH_HEX_BYTES];
};

/* Creates the folder if need be and takes it for this process: DPT_EREFUSED when another one
 * writes there. */
DPT_MUST_USE enum dpt_status dpt_shards_open(struct dpt_shards *shards, const char *dir,
                                             int64_t shard_tokens, int token_bytes,
                                             struct dpt_err *err);
void dpt_shards_close(struct dpt_shards *shards);

/* Goes on from the state in the folder, if there is one: *ret_found. DPT_EREFUSED when it is of
 * other settings or inputs (progress->inputs), when the folder is finished with other ones, or
 * holds shards of somebody else. *ret_done: it is finished with these. DPT_ECORRUPT
 * names a full shard that is not there any more, or not in its length. `settings` is a json_t
 * (borrowed). */
DPT_MUST_USE enum dpt_status dpt_shards_resume(struct dpt_shards *shards, const void *settings,
                                               struct dpt_shards_progress *progress,
                                               bool *ret_found, bool *ret_done,
                                               struct dpt_err *err);

/* Appends tokens, beginning new shards as they get full. */
DPT_MUST_USE enum dpt_status dpt_shards_append(struct dpt_shards *shards, enum dpt_split split,
                                               const uint32_t *ids, size_t n, struct dpt_err *err);

/* Is there a full shard that waits for its name? */
bool dpt_shards_want_save(const struct dpt_shards *shards);

DPT_MUST_USE enum dpt_status dpt_shards_save(struct dpt_shards *shards, const void *settings,
                                             const struct dpt_shards_progress *progress,
                                             struct dpt_err *err);

/* The end: the last shards get their headers and names, SHA256SUMS and dpt-data.json are written,
 * the state is removed. */
DPT_MUST_USE enum dpt_status dpt_shards_finish(struct dpt_shards *shards, const void *settings,
                                               const struct dpt_shards_progress *progress,
                                               struct dpt_err *err);

/* "train_000007.bin" */
void dpt_shards_name(enum dpt_split split, int index, char ret_name[DPT_SHARD_NAME_BYTES]);

#endif
