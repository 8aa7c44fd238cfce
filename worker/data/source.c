/* Token sources: text files as bytes, and the .bin shards of llm.c (256 numbers of 32 bits: magic,
 * version, number of tokens, zeros; then the tokens). */
#include "worker/data/source.h"

#include "base/cursor.h"
#include "base/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BYTE_VOCAB = 256, CHUNK_TOKENS = 2048 };

static int open_for_reading(const char *path)
{
    return open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
}

/* Opens `shard->path` the first time and notes which file it is. */
static enum dpt_status open_first(struct dpt_shard *shard, int *ret_fd, struct dpt_err *err)
{
    struct stat st;
    int fd = open_for_reading(shard->path);
    if (fd < 0)
        return dpt_fail_errno(err, errno, "data.train: open '%s'", shard->path);
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        (void)close(fd);
        return dpt_fail(err, DPT_EIO, "data.train: '%s' is no regular file", shard->path);
    }
    shard->file_bytes = st.st_size;
    shard->device = st.st_dev;
    shard->inode = st.st_ino;
    shard->changed_s = st.st_mtim.tv_sec;
    shard->changed_ns = st.st_mtim.tv_nsec;
    *ret_fd = fd;
    return DPT_OK;
}

enum dpt_status dpt_shard_open(const struct dpt_shard *shard, int *ret_fd, struct dpt_err *err)
{
    struct stat st;
    int fd = open_for_reading(shard->path);
    if (fd < 0)
        return dpt_fail_errno(err, errno, "data.train: open '%s'", shard->path);
    if (fstat(fd, &st) != 0 || st.st_size != shard->file_bytes || st.st_dev != shard->device ||
        st.st_ino != shard->inode || st.st_mtim.tv_sec != shard->changed_s ||
        st.st_mtim.tv_nsec != shard->changed_ns) {
        (void)close(fd);
        return dpt_fail(err, DPT_ECORRUPT,
                        "data.train: '%s' was changed while the run reads it; put the former file "
                        "back and start again",
                        shard->path);
    }
    *ret_fd = fd;
    return DPT_OK;
}

static enum dpt_status parse_header(struct dpt_shard *shard, const uint8_t *header,
                                    struct dpt_err *err)
{
    struct dpt_reader reader;
    dpt_reader_init(&reader, header, DPT_SHARD_HEADER_BYTES);
    const uint32_t magic = dpt_reader_u32(&reader), version = dpt_reader_u32(&reader),
                   tokens = dpt_reader_u32(&reader);
    uint32_t expected;
    if (magic == DPT_SHARD_MAGIC_GPT2) {
        shard->width = 2;
        expected = DPT_SHARD_VERSION_GPT2;
    } else if (magic == DPT_SHARD_MAGIC_LLAMA3) {
        shard->width = 4;
        expected = DPT_SHARD_VERSION_LLAMA3;
    } else {
        return dpt_fail(
            err, DPT_ECORRUPT,
            "data.train: '%s' is no token shard: its magic number is %u, not %d (GPT-2) "
            "or %d (Llama 3); set data.kind: text for plain text",
            shard->path, magic, DPT_SHARD_MAGIC_GPT2, DPT_SHARD_MAGIC_LLAMA3);
    }
    if (version != expected)
        return dpt_fail(err, DPT_EVERSION,
                        "data.train: token shard '%s' has version %u, version %u is read",
                        shard->path, version, expected);
    shard->at = DPT_SHARD_HEADER_BYTES;
    shard->tokens = tokens;
    const int64_t bytes = shard->at + shard->tokens * shard->width;
    if (tokens > INT32_MAX || shard->file_bytes != bytes)
        return dpt_fail(err, DPT_ECORRUPT,
                        "data.train: token shard '%s' is %s: its header says %u tokens, which is "
                        "%lld bytes, it has %lld; make or copy it again",
                        shard->path, shard->file_bytes < bytes ? "truncated" : "damaged", tokens,
                        (long long)bytes, (long long)shard->file_bytes);
    return DPT_OK;
}

static enum dpt_status open_tokens(struct dpt_shard *shard, struct dpt_err *err)
{
    uint8_t header[DPT_SHARD_HEADER_BYTES] = {0};
    int fd = -1;
    DPT_TRY(open_first(shard, &fd, err));
    enum dpt_status status =
        shard->file_bytes < DPT_SHARD_HEADER_BYTES
            ? dpt_fail(err, DPT_ECORRUPT,
                       "data.train: '%s' is no token shard: it has %lld bytes, its header alone "
                       "takes %d",
                       shard->path, (long long)shard->file_bytes, DPT_SHARD_HEADER_BYTES)
            : dpt_fs_pread_all(fd, header, sizeof header, 0, shard->path, err);
    (void)close(fd); /* opened for reading */
    return status == DPT_OK ? parse_header(shard, header, err) : status;
}

