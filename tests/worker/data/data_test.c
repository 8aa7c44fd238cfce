/* Token sources: the content of a sample, both kinds of shards, the digest, and bad input. */
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

static void text_is_bytes(void **state)
{
    (void)state;
    char text[3 * SEQ + 1]; /* three samples exactly */
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)(200 + i);
    write_file("t.txt", text, sizeof text);
    use(DPT_DATA_TEXT, "t.txt");
    struct dpt_data *data = open_data();
    assert_int_equal(dpt_data_samples(data), 3);
    expect_sample(data, 0, 200);
    expect_sample(data, 2, 200 + 2 * SEQ);
    int32_t tokens[SEQ], targets[SEQ];
    assert_int_equal(read_sample(data, 3, tokens, targets), DPT_EINVAL);
    assert_int_equal(read_sample(data, -1, tokens, targets), DPT_EINVAL);
    dpt_data_close(&data);
    assert_null(data);
    write_file("t.txt", text, sizeof text - 1); /* one byte less, one sample less */
    data = open_data();
    assert_int_equal(dpt_data_samples(data), 2);
    dpt_data_close(&data);
}

/* Samples do not cross shards; shards too short for one give none; bytewise order of names. */
static void shards_of_16_bits(void **state)
{
    (void)state;
    write_shard("s_10.bin", (struct shard){MAGIC16, 1, 2 * SEQ + 3, 2, 10000, -1});
    write_shard("s_1.bin", (struct shard){MAGIC16, 1, SEQ, 2, 1, -1});
    write_shard("s_2.bin", (struct shard){MAGIC16, 1, SEQ + 1, 2, 20000, -1});
    write_shard("s_3.bin", (struct shard){MAGIC16, 1, 0, 2, 0, -1});
    write_shard("s_A.bin", (struct shard){MAGIC16, 1, 3 * SEQ, 2, 30000, -1});
    write_shard("other.bin", (struct shard){1, 1, 5, 2, 0, -1});
    use(DPT_DATA_TOKENS, "s_*.bin");
    struct dpt_data *data = open_data();
    assert_int_equal(dpt_data_samples(data), 5);
    expect_sample(data, 0, 10000); /* s_1 has none; s_10 is next bytewise */
    expect_sample(data, 1, 10000 + SEQ);
    expect_sample(data, 2, 20000);
    expect_sample(data, 3, 30000);
    expect_sample(data, 4, 30000 + SEQ);
    dpt_data_close(&data);
}

static void shards_of_32_bits(void **state)
{
    (void)state;
    config.model.vocab = 128256;
    write_shard("l.bin", (struct shard){MAGIC32, 7, 2 * SEQ + 1, 4, 100000, -1});
    use(DPT_DATA_TOKENS, "l.bin");
    struct dpt_data *data = open_data();
    assert_int_equal(dpt_data_samples(data), 2);
    expect_sample(data, 1, 100000 + SEQ);
    dpt_data_close(&data);
}

static void long_samples(void **state)
{
    (void)state;
    static uint8_t text[9001];
    static int32_t tokens[9000], targets[9000];
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (uint8_t)(i * i >> 3);
    write_file("t.txt", text, sizeof text);
    use(DPT_DATA_TEXT, "t.txt");
    config.train.seq_len = 9000;
    struct dpt_data *data = open_data();
    assert_int_equal(read_sample(data, 0, tokens, targets), DPT_OK);
    for (int i = 0; i < 9000; i++) {
        assert_int_equal(tokens[i], text[i]);
        assert_int_equal(targets[i], text[i + 1]);
    }
    dpt_data_close(&data);
}

static void bad_shards(void **state)
{
    (void)state;
    use(DPT_DATA_TOKENS, "b.bin");
    write_shard("b.bin", (struct shard){7, 1, 100, 2, 0, -1});
    expect_refusal(DPT_ECORRUPT, "/b.bin'", "its magic number is 7");
    write_shard("b.bin", (struct shard){MAGIC16, 2, 100, 2, 0, -1});
    expect_refusal(DPT_EVERSION, "/b.bin'", "has version 2, version 1 is read");
    write_shard("b.bin", (struct shard){MAGIC32, 1, 100, 4, 0, -1});
    expect_refusal(DPT_EVERSION, "/b.bin'", "has version 1, version 7 is read");
    write_shard("b.bin", (struct shard){MAGIC16, 1, 100, 2, 0, 1024 + 199});
    expect_refusal(DPT_ECORRUPT, "/b.bin' is truncated", "which is 1224 bytes, it has 1223");
    write_shard("b.bin", (struct shard){MAGIC16, 1, 100, 2, 0, 1024});
    expect_refusal(DPT_ECORRUPT, "/b.bin' is truncated", "it has 1024");
    write_shard("b.bin", (struct shard){MAGIC16, 1, 100, 2, 0, 1023});
    expect_refusal(DPT_ECORRUPT, "/b.bin'", "it has 1023 bytes, its header alone takes 1024");
    write_shard("b.bin", (struct shard){MAGIC16, 1, 100, 2, 0, 0});
    expect_refusal(DPT_ECORRUPT, "/b.bin'", "it has 0 bytes");
    write_shard("b.bin", (struct shard){MAGIC16, 1, 100, 2, 0, 1024 + 201});
    expect_refusal(DPT_ECORRUPT, "/b.bin' is damaged", "it has 1225");
    write_shard("b.bin", (struct shard){MAGIC16, 1, -5, 2, 0, 2000});
    expect_refusal(DPT_ECORRUPT, "/b.bin'", "4294967291 tokens");
    write_shard("b.bin", (struct shard){MAGIC16, 1, 0, 2, 0, -1});
    expect_refusal(DPT_ECONFIG, "/b.bin'", "has 0 tokens, one sample needs train.seq_len + 1 = 9");
    write_shard("b.bin", (struct shard){MAGIC16, 1, SEQ, 2, 0, -1});
    expect_refusal(DPT_ECONFIG, "/b.bin'", "has 8 tokens");
}

