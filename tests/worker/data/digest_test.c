/* The digest of data: its coverage, and data that changed. */
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

static void expect_digest_refused(const char *name, const char *why)
{
    struct dpt_data_digest found;
    assert_int_equal(dpt_data_digest(&config, &found, &err), DPT_ECONFIG);
    if (!strstr(err.text, name) || !strstr(err.text, why) || strchr(err.text, '\n'))
        fail_msg("'%s' or '%s' is not in: %s", name, why, err.text);
}

/* Found while the data are read for their hash, at any place: here the last token, which is in no
 * sample. */
static void largest_token(void **state)
{
    (void)state;
    enum { TOKENS = 30000 };
    char used[DPT_HASH_HEX_BYTES];
    write_shard("a_1.bin", (struct shard){MAGIC16, 1, 2 * SEQ + 1, 2, 100, -1});
    write_shard("a_2.bin", (struct shard){MAGIC16, 1, TOKENS, 2, 300, -1});
    write_shard("a_3.bin", (struct shard){MAGIC16, 1, 2 * SEQ + 1, 2, 200, -1});
    use(DPT_DATA_TOKENS, "a_*.bin");
    config.model.vocab = TOKENS + 300;
    make_digest(used);
    config.model.vocab--;
    expect_digest_refused("data.train: '", "/a_2.bin' has token 30299, model.vocab is 30299; set "
                                           "model.vocab: 30300, or");
    config.model.vocab = 110; /* the largest of all is named, not the first that is too large */
    expect_digest_refused("/a_2.bin' has token 30299", "set model.vocab: 30300");

    config.model.vocab = 128256;
    write_shard("w.bin", (struct shard){MAGIC32, 7, 2 * SEQ + 1, 4, 128256 - 2 * SEQ - 1, -1});
    use(DPT_DATA_TOKENS, "w.bin");
    make_digest(used);
    write_shard("w.bin", (struct shard){MAGIC32, 7, 2 * SEQ + 1, 4, UINT32_MAX - 2 * SEQ, -1});
    expect_digest_refused("/w.bin' has token 4294967295", "beyond every vocabulary");
}

/* Of data.val too, where it is used; of data.train not, where it is not. */
static void largest_token_of_validation(void **state)
{
    (void)state;
    char used[DPT_HASH_HEX_BYTES];
    write_shard("t.bin", (struct shard){MAGIC16, 1, 2 * SEQ + 1, 2, 100, -1});
    write_shard("v.bin", (struct shard){MAGIC16, 1, 2 * SEQ + 1, 2, 500, -1});
    use(DPT_DATA_TOKENS, "t.bin");
    (void)snprintf(config.data.val, sizeof config.data.val, "%s/v.bin", root);
    config.model.vocab = 500;
    make_digest(used);
    config.train.eval_every = 1;
    expect_digest_refused("data.val: '", "/v.bin' has token 516, model.vocab is 500");
    (void)snprintf(config.data.val, sizeof config.data.val, "%s/t.bin", root);
    use(DPT_DATA_TOKENS, "v.bin");
    config.train.eval_only = true;
    make_digest(used);
}

/* Truncated, replaced or removed under a running reader: an error, not a signal. */
static void files_that_change(void **state)
{
    (void)state;
    int32_t tokens[SEQ], targets[SEQ];
    char path[160];
    (void)snprintf(path, sizeof path, "%s/c.bin", root);
    write_shard("c.bin", (struct shard){MAGIC16, 1, 2 * SEQ + 1, 2, 100, -1});
    use(DPT_DATA_TOKENS, "c.bin");
    struct dpt_data *data = open_data();
    expect_sample(data, 0, 100);
    assert_int_equal(truncate(path, 1030), 0);
    assert_int_equal(read_sample(data, 0, tokens, targets), DPT_ECORRUPT);
    assert_non_null(strstr(err.text, "/c.bin' was changed while in use"));
    write_shard("c.bin", (struct shard){MAGIC16, 1, 2 * SEQ + 1, 2, 100, -1});
    assert_int_equal(read_sample(data, 0, tokens, targets), DPT_ECORRUPT);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(read_sample(data, 0, tokens, targets), DPT_ENOENT);
    assert_non_null(strstr(err.text, "/c.bin'"));
    dpt_data_close(&data);
}