static enum dpt_status open_text(struct dpt_shard *shard, struct dpt_err *err)
{
    int fd = -1;
    DPT_TRY(open_first(shard, &fd, err));
    (void)close(fd); /* opened for reading */
    shard->width = 1;
    shard->tokens = shard->file_bytes;
    return DPT_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct dpt_shard *)a)->path, ((const struct dpt_shard *)b)->path);
}

static enum dpt_status no_memory(struct dpt_err *err)
{
    return dpt_fail(err, DPT_ENOMEM, "data.train: out of memory");
}

static enum dpt_status list_paths(const char *const *paths, size_t n, struct dpt_data *data,
                                  struct dpt_err *err)
{
    if (n > DPT_SHARDS_MAX)
        return dpt_fail(err, DPT_EOVERFLOW, "data.train: %zu files match, %d at most are read", n,
                        DPT_SHARDS_MAX);
    data->shards = calloc(n, sizeof *data->shards);
    if (!data->shards)
        return no_memory(err);
    for (size_t i = 0; i < n; i++) {
        data->shards[i].path = strdup(paths[i]);
        data->n_shards = (int)i + 1;
        if (!data->shards[i].path)
            return no_memory(err);
    }
    qsort(data->shards, n, sizeof *data->shards, by_name);
    return DPT_OK;
}

static enum dpt_status list_shards(const char *pattern, struct dpt_data *data, struct dpt_err *err)
{
    glob_t found = {0};
    enum dpt_status status;
    /* Sorted by us: glob's order is the locale's. */
    switch (glob(pattern, GLOB_NOSORT | GLOB_ERR, NULL, &found)) {
    case 0:
        status = list_paths((const char *const *)found.gl_pathv, found.gl_pathc, data, err);
        break;
    case GLOB_NOMATCH:
        status = dpt_fail(err, DPT_ENOENT, "data.train: no file matches '%s'", pattern);
        break;
    case GLOB_NOSPACE:
        status = no_memory(err);
        break;
    default:
        status = dpt_fail(err, DPT_EIO, "data.train: a folder of '%s' cannot be read", pattern);
    }
    globfree(&found);
    return status;
}

/* Opens each shard and counts its samples. */
static enum dpt_status open_shards(const struct dpt_config *config, struct dpt_data *data,
                                   struct dpt_err *err)
{
    for (int i = 0; i < data->n_shards; i++) {
        struct dpt_shard *shard = &data->shards[i];
        DPT_TRY(config->data.kind == DPT_DATA_TEXT ? open_text(shard, err)
                                                   : open_tokens(shard, err));
        if (shard->width != data->shards[0].width)
            return dpt_fail(err, DPT_ECONFIG,
                            "data.train: '%s' and '%s' are token shards of different kinds; name "
                            "one kind",
                            data->shards[0].path, shard->path);
        shard->first_sample = data->samples;
        shard->n_samples = shard->tokens > 0 ? (shard->tokens - 1) / data->seq_len : 0;
        data->samples += shard->n_samples;
        data->tokens += shard->tokens;
    }
    return DPT_OK;
}

static enum dpt_status check_config(const struct dpt_config *config, struct dpt_err *err)
{
    if (!config->data.train[0])
        return dpt_fail(err, DPT_ECONFIG, "data.train is empty: name a text file or token shards");
    if (config->train.seq_len < 1)
        return dpt_fail(err, DPT_ECONFIG, "train.seq_len must be 1 at least");
    if (config->data.kind == DPT_DATA_TEXT && config->data.tokenizer != DPT_TOKENIZER_BYTES)
        return dpt_fail(err, DPT_EUNSUPPORTED,
                        "data.tokenizer: only bytes is read from text; make token shards or set "
                        "data.tokenizer: bytes");
    if (config->data.kind == DPT_DATA_TEXT && config->model.vocab < BYTE_VOCAB)
        return dpt_fail(err, DPT_ECONFIG,
                        "model.vocab is %d, the tokens of a text's bytes need %d at least; set "
                        "model.vocab: %d",
                        config->model.vocab, BYTE_VOCAB, BYTE_VOCAB);
    return DPT_OK;
}

