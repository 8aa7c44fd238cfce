/* The content hash of the training data: over the number of tokens and the bytes of each shard, in
 * order, in blocks, so that a copy elsewhere under another name has the same. */
#include "worker/data/source.h"

#include "base/cursor.h"
#include "base/fs.h"

#include <stdlib.h>
#include <unistd.h>

enum { BLOCK_BYTES = 1 << 20 };

/* h <- XXH3-128(h, a, b). */
static struct dpt_hash128 join(struct dpt_hash128 h, uint64_t a, uint64_t b)
{
    uint8_t joined[32];
    struct dpt_writer writer;
    dpt_writer_init(&writer, joined, sizeof joined);
    dpt_writer_u64(&writer, h.hi);
    dpt_writer_u64(&writer, h.lo);
    dpt_writer_u64(&writer, a);
    dpt_writer_u64(&writer, b);
    return dpt_hash128(joined, sizeof joined);
}

/* `n` bytes of the shard's tokens from byte `at` of them on. */
static enum dpt_status read_block(const struct dpt_token_shard *shard, int fd, int64_t at, size_t n,
                                  uint8_t *ret, struct dpt_err *err)
{
    if (!shard->encoded)
        return dpt_fs_pread_all(fd, ret, n, shard->at + at, shard->path, err);
    struct dpt_writer writer;
    dpt_writer_init(&writer, ret, n);
    for (size_t i = 0; i < n / 2; i++)
        dpt_writer_u16(&writer, shard->encoded[(size_t)at / 2 + i]);
    return DPT_OK;
}

static enum dpt_status add_shard(const struct dpt_token_shard *shard, uint8_t *block,
                                 struct dpt_hash128 *h, struct dpt_err *err)
{
    const int64_t bytes = shard->tokens * shard->width;
    int fd = -1;
    if (!shard->encoded)
        DPT_TRY(dpt_shard_open(shard, &fd, err));
    enum dpt_status status = DPT_OK;
    *h = join(*h, (uint64_t)shard->tokens, (uint64_t)shard->width);
    for (int64_t at = 0; status == DPT_OK && at < bytes; at += BLOCK_BYTES) {
        const size_t n = bytes - at < BLOCK_BYTES ? (size_t)(bytes - at) : BLOCK_BYTES;
        status = read_block(shard, fd, at, n, block, err);
        if (status == DPT_OK) {
            const struct dpt_hash128 of_block = dpt_hash128(block, n);
            *h = join(*h, of_block.hi, of_block.lo);
        }
    }
    if (fd >= 0)
        (void)close(fd); /* opened for reading */
    return status;
}

/* Takes the data. */
static enum dpt_status add_data(struct dpt_data *data, uint8_t *block, struct dpt_hash128 *h,
                                struct dpt_err *err)
{
    enum dpt_status status = DPT_OK;
    for (int i = 0; status == DPT_OK && i < data->n_shards; i++)
        status = add_shard(&data->shards[i], block, h, err);
    if (status != DPT_OK)
        (void)dpt_wrap(err, status, "%s", data->key);
    dpt_data_close(&data);
    return status;
}

enum dpt_status dpt_data_digest(const struct dpt_config *config, struct dpt_data_digest *ret,
                                struct dpt_err *err)
{
    struct dpt_data *data;
    struct dpt_hash128 h = {0, 0};
    struct dpt_data_digest digest = {.train = ""};
    uint8_t *block = malloc(BLOCK_BYTES);
    enum dpt_status status =
        block ? DPT_OK : dpt_fail(err, DPT_ENOMEM, "hash the data: out of memory");
    if (status == DPT_OK && !config->train.eval_only) {
        status = dpt_data_open(config, &data, err);
        if (status == DPT_OK)
            status = add_data(data, block, &h, err);
        dpt_hash128_hex(h, digest.train);
    }
    if (status == DPT_OK && dpt_config_evaluates(config)) {
        status = dpt_data_open_val(config, &data, err);
        if (status == DPT_OK)
            status = add_data(data, block, &h, err);
    }
    free(block);
    if (status != DPT_OK)
        return status;
    dpt_hash128_hex(h, digest.used);
    *ret = digest;
    return DPT_OK;
}
