/* The shards of one split: their names, lengths and checksums. */
#ifndef DPT_WORKER_DATA_PREPARE_SHARD_LIST_H
#define DPT_WORKER_DATA_PREPARE_SHARD_LIST_H

#include "base/err.h"
#include "base/sha256.h"
#include "worker/data/prepare/inputs.h"

enum { DPT_SHARD_NAME_BYTES = 32, DPT_PREPARED_SHARDS_MAX = 65536 };

struct dpt_full_shard {
    int64_t tokens;
    char sha256[DPT_SHA256_HEX_BYTES];
};

struct dpt_shard_list {
    const char *split; /* "train" or "val" */
    int full;          /* shards of shard_tokens tokens; at the end the last shard too */
    int renamed;       /* of those, shards that have their final name */
    int64_t current;   /* tokens of the growing shard */
    int64_t tokens;    /* of all shards */
    int64_t documents;
    struct dpt_full_shard *shards; /* (full) */
    size_t room;
    int fd; /* of the growing shard; -1: none */
};

/* "train_000007.bin" */
void dpt_shard_list_name(const struct dpt_shard_list *list, int index,
                         char ret_name[DPT_SHARD_NAME_BYTES]);

/* Makes room for n shards. DPT_EOVERFLOW: n is beyond the limit. */
DPT_MUST_USE enum dpt_status dpt_shard_list_reserve(struct dpt_shard_list *list, int n,
                                                    struct dpt_err *err);
void dpt_shard_list_fini(struct dpt_shard_list *list);

#endif