enum dpt_status dpt_data_open(const struct dpt_config *config, struct dpt_data **ret,
                              struct dpt_err *err)
{
    DPT_TRY(check_config(config, err));
    struct dpt_data *data = calloc(1, sizeof *data);
    if (!data)
        return no_memory(err);
    data->seq_len = config->train.seq_len;
    data->vocab = config->model.vocab;
    const char *path = config->data.train;
    enum dpt_status status = config->data.kind == DPT_DATA_TEXT ? list_paths(&path, 1, data, err)
                                                                : list_shards(path, data, err);
    if (status == DPT_OK)
        status = open_shards(config, data, err);
    if (status == DPT_OK && data->samples == 0)
        status = dpt_fail(err, DPT_ECONFIG,
                          "data.train: '%s' has %lld tokens, one sample needs train.seq_len + 1 = "
                          "%lld in one file; give more data or set a smaller train.seq_len",
                          path, (long long)data->tokens, (long long)data->seq_len + 1);
    if (status != DPT_OK)
        dpt_data_close(&data);
    else
        *ret = data;
    return status;
}

void dpt_data_close(struct dpt_data **data)
{
    if (!*data)
        return;
    for (int i = 0; i < (*data)->n_shards; i++)
        free((*data)->shards[i].path);
    free((*data)->shards);
    free(*data);
    *data = NULL;
}

int64_t dpt_data_samples(const struct dpt_data *data)
{
    return data->samples;
}

int64_t dpt_data_tokens(const struct dpt_data *data)
{
    return data->tokens;
}

/* The shard that holds sample `index`: the last one that starts at or before it (one without
 * samples starts where the next one does, so it is never the last). */
static const struct dpt_shard *shard_of(const struct dpt_data *data, int64_t index)
{
    int low = 0, high = data->n_shards - 1;
    while (low < high) {
        const int middle = low + (high - low + 1) / 2;
        if (data->shards[middle].first_sample <= index)
            low = middle;
        else
            high = middle - 1;
    }
    return &data->shards[low];
}

/* `n` tokens from token `first` of the shard on. */
static enum dpt_status read_tokens(const struct dpt_shard *shard, int fd, int64_t first, int64_t n,
                                   int vocab, int32_t *ret, struct dpt_err *err)
{
    uint8_t chunk[CHUNK_TOKENS * 4];
    for (int64_t done = 0; done < n;) {
        const int64_t left = n - done;
        const int64_t count = left < CHUNK_TOKENS ? left : CHUNK_TOKENS;
        const size_t bytes = (size_t)(count * shard->width);
        DPT_TRY(dpt_fs_pread_all(fd, chunk, bytes, shard->at + (first + done) * shard->width,
                                 shard->path, err));
        struct dpt_reader reader;
        dpt_reader_init(&reader, chunk, bytes);
        for (int64_t i = 0; i < count; i++) {
            const uint32_t token = shard->width == 1   ? dpt_reader_u8(&reader)
                                   : shard->width == 2 ? dpt_reader_u16(&reader)
                                                       : dpt_reader_u32(&reader);
            if (token >= (uint32_t)vocab)
                return dpt_fail(err, DPT_ECORRUPT,
                                "data.train: token %lld of '%s' is %u, model.vocab is %d",
                                (long long)first + done + i, shard->path, token, vocab);
            ret[done + i] = (int32_t)token;
        }
        done += count;
    }
    return DPT_OK;
}

enum dpt_status dpt_data_read(const struct dpt_data *data, int64_t index, int32_t *ret_tokens,
                              int32_t *ret_targets, struct dpt_err *err)
{
    if (index < 0 || index >= data->samples)
        return dpt_fail(err, DPT_EINVAL, "sample %lld of %lld", (long long)index,
                        (long long)data->samples);
    const struct dpt_shard *shard = shard_of(data, index);
    const int64_t n = data->seq_len, first = (index - shard->first_sample) * n;
    int32_t last = 0;
    int fd = -1;
    DPT_TRY(dpt_shard_open(shard, &fd, err));
    enum dpt_status status = read_tokens(shard, fd, first, n, data->vocab, ret_tokens, err);
    if (status == DPT_OK)
        status = read_tokens(shard, fd, first + n, 1, data->vocab, &last, err);
    (void)close(fd); /* opened for reading */
    if (status != DPT_OK)
        return status;
    memcpy(ret_targets, ret_tokens + 1, (size_t)(n - 1) * sizeof *ret_targets);
    ret_targets[n - 1] = last;
    return DPT_OK;
}
