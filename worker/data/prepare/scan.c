/* Reading a shard from end to end. */
#include "worker/data/prepare/scan.h"

#include "base/cursor.h"

#include <stdlib.h>

enum { BLOCK_BYTES = 1 << 20 };

void dpt_scan_fini(struct dpt_scan *scan)
{
    free(scan->counts);
    scan->counts = NULL;
}

static void count_tokens(struct dpt_scan *scan, const uint8_t *block, size_t bytes, int64_t first)
{
    struct dpt_reader reader;
    dpt_reader_init(&reader, block, bytes);
    for (int64_t i = first; dpt_reader_left(&reader) > 0; i++) {
        const uint32_t token = (uint32_t)dpt_reader_uint(&reader, (size_t)scan->shard.width);
        if (token < DPT_SCAN_TOKENS)
            scan->counts[token]++;
        if (token > scan->largest || i == 0) {
            scan->largest = token;
            scan->largest_at = i;
        }
    }
}

static enum dpt_status scan_read_all(struct dpt_scan *scan, uint8_t *block, struct dpt_err *err)
{
    struct dpt_sha256 sha;
    const struct dpt_token_shard *shard = &scan->shard;
    dpt_sha256_init(&sha);
    DPT_TRY(dpt_data_file_read(&shard->file, 0, block, DPT_SHARD_HEADER_BYTES, err));
    dpt_sha256_add(&sha, block, DPT_SHARD_HEADER_BYTES);
    const int64_t bytes = shard->tokens * shard->width;
    for (int64_t at = 0; at < bytes; at += BLOCK_BYTES) {
        const size_t n = bytes - at < BLOCK_BYTES ? (size_t)(bytes - at) : BLOCK_BYTES;
        DPT_TRY(dpt_data_file_read(&shard->file, shard->at + at, block, n, err));
        dpt_sha256_add(&sha, block, n);
        count_tokens(scan, block, n, at / shard->width);
    }
    dpt_sha256_hex(&sha, scan->sha256);
    return DPT_OK;
}

enum dpt_status dpt_scan_shard(char *path, struct dpt_scan *ret, struct dpt_err *err)
{
    struct dpt_scan scan = {.shard.file.path = path};
    DPT_TRY(dpt_token_shard_probe(&scan.shard, err));
    uint8_t *block = malloc(BLOCK_BYTES);
    scan.counts = calloc(DPT_SCAN_TOKENS, sizeof *scan.counts);
    enum dpt_status status = block && scan.counts ? scan_read_all(&scan, block, err)
                                                  : dpt_fail_nomem(err, "read '%s'", path);
    free(block);
    if (status != DPT_OK)
        dpt_scan_fini(&scan);
    else
        *ret = scan;
    return status;
}
