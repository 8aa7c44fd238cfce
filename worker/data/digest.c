/* The content hash of the data: over the number of tokens and the bytes of each shard, in order, in
 * blocks. A copy in another place has the same hash. The same pass finds the largest token, so that
 * data of another vocabulary is refused at the start. Tables and folders of images have other
 * hashes (labelled.h, image_folder.h). */
#include "worker/data/data_source.h"

#include "base/cursor.h"
#include "base/log.h"

#include <stdlib.h>
#include <string.h>

enum { BLOCK_BYTES = 1 << 20, MANY_IMAGES = 10000 /* decoding them takes seconds */ };
/* Reading this many bytes takes seconds. */
static const int64_t LONG_BYTES = (int64_t)2 << 30;

/* Reads `n` bytes of the shard's tokens, from byte `at` of the tokens on. */
static enum dpt_status read_block(const struct dpt_token_shard *shard, int64_t at, size_t n,
                                  uint8_t *ret, struct dpt_err *err)
{
    if (!shard->encoded)
        return dpt_data_file_read(&shard->file, shard->at + at, ret, n, err);
    struct dpt_writer writer;
    dpt_writer_init(&writer, ret, n);
    const size_t width = (size_t)shard->width, first = (size_t)at / width;
    for (size_t i = first; i < first + n / width; i++)
        dpt_writer_uint(&writer, shard->encoded[i], width);
    return DPT_OK;
}

struct content {
    struct dpt_hash128 hash;
    uint32_t largest;       /* token */
    const char *largest_in; /* the first shard that has it; borrowed from the data */
};

/* The largest of the little-endian numbers of `width` bytes that the `n` bytes hold. */
static uint32_t largest_token(const uint8_t *block, size_t n, int width)
{
    uint32_t largest = 0;
    for (size_t i = 0; width == 1 && i < n; i++)
        largest = block[i] > largest ? block[i] : largest;
    for (size_t i = 0; width == 2 && i + 1 < n; i += 2) {
        const uint32_t token = block[i] | (uint32_t)block[i + 1] << 8;
        largest = token > largest ? token : largest;
    }
    for (size_t i = 0; width == 4 && i + 3 < n; i += 4) {
        const uint32_t token = block[i] | (uint32_t)block[i + 1] << 8 |
                               (uint32_t)block[i + 2] << 16 | (uint32_t)block[i + 3] << 24;
        largest = token > largest ? token : largest;
    }
    return largest;
}

static void digest_add_block(const struct dpt_token_shard *shard, const uint8_t *block, size_t n,
                             struct content *content)
{
    const struct dpt_hash128 of_block = dpt_hash128(block, n);
    const uint32_t largest = largest_token(block, n, shard->width);
    content->hash = dpt_hash128_join(content->hash, of_block);
    if (!content->largest_in || largest > content->largest) {
        content->largest = largest;
        content->largest_in = shard->file.path;
    }
}

static enum dpt_status add_shard(const struct dpt_token_shard *shard, uint8_t *block,
                                 struct content *content, struct dpt_err *err)
{
    const int64_t bytes = shard->tokens * shard->width;
    content->hash = dpt_hash128_join(
        content->hash, (struct dpt_hash128){(uint64_t)shard->tokens, (uint64_t)shard->width});
    for (int64_t at = 0; at < bytes; at += BLOCK_BYTES) {
        const size_t n = bytes - at < BLOCK_BYTES ? (size_t)(bytes - at) : BLOCK_BYTES;
        DPT_TRY(read_block(shard, at, n, block, err));
        digest_add_block(shard, block, n, content);
    }
    return DPT_OK;
}

static void log_long_read(const struct dpt_data *data)
{
    int64_t bytes = 0;
    for (int i = 0; i < data->n_shards; i++)
        bytes += data->shards[i].encoded ? 0 : data->shards[i].tokens * data->shards[i].width;
    if (bytes >= LONG_BYTES)
        dpt_log(DPT_LOG_INFO, "%s: reading %.1f GB once, for the hash of its content", data->key,
                (double)bytes / 1e9);
}

static enum dpt_status add_shards(const struct dpt_data *data, struct content *content,
                                  struct dpt_err *err)
{
    uint8_t *block = malloc(BLOCK_BYTES);
    if (!block)
        return dpt_fail_nomem(err, "hash the data");
    log_long_read(data);
    enum dpt_status status = DPT_OK;
    for (int i = 0; status == DPT_OK && i < data->n_shards; i++)
        status = add_shard(&data->shards[i], block, content, err);
    free(block);
    return status;
}

static enum dpt_status read_content(const struct dpt_data *data, struct content *ret,
                                    struct dpt_err *err)
{
    struct content content = {.largest_in = NULL};
    if (data->folder && data->samples >= MANY_IMAGES)
        dpt_log(DPT_LOG_INFO, "%s: reading %lld images once, for the hash of their content",
                data->key, (long long)data->samples);
    const enum dpt_status status =
        data->labelled ? dpt_labelled_hash(data->labelled, &content.hash, err)
        : data->folder ? dpt_image_folder_hash(data->folder, &content.hash, err)
                       : add_shards(data, &content, err);
    *ret = content;
    return dpt_wrap(err, status, "%s", data->key);
}

