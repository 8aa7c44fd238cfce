/* One pass over a shard: the counts of its tokens, and its checksum. */
#ifndef DPT_WORKER_DATA_PREPARE_SCAN_H
#define DPT_WORKER_DATA_PREPARE_SCAN_H

#include "base/sha256.h"
#include "worker/data/data_source.h"

/* Tokens below this number are counted one by one. */
enum { DPT_SCAN_TOKENS = 1 << 18 };

struct dpt_scan {
    struct dpt_token_shard shard; /* its path is the caller's */
    int64_t *counts;              /* (DPT_SCAN_TOKENS), of tokens below that */
    uint32_t largest;
    int64_t largest_at; /* index of its first occurrence */
    char sha256[DPT_SHA256_HEX_BYTES];
};

/* Reads the whole file. DPT_ECORRUPT and DPT_EVERSION are those of dpt_data_open. */
DPT_MUST_USE enum dpt_status dpt_scan_shard(char *path, struct dpt_scan *ret, struct dpt_err *err);
void dpt_scan_fini(struct dpt_scan *scan);

#endif
