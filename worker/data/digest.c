/* The content hash of the training data: over the number of tokens and the bytes of each shard, in
 * order, in blocks, so that a copy elsewhere under another name has the same. While every byte is
 * at hand, the largest token is found, so that data of another vocabulary is refused at the start.
 * Texts with labels have a hash of their own (labelled.h). */
#include "worker/data/source.h"

#include "base/cursor.h"
#include "base/fs.h"
#include "base/log.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCK_BYTES = 1 << 20, VOCAB_MAX = 1 << 24 /* base/config_table.c: model.vocab */ };
/* Reading that many bytes takes seconds. */
static const int64_t LONG_BYTES = (int64_t)2 << 30;
/* So does decoding that many images. */
static const int64_t MANY_IMAGES = 10000;

/* `n` bytes of the shard's tokens from byte `at` of them on. */
static enum dpt_status read_block(const struct dpt_token_shard *shard, int fd, int64_t at, size_t n,
                                  uint8_t *ret, struct dpt_err *err)
{
    if (!shard->encoded)
        return dpt_fs_pread_all(fd, ret, n, shard->at + at, shard->file.path, err);
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
static uint32_t largest_of(const uint8_t *block, size_t n, int width)
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

static void add_block(const struct dpt_token_shard *shard, const uint8_t *block, size_t n,
                      struct content *content)
{
    const struct dpt_hash128 of_block = dpt_hash128(block, n);
    const uint32_t largest = largest_of(block, n, shard->width);
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
    int fd = -1;
    if (!shard->encoded)
        DPT_TRY(dpt_data_file_open(&shard->file, &fd, err));
    enum dpt_status status = DPT_OK;
    content->hash = dpt_hash128_join(
        content->hash, (struct dpt_hash128){(uint64_t)shard->tokens, (uint64_t)shard->width});
    for (int64_t at = 0; status == DPT_OK && at < bytes; at += BLOCK_BYTES) {
        const size_t n = bytes - at < BLOCK_BYTES ? (size_t)(bytes - at) : BLOCK_BYTES;
        status = read_block(shard, fd, at, n, block, err);
        if (status == DPT_OK)
            add_block(shard, block, n, content);
    }
    if (fd >= 0)
        (void)close(fd); /* opened for reading */
    return status;
}

static void say_long(const struct dpt_data *data)
{
    int64_t bytes = 0;
    for (int i = 0; i < data->n_shards; i++)
        bytes += data->shards[i].encoded ? 0 : data->shards[i].tokens * data->shards[i].width;
    if (bytes >= LONG_BYTES)
        dpt_log(DPT_LOG_INFO, "%s: reading %.1f GB once, for the hash of its content", data->key,
                (double)bytes / 1e9);
}

static enum dpt_status hash_folder(const struct dpt_data *data, struct dpt_hash128 *ret,
                                   struct dpt_err *err)
{
    if (data->samples >= MANY_IMAGES)
        dpt_log(DPT_LOG_INFO, "%s: reading %lld images once, for the hash of their content",
                data->key, (long long)data->samples);
    const enum dpt_status status = dpt_image_folder_hash(data->folder, ret, err);
    return dpt_wrap(err, status, "%s", data->key);
}

static enum dpt_status read_content(const struct dpt_data *data, struct content *ret,
                                    struct dpt_err *err)
{
    struct content content = {.largest_in = NULL};
    if (data->labelled || data->folder) {
        const enum dpt_status status = data->labelled
                                           ? dpt_labelled_hash(data->labelled, &content.hash, err)
                                           : hash_folder(data, &content.hash, err);
        *ret = content;
        return status;
    }
    uint8_t *block = malloc(BLOCK_BYTES);
    if (!block)
        return dpt_fail_nomem(err, "hash the data");
    say_long(data);
    enum dpt_status status = DPT_OK;
    for (int i = 0; status == DPT_OK && i < data->n_shards; i++)
        status = add_shard(&data->shards[i], block, &content, err);
    free(block);
    *ret = content;
    return dpt_wrap(err, status, "%s", data->key);
}

static void make_stamp(const struct dpt_data *data, char ret[DPT_HASH_HEX_BYTES])
{
    struct dpt_hash128 h =
        data->folder ? dpt_image_folder_stamp(data->folder) : (struct dpt_hash128){0, 0};
    for (int i = 0; i < data->n_shards; i++) {
        const struct dpt_token_shard *shard = &data->shards[i];
        h = dpt_data_file_stamp(&shard->file, h);
    }
    dpt_hash128_hex(h, ret);
}

static enum dpt_status check_largest(const struct dpt_data *data, const struct content *content,
                                     struct dpt_err *err)
{
    const bool pixels = data->kind == DPT_DATA_CIFAR10 || data->kind == DPT_DATA_IMAGES;
    if (pixels || content->largest < (uint32_t)data->vocab) /* bytes of pixels are no tokens */
        return DPT_OK;
    if (content->largest >= VOCAB_MAX)
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
    struct dpt_hash128 classes; /* of the folder that was read first */
    bool has_classes;
};

/* The order of the sub-folders' names numbers the classes. */
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

/* Takes the data. */
static enum dpt_status identify(struct dpt_data *data, struct dpt_data_identity *ret,
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
        make_stamp(data, ret->stamp);
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
        DPT_TRY(identify(data, &digest.train, &digesting, err));
    }
    if (dpt_config_evaluates(config)) {
        DPT_TRY(dpt_data_open_val(config, &data, err));
        DPT_TRY(identify(data, &digest.val, &digesting, err));
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
    make_stamp(data, stamp);
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