static void bad_paths(void **state)
{
    (void)state;
    char folder[160];
    use(DPT_DATA_TOKENS, "none_*.bin");
    expect_refusal(DPT_ENOENT, "/none_*.bin'", "no file matches");
    use(DPT_DATA_TOKENS, "none.bin");
    expect_refusal(DPT_ENOENT, "/none.bin'", "no file matches");
    use(DPT_DATA_TEXT, "none.txt");
    expect_refusal(DPT_ENOENT, "/none.txt'", "No such file or directory");
    (void)snprintf(folder, sizeof folder, "%s/folder", root);
    assert_int_equal(mkdir(folder, 0777), 0);
    use(DPT_DATA_TEXT, "folder");
    expect_refusal(DPT_EIO, "/folder'", "no regular file");
    (void)snprintf(folder, sizeof folder, "%s/pipe", root);
    assert_int_equal(mkfifo(folder, 0666), 0);
    use(DPT_DATA_TOKENS, "pip?");
    expect_refusal(DPT_EIO, "/pipe'", "no regular file");
    write_file("empty.txt", "", 0);
    use(DPT_DATA_TEXT, "empty.txt");
    expect_refusal(DPT_ECONFIG, "/empty.txt'", "has 0 tokens");
    config.data.train[0] = '\0';
    expect_refusal(DPT_ECONFIG, "data.train", "is empty");
}

static void bad_combinations(void **state)
{
    (void)state;
    write_shard("m_1.bin", (struct shard){MAGIC16, 1, 100, 2, 0, -1});
    write_shard("m_2.bin", (struct shard){MAGIC32, 7, 100, 4, 0, -1});
    use(DPT_DATA_TOKENS, "m_*.bin");
    expect_refusal(DPT_ECONFIG, "/m_2.bin'", "different kinds");
    write_file("t.txt", "some text that is long enough", 29);
    use(DPT_DATA_TEXT, "t.txt");
    config.model.vocab = 255;
    expect_refusal(DPT_ECONFIG, "model.vocab is 255", "set model.vocab: 256");
    config.model.vocab = 256;
    config.data.tokenizer = DPT_TOKENIZER_GPT2;
    expect_refusal(DPT_ECONFIG, "data.vocab_bpe: tokenizer gpt2", "needs the path of OpenAI's");
    use_tiny();
    expect_refusal(DPT_ECONFIG, "model.vocab is 256", "set model.vocab: 657");
    config.model.vocab = 657;
    config.data.any_vocab = false;
    expect_refusal(DPT_ECONFIG, "data.vocab_bpe: '", "say so (data.any_vocab: true)");
}

/* An error about a file begins with the key that names the file. */
static void wrong_file_is_named_by_its_key(void **state)
{
    (void)state;
#define KEY(key) "data." #key ": ", offsetof(struct dpt_config, data.key)
    static const struct {
        enum dpt_tokenizer tokenizer;
        const char *file, *begins;
        size_t at;
        enum dpt_status status;
    } cases[] = {{DPT_TOKENIZER_HF, "nowhere", KEY(tokenizer_json), DPT_ENOENT},
                 {DPT_TOKENIZER_HF, "not.json", KEY(tokenizer_json), DPT_ECONFIG},
                 {DPT_TOKENIZER_GPT2, "nowhere", KEY(vocab_bpe), DPT_ENOENT},
                 {DPT_TOKENIZER_GPT2, "not.json", KEY(vocab_bpe), DPT_ECORRUPT},
                 {DPT_TOKENIZER_GPT2, "nowhere", KEY(encoder_json), DPT_ENOENT},
                 {DPT_TOKENIZER_GPT2, "not.json", KEY(encoder_json), DPT_ECORRUPT}};
    write_file("not.json", "[1, 2", 5);
    use(DPT_DATA_TEXT, "not.json");
    config.model.vocab = 657;
    use_tiny();
    const struct dpt_config good = config;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        config = good;
        config.data.tokenizer = cases[i].tokenizer;
        (void)snprintf((char *)&config + cases[i].at, DPT_CONFIG_PATH_BYTES, "%s/%s", root,
                       cases[i].file);
        expect_refusal(cases[i].status, cases[i].begins, cases[i].file);
        assert_ptr_equal(strstr(err.text, cases[i].begins), err.text);
    }
}

