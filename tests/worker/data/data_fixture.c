/* A folder of data files, and the config that reads them. */
#include "tests/worker/data/data_fixture.h"

#include "base/fs.h"
#include "tests/tmp.h"
#include "worker/data/tokenizer.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

char root[128];
struct dpt_err err;
struct dpt_config config;

int setup(void **state)
{
    (void)state;
    memset(&config, 0, sizeof config);
    config.seed = 42;
    config.model.vocab = 50257;
    config.train.seq_len = SEQ;
    config.train.micro_batch = 2;
    config.train.global_batch = 8;
    return test_make_dir(root, sizeof root, "data-test") ? 0 : -1;
}

int teardown(void **state)
{
    (void)state;
    return dpt_fs_remove_tree(root, NULL) == DPT_OK ? 0 : -1;
}

void use(enum dpt_data_kind kind, const char *name)
{
    config.data.kind = kind;
    (void)snprintf(config.data.train, sizeof config.data.train, "%s/%s", root, name);
}

void write_file(const char *name, const void *data, size_t bytes)
{
    char path[256];
    (void)snprintf(path, sizeof path, "%s/%s", root, name);
    assert_int_equal(dpt_fs_write_file_atomic(path, data, bytes, &err), DPT_OK);
}

void use_tiny(void)
{
    config.data.tokenizer = DPT_TOKENIZER_GPT2;
    (void)snprintf(config.data.vocab_bpe, sizeof config.data.vocab_bpe, DPT_RECORDED "/tiny.bpe");
    (void)snprintf(config.data.encoder_json, sizeof config.data.encoder_json,
                   DPT_RECORDED "/tiny.json");
    config.data.any_vocab = true;
}

void write_shard(const char *name, struct shard shard)
{
    static uint8_t file[65536];
    const size_t width = (size_t)shard.width, whole = 1024 + (size_t)shard.tokens * width;
    assert_true(whole <= sizeof file);
    memset(file, 0, sizeof file);
    memcpy(file, &shard.magic, 4);
    memcpy(file + 4, &shard.version, 4);
    memcpy(file + 8, &shard.tokens, 4);
    for (int32_t i = 0; i < shard.tokens; i++) {
        const uint32_t token = shard.first + (uint32_t)i;
        memcpy(file + 1024 + (size_t)i * width, &token, width);
    }
    write_file(name, file, shard.bytes < 0 ? whole : (size_t)shard.bytes);
}

struct dpt_data *open_data(void)
{
    struct dpt_data *data = NULL;
    if (dpt_data_open(&config, &data, &err) != DPT_OK)
        fail_msg("%s", err.text);
    return data;
}

enum dpt_status read_sample(const struct dpt_data *data, int64_t index, int32_t *ret_tokens,
                            int32_t *ret_targets)
{
    const struct dpt_batch one = {.part = {ret_tokens, ret_targets}};
    return dpt_data_read(data, index, 0, &one, 0, &err);
}

void expect_sample(const struct dpt_data *data, int64_t index, int32_t first)
{
    int32_t tokens[SEQ], targets[SEQ];
    if (read_sample(data, index, tokens, targets) != DPT_OK)
        fail_msg("%s", err.text);
    for (int i = 0; i < SEQ; i++) {
        assert_int_equal(tokens[i], first + i);
        assert_int_equal(targets[i], first + i + 1);
    }
}

/* One line that names the file (or the key) and the error. */
void expect_refusal(enum dpt_status status, const char *name, const char *why)
{
    struct dpt_data *data = NULL;
    assert_int_equal(dpt_data_open(&config, &data, &err), status);
    assert_null(data);
    if (!strstr(err.text, name) || !strstr(err.text, why) || strchr(err.text, '\n'))
        fail_msg("'%s' or '%s' is not in: %s", name, why, err.text);
    struct dpt_data_digest digest;
    assert_int_equal(dpt_data_digest(&config, &digest, &err), status);
}

/* Of all that the config uses. */
void make_digest(char ret_hex[DPT_HASH_HEX_BYTES])
{
    struct dpt_data_digest digest;
    assert_int_equal(dpt_data_digest(&config, &digest, &err), DPT_OK);
    memcpy(ret_hex, digest.used, DPT_HASH_HEX_BYTES);
}