/* The content and how it is cut into shards count, names do not. */
static void digest(void **state)
{
    (void)state;
    char a[DPT_HASH_HEX_BYTES], b[DPT_HASH_HEX_BYTES];
    write_shard("a_1.bin", (struct shard){MAGIC16, 1, 100, 2, 5, -1});
    write_shard("a_2.bin", (struct shard){MAGIC16, 1, 50, 2, 7, -1});
    write_shard("b_x.bin", (struct shard){MAGIC16, 1, 100, 2, 5, -1});
    write_shard("b_y.bin", (struct shard){MAGIC16, 1, 50, 2, 7, -1});
    write_shard("c_1.bin", (struct shard){MAGIC16, 1, 50, 2, 7, -1});
    write_shard("c_2.bin", (struct shard){MAGIC16, 1, 100, 2, 5, -1});
    use(DPT_DATA_TOKENS, "a_*.bin");
    make_digest(a);
    assert_int_equal(strlen(a), 32);
    use(DPT_DATA_TOKENS, "b_*.bin");
    make_digest(b);
    assert_string_equal(a, b);
    use(DPT_DATA_TOKENS, "c_*.bin");
    make_digest(b);
    assert_string_not_equal(a, b);
    use(DPT_DATA_TOKENS, "a_1.bin");
    make_digest(b);
    assert_string_not_equal(a, b);
    write_shard("b_y.bin", (struct shard){MAGIC16, 1, 50, 2, 8, -1});
    use(DPT_DATA_TOKENS, "b_*.bin");
    make_digest(b);
    assert_string_not_equal(a, b);
}

/* With validation data the digest covers both, and that of the training data stays; a run that only
 * evaluates needs no training data. */
static void digest_of_training_data(void **state)
{
    (void)state;
    struct dpt_data_digest plain, both, eval;
    write_shard("a_1.bin", (struct shard){MAGIC16, 1, 100, 2, 5, -1});
    write_shard("v.bin", (struct shard){MAGIC16, 1, 50, 2, 7, -1});
    use(DPT_DATA_TOKENS, "a_*.bin");
    assert_int_equal(dpt_data_digest(&config, &plain, &err), DPT_OK);
    (void)snprintf(config.data.val, sizeof config.data.val, "%s/v.bin", root);
    config.train.eval_every = 1;
    assert_int_equal(dpt_data_digest(&config, &both, &err), DPT_OK);
    assert_string_equal(both.train.hash, plain.train.hash);
    assert_string_equal(plain.val.hash, "");
    assert_string_not_equal(both.val.hash, both.train.hash);
    assert_string_not_equal(both.used, plain.used);
    config.train.eval_only = true;
    assert_int_equal(dpt_data_digest(&config, &eval, &err), DPT_OK);
    assert_string_equal(eval.train.hash, "");
    assert_string_equal(eval.val.hash, both.val.hash);
    assert_string_not_equal(eval.used, both.used);
}

/* Larger than the digest's blocks; the last byte counts. */
static void digest_of_a_large_text(void **state)
{
    (void)state;
    enum { BYTES = (1 << 20) * 2 + 17 };
    char a[DPT_HASH_HEX_BYTES], b[DPT_HASH_HEX_BYTES];
    char *text = calloc(1, BYTES);
    write_file("t.txt", text, BYTES);
    use(DPT_DATA_TEXT, "t.txt");
    make_digest(a);
    text[BYTES - 1] = 1;
    write_file("t.txt", text, BYTES);
    make_digest(b);
    assert_string_not_equal(a, b);
    free(text);
}

/* Another process of the machine looks later: at the same file, at the same content in another, at
 * other content. */
static void checked_against_what_was(void **state)
{
    (void)state;
    struct dpt_data_digest was, touched;
    char text[3 * SEQ + 1];
    memset(text, 'a', sizeof text);
    write_file("t.txt", text, sizeof text);
    use(DPT_DATA_TEXT, "t.txt");
    assert_int_equal(dpt_data_digest(&config, &was, &err), DPT_OK);
    struct dpt_data *data = open_data();
    assert_int_equal(dpt_data_check(data, &was.train, &err), DPT_OK);
    dpt_data_close(&data);

    write_file("t.txt", text, sizeof text);
    assert_int_equal(dpt_data_digest(&config, &touched, &err), DPT_OK);
    assert_string_not_equal(touched.train.stamp, was.train.stamp);
    data = open_data();
    assert_int_equal(dpt_data_check(data, &was.train, &err), DPT_OK);
    dpt_data_close(&data);

    text[SEQ] = 'b';
    write_file("t.txt", text, sizeof text);
    data = open_data();
    assert_int_equal(dpt_data_check(data, &was.train, &err), DPT_ECORRUPT);
    assert_non_null(strstr(err.text, "data.train was changed"));
    assert_non_null(strstr(err.text, "t.txt"));
    const struct dpt_data_identity nothing = {.hash = ""};
    assert_int_equal(dpt_data_check(data, &nothing, &err), DPT_OK);
    dpt_data_close(&data);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(largest_token),           TEST(largest_token_of_validation),
        TEST(files_that_change),       TEST(digest),
        TEST(digest_of_training_data), TEST(digest_of_a_large_text),
        TEST(checked_against_what_was)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
