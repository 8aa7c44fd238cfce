/* One file of tokens: a .bin shard of llm.c (256 numbers of 32 bits: magic, version, number of
 * tokens, zeros; then the tokens), or a text whose bytes are the tokens. */
#include "worker/data/data_source.h"

#include "base/cursor.h"

enum { CHUNK_TOKENS = 16 << 10 };

const struct dpt_token_shard *dpt_token_shard_of(const struct dpt_data *data, int64_t index)
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

static enum dpt_status parse_header(struct dpt_token_shard *shard, const uint8_t *header,
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
        return dpt_fail(err, DPT_ECORRUPT,
                        "'%s' is no token shard: its magic number is %u, not %d (GPT-2) "
                        "or %d (Llama 3); set data.kind: text for plain text",
                        shard->file.path, magic, DPT_SHARD_MAGIC_GPT2, DPT_SHARD_MAGIC_LLAMA3);
    }
    if (version != expected)
        return dpt_fail(err, DPT_EVERSION, "token shard '%s' has version %u, version %u is read",
                        shard->file.path, version, expected);
    shard->at = DPT_SHARD_HEADER_BYTES;
    shard->tokens = tokens;
    const int64_t bytes = shard->at + shard->tokens * shard->width;
    if (tokens > INT32_MAX || shard->file.bytes != bytes)
        return dpt_fail(err, DPT_ECORRUPT,
                        "token shard '%s' is %s: its header says %u tokens, which is "
                        "%lld bytes, it has %lld; make or copy it again",
                        shard->file.path, shard->file.bytes < bytes ? "truncated" : "damaged",
                        tokens, (long long)bytes, (long long)shard->file.bytes);
    return DPT_OK;
}

enum dpt_status dpt_token_shard_probe(struct dpt_token_shard *shard, struct dpt_err *err)
{
    uint8_t header[DPT_SHARD_HEADER_BYTES] = {0};
    DPT_TRY(dpt_data_file_identify(&shard->file, err));
    if (shard->file.bytes < DPT_SHARD_HEADER_BYTES)
        return dpt_fail(err, DPT_ECORRUPT,
                        "'%s' is no token shard: it has %lld bytes, its header alone takes %d",
                        shard->file.path, (long long)shard->file.bytes, DPT_SHARD_HEADER_BYTES);
    DPT_TRY(dpt_data_file_read(&shard->file, 0, header, sizeof header, err));
    return parse_header(shard, header, err);
}

enum dpt_status dpt_token_shard_probe_text(struct dpt_token_shard *shard, struct dpt_err *err)
{
    DPT_TRY(dpt_data_file_identify(&shard->file, err));
    shard->width = 1;
    shard->tokens = shard->file.bytes;
    return DPT_OK;
}

static enum dpt_status read_tokens_of_file(const struct dpt_token_shard *shard, int64_t first,
                                           int64_t n, int32_t *ret, struct dpt_err *err)
{
    uint8_t chunk[CHUNK_TOKENS * 4];
    for (int64_t done = 0; done < n;) {
        const int64_t left = n - done;
        const int64_t count = left < CHUNK_TOKENS ? left : CHUNK_TOKENS;
        const size_t bytes = (size_t)(count * shard->width);
        DPT_TRY(dpt_data_file_read(&shard->file, shard->at + (first + done) * shard->width, chunk,
                                   bytes, err));
        struct dpt_reader reader;
        dpt_reader_init(&reader, chunk, bytes);
        for (int64_t i = 0; i < count; i++) {
            const uint32_t token = (uint32_t)dpt_reader_uint(&reader, (size_t)shard->width);
            if (token > INT32_MAX)
                return dpt_fail(err, DPT_ECORRUPT, "token %lld of '%s' is %u",
                                (long long)first + done + i, shard->file.path, token);
            ret[done + i] = (int32_t)token;
        }
        done += count;
    }
    return DPT_OK;
}

enum dpt_status dpt_token_shard_read(const struct dpt_token_shard *shard, int64_t first, int64_t n,
                                     int vocab, int32_t *ret, struct dpt_err *err)
{
    if (!shard->encoded)
        DPT_TRY(read_tokens_of_file(shard, first, n, ret, err));
    for (int64_t i = 0; i < n; i++) {
        if (shard->encoded)
            ret[i] = (int32_t)shard->encoded[first + i];
        if (ret[i] >= vocab)
            return dpt_fail(err, DPT_ECORRUPT, "token %lld of '%s' is %d, model.vocab is %d",
                            (long long)first + i, shard->file.path, ret[i], vocab);
    }
    return DPT_OK;
}