/* Text by GPT-2's tokens: as its shard would be read, with the same digest. */
static void text_is_encoded(void **state)
{
    (void)state;
    const struct dpt_vocab_options options = {.kind = DPT_TOKENIZER_GPT2,
                                              .vocab_bpe = DPT_RECORDED "/tiny.bpe",
                                              .encoder_json = DPT_RECORDED "/tiny.json",
                                              .any_vocab = true};
    static const char text[] = "The machines come and go, and the training goes on and on.\n";
    struct dpt_vocab *vocab = NULL;
    struct dpt_encoder *encoder = NULL;
    struct dpt_tokens tokens = {0};
    char a[DPT_HASH_HEX_BYTES], b[DPT_HASH_HEX_BYTES], path[160];
    int32_t got[SEQ], targets[SEQ];
    static uint8_t shard[2048] = {0};
    assert_int_equal(dpt_vocab_open(&options, &vocab, &err), DPT_OK);
    assert_int_equal(dpt_encoder_create(vocab, &encoder, &err), DPT_OK);
    assert_int_equal(dpt_encoder_encode(encoder, text, sizeof text - 1, &tokens, &err), DPT_OK);
    write_file("t.txt", text, sizeof text - 1);
    use(DPT_DATA_TEXT, "t.txt");
    config.model.vocab = 657;
    use_tiny();
    struct dpt_data *data = open_data();
    assert_int_equal(dpt_data_samples(data), (tokens.n - 1) / SEQ);
    (void)snprintf(path, sizeof path, "%s/t.txt", root);
    assert_int_equal(unlink(path), 0); /* tokens that were read stay */
    for (int s = 0; s < dpt_data_samples(data); s++) {
        assert_int_equal(read_sample(data, s, got, targets), DPT_OK);
        for (int i = 0; i < SEQ; i++) {
            assert_int_equal(got[i], tokens.ids[s * SEQ + i]);
            assert_int_equal(targets[i], tokens.ids[s * SEQ + i + 1]);
        }
    }
    dpt_data_close(&data);
    write_file("t.txt", text, sizeof text - 1);
    make_digest(a);
    const int32_t header[3] = {MAGIC16, 1, (int32_t)tokens.n};
    memcpy(shard, header, sizeof header);
    for (size_t i = 0; i < tokens.n; i++) {
        shard[1024 + 2 * i] = (uint8_t)tokens.ids[i];
        shard[1025 + 2 * i] = (uint8_t)(tokens.ids[i] >> 8);
    }
    write_file("t.bin", shard, 1024 + tokens.n * 2);
    use(DPT_DATA_TOKENS, "t.bin");
    make_digest(b);
    assert_string_equal(a, b);
    dpt_tokens_fini(&tokens);
    dpt_encoder_destroy(&encoder);
    dpt_vocab_close(&vocab);
}

/* More than is encoded at once: refused before it is read. */
static void text_too_large_to_encode(void **state)
{
    (void)state;
    char path[160];
    write_file("t.txt", "", 0);
    (void)snprintf(path, sizeof path, "%s/t.txt", root);
    assert_int_equal(truncate(path, DPT_ENCODE_BYTES_MAX + 1LL), 0);
    use(DPT_DATA_TEXT, "t.txt");
    use_tiny();
    expect_refusal(DPT_EOVERFLOW, "/t.txt'", "dpt-data encode");
}

static void token_beyond_the_vocabulary(void **state)
{
    (void)state;
    int32_t tokens[SEQ], targets[SEQ];
    write_shard("v.bin", (struct shard){MAGIC16, 1, 2 * SEQ + 1, 2, 100, -1});
    use(DPT_DATA_TOKENS, "v.bin");
    config.model.vocab = 100 + SEQ + 3;
    struct dpt_data *data = open_data();
    assert_int_equal(read_sample(data, 1, tokens, targets), DPT_ECORRUPT);
    assert_non_null(strstr(err.text, "token 11 of '"));
    assert_non_null(strstr(err.text, "/v.bin' is 111, model.vocab is 111"));
    dpt_data_close(&data);
    config.model.vocab = 100 + SEQ; /* the last target of the first sample */
    data = open_data();
    assert_int_equal(read_sample(data, 0, tokens, targets), DPT_ECORRUPT);
    assert_non_null(strstr(err.text, "token 8 of '"));
    dpt_data_close(&data);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {TEST(text_is_bytes),
                                       TEST(shards_of_16_bits),
                                       TEST(shards_of_32_bits),
                                       TEST(long_samples),
                                       TEST(bad_shards),
                                       TEST(bad_paths),
                                       TEST(bad_combinations),
                                       TEST(wrong_file_is_named_by_its_key),
                                       TEST(text_is_encoded),
                                       TEST(text_too_large_to_encode),
                                       TEST(token_beyond_the_vocabulary)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