static void stamp_files(const struct dpt_data *data, char ret[DPT_HASH_HEX_BYTES])
{
    struct dpt_hash128 h =
        data->folder ? dpt_image_folder_stamp(data->folder) : (struct dpt_hash128){0, 0};
    for (int i = 0; i < data->n_shards; i++)
        h = dpt_data_file_stamp(&data->shards[i].file, h);
    dpt_hash128_hex(h, ret);
}

static enum dpt_status check_largest(const struct dpt_data *data, const struct content *content,
                                     struct dpt_err *err)
{
    const bool pixels = data->kind == DPT_DATA_CIFAR10 || data->kind == DPT_DATA_IMAGES;
    if (pixels || content->largest < (uint32_t)data->vocab)
        return DPT_OK;
    if (content->largest >= DPT_VOCAB_TOKENS_MAX)
        return dpt_fail(err, DPT_ECONFIG,
                        "%s: '%s' has token %u, beyond every vocabulary; make the shard again, or "
                        "name other data",
                        data->key, content->largest_in, content->largest);
    return dpt_fail(err, DPT_ECONFIG,
                    "%s: '%s' has token %u, model.vocab is %d; set model.vocab: %u, or name data "
                    "of this vocabulary",
                    data->key, content->largest_in, content->largest, data->vocab,
                    content->largest + 1);
}

struct digesting {
    struct dpt_hash128 used;    /* so far */
    struct dpt_hash128 classes; /* of the first folder */
    bool has_classes;
};

/* data.train and data.val must have the same classes: the order of the sub-folders' names numbers
 * them. */
static enum dpt_status check_classes(const struct dpt_data *data, struct digesting *digesting,
                                     struct dpt_err *err)
{
    const struct dpt_hash128 here = data->folder->classes, there = digesting->classes;
    if (digesting->has_classes && (here.hi != there.hi || here.lo != there.lo))
        return dpt_fail(err, DPT_ECONFIG,
                        "data.train and data.val have sub-folders of other names, which number the "
                        "classes; give both the same");
    digesting->classes = here;
    digesting->has_classes = true;
    return DPT_OK;
}

/* Hashes the content of the data, and closes the data. */
static enum dpt_status identify_data(struct dpt_data *data, struct dpt_data_identity *ret,
                                     struct digesting *digesting, struct dpt_err *err)
{
    struct content content;
    enum dpt_status status = data->folder ? check_classes(data, digesting, err) : DPT_OK;
    if (status == DPT_OK)
        status = read_content(data, &content, err);
    if (status == DPT_OK)
        status = check_largest(data, &content, err);
    if (status == DPT_OK) {
        dpt_hash128_hex(content.hash, ret->hash);
        stamp_files(data, ret->stamp);
        digesting->used = dpt_hash128_join(digesting->used, content.hash);
    }
    dpt_data_close(&data);
    return status;
}

enum dpt_status dpt_data_digest(const struct dpt_config *config, struct dpt_data_digest *ret,
                                struct dpt_err *err)
{
    struct dpt_data *data;
    struct digesting digesting = {.has_classes = false};
    struct dpt_data_digest digest = {.used = ""};
    if (!config->train.eval_only) {
        DPT_TRY(dpt_data_open(config, &data, err));
        digest.train_samples = dpt_data_samples(data);
        DPT_TRY(identify_data(data, &digest.train, &digesting, err));
    }
    if (dpt_config_evaluates(config)) {
        DPT_TRY(dpt_data_open_val(config, &data, err));
        DPT_TRY(identify_data(data, &digest.val, &digesting, err));
    }
    dpt_hash128_hex(digesting.used, digest.used);
    *ret = digest;
    return DPT_OK;
}

enum dpt_status dpt_data_check(const struct dpt_data *data, const struct dpt_data_identity *was,
                               struct dpt_err *err)
{
    char stamp[DPT_HASH_HEX_BYTES], hash[DPT_HASH_HEX_BYTES];
    struct content content;
    stamp_files(data, stamp);
    if (!was->hash[0] || strcmp(stamp, was->stamp) == 0)
        return DPT_OK;
    DPT_TRY(read_content(data, &content, err));
    dpt_hash128_hex(content.hash, hash);
    if (strcmp(hash, was->hash) == 0)
        return DPT_OK;
    return dpt_fail(err, DPT_ECORRUPT,
                    "%s was changed since this worker began: '%s'%s not what the run trains on; "
                    "put the former file back and start this worker again",
                    data->key, data->folder ? data->folder->path : data->shards[0].file.path,
                    data->n_shards > 1 ? " and those beside it are" : " is");
}
