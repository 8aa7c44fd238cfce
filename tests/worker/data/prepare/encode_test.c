/* dpt-data encode: the same bytes for any block size and any number of threads; the tokens of the
 * encoder; splits. */
#include "tests/worker/data/prepare/prepare_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* All tokens of a split, by its shards, whose headers are checked. */
static void read_tokens(const char *out, enum dpt_split split, struct dpt_tokens *ret)
{
    const struct dpt_shard_list list = {.split = dpt_split_names[split]};
    ret->n = 0;
    for (int i = 0;; i++) {
        char name[DPT_SHARD_NAME_BYTES], path[512], *text;
        size_t bytes;
        uint32_t header[3];
        dpt_shard_list_name(&list, i, name);
        (void)snprintf(path, sizeof path, "%s/%s", in_root(out), name);
        if (!dpt_fs_exists(path))
            return;
        OK(dpt_fs_read_file(path, 1 << 24, &text, &bytes, &err));
        memcpy(header, text, sizeof header);
        assert_int_equal(header[0], 20240520);
        assert_int_equal(header[1], 1);
        assert_int_equal(bytes, 1024 + 2 * (size_t)header[2]);
        assert_true(header[2] > 0 && header[2] <= options.shard_tokens);
        for (uint32_t t = 0; t < header[2]; t++) {
            uint16_t id;
            memcpy(&id, text + 1024 + 2 * t, 2);
            OK(dpt_tokens_add(ret, id, &err));
        }
        free(text);
    }
}

/* The text of the tokens, with a NUL where a document begins; owned. */
static char *decode_tokens(const struct dpt_tokens *tokens, size_t *ret_bytes)
{
    struct dpt_vocab *vocab = NULL;
    OK(dpt_vocab_open(&options.vocab, &vocab, &err));
    char *text = malloc(tokens->n * 64 + 1);
    size_t n = 0, bytes;
    for (size_t i = 0; i < tokens->n; i++) {
        const uint8_t *token = dpt_vocab_token(vocab, (int)tokens->ids[i], &bytes);
        assert_non_null(token);
        assert_true(bytes <= 64);
        if ((int)tokens->ids[i] == dpt_vocab_end_of_text(vocab)) {
            text[n++] = '\0';
            continue;
        }
        memcpy(text + n, token, bytes);
        n += bytes;
    }
    text[n] = '\0';
    *ret_bytes = n;
    dpt_vocab_close(&vocab);
    return text;
}

/* ---------------------------------------------------------------- tests */

static void blocks_and_threads_change_nothing(void **state)
{
    (void)state;
    static const size_t blocks[] = {1024, 1500, 8192, 1 << 20};
    add_all();
    OK(encode("first"));
    assert_int_equal(result.split[0].documents + result.split[1].documents, 5 + DOCUMENTS);
    assert_true(result.split[0].shards > 3 && result.split[1].shards >= 1);
    assert_true(result.replaced > 100);
    for (size_t b = 0; b < 4; b++)
        for (int threads = 1; threads <= 3; threads += 2) {
            options.cut.block_bytes = blocks[b];
            options.threads = threads;
            OK(encode("again"));
            assert_false(result.was_done);
            expect_same("first", "again");
            OK(dpt_fs_remove_tree(in_root("again"), &err));
        }
}

/* Cut into blocks and shards or encoded at once: the same tokens. */
static void tokens_are_the_encoders(void **state)
{
    (void)state;
    struct dpt_vocab *vocab = NULL;
    struct dpt_encoder *encoder = NULL;
    struct dpt_tokens whole = {0}, found = {0};
    char *text;
    size_t bytes;
    write_text("a.txt", LINES, 1);
    add("a.txt", false);
    options.cut.val_fraction = 0;
    OK(encode("out"));
    OK(dpt_vocab_open(&options.vocab, &vocab, &err));
    OK(dpt_encoder_create(vocab, &encoder, &err));
    OK(dpt_fs_read_file(in_root("a.txt"), 1 << 24, &text, &bytes, &err));
    OK(dpt_tokens_add(&whole, (uint32_t)dpt_vocab_end_of_text(vocab), &err));
    OK(dpt_encoder_encode(encoder, text, bytes, &whole, &err));
    read_tokens("out", DPT_SPLIT_TRAIN, &found);
    assert_int_equal(found.n, whole.n);
    assert_memory_equal(found.ids, whole.ids, whole.n * sizeof *whole.ids);
    assert_int_equal(result.replaced, dpt_encoder_replaced(encoder));
    assert_false(dpt_fs_exists(in_root("out/val_000000.bin")));
    free(text);
    dpt_tokens_fini(&whole);
    dpt_tokens_fini(&found);
    dpt_encoder_destroy(&encoder);
    dpt_vocab_close(&vocab);
}

/* Marks the documents of write_jsonl that the split has; returns their number. */
static int find_documents(const char *out, enum dpt_split split, bool ret_has[DOCUMENTS])
{
    struct dpt_tokens tokens = {0};
    size_t bytes;
    int n = 0;
    memset(ret_has, 0, DOCUMENTS);
    read_tokens(out, split, &tokens);
    char *text = decode_tokens(&tokens, &bytes);
    for (size_t i = 0; i < bytes; i++) {
        int document;
        if (text[i] != '\0' || sscanf(text + i + 1, "document %d ", &document) != 1)
            continue;
        assert_true(document >= 0 && document < DOCUMENTS && !ret_has[document]);
        ret_has[document] = true;
        n++;
    }
    free(text);
    dpt_tokens_fini(&tokens);
    return n;
}

static void documents_are_split_by_lot(void **state)
{
    (void)state;
    bool train[DOCUMENTS], val[DOCUMENTS], other[DOCUMENTS];
    write_jsonl("d.JsonL"); /* an ending in any case */
    add("d.JsonL", false);
    OK(encode("out"));
    assert_int_equal(find_documents("out", DPT_SPLIT_TRAIN, train), DOCUMENTS * 8 / 10);
    assert_int_equal(find_documents("out", DPT_SPLIT_VAL, val), DOCUMENTS * 2 / 10);
    for (int i = 0; i < DOCUMENTS; i++)
        assert_true(train[i] != val[i]);
    options.cut.seed = 6;
    OK(encode("other"));
    assert_int_equal(find_documents("other", DPT_SPLIT_VAL, other), DOCUMENTS * 2 / 10);
    assert_memory_not_equal(val, other, sizeof val);
    options.cut.val_fraction = 0.0001; /* one document at least */
    OK(encode("little"));
    assert_int_equal(find_documents("little", DPT_SPLIT_VAL, val), 1);
    options.cut.val_fraction = 0.9999; /* and one is left */
    OK(encode("much"));
    assert_int_equal(find_documents("much", DPT_SPLIT_TRAIN, train), 1);
}

/* Each numbered line is in one split, whole. */
static void lines_are_split_by_lot(void **state)
{
    (void)state;
    enum { NUMBERED = 3000 };
    static int seen[NUMBERED];
    char *text = malloc(NUMBERED * 32);
    size_t n = 0, bytes;
    int lines[DPT_SPLIT_COUNT] = {0};
    struct dpt_tokens tokens = {0};
    memset(seen, 0, sizeof seen);
    for (int i = 0; i < NUMBERED; i++)
        n += (size_t)snprintf(text + n, 32, "line %d and more\n", i);
    OK(dpt_fs_write_file_atomic(in_root("n.txt"), text, n, &err));
    free(text);
    add("n.txt", false);
    options.cut.unit = DPT_UNIT_LINES;
    OK(encode("out"));
    for (int s = 0; s < DPT_SPLIT_COUNT; s++) {
        read_tokens("out", (enum dpt_split)s, &tokens);
        text = decode_tokens(&tokens, &bytes);
        for (size_t i = 0; i < bytes; i += strcspn(text + i, "\n") + 1) {
            int line, length = 0;
            i += text[i] == '\0';
            assert_int_equal(sscanf(text + i, "line %d and more%n", &line, &length), 1);
            assert_int_equal(text[i + (size_t)length], '\n');
            seen[line]++;
            lines[s]++;
        }
        free(text);
    }
    for (int i = 0; i < NUMBERED; i++)
        assert_int_equal(seen[i], 1);
    assert_true(lines[DPT_SPLIT_VAL] > NUMBERED * 0.17 && lines[DPT_SPLIT_VAL] < NUMBERED * 0.23);
    assert_true(result.split[DPT_SPLIT_VAL].documents > 3);
    dpt_tokens_fini(&tokens);
}

/* Lines longer than a stretch. */
static void few_long_lines(void **state)
{
    (void)state;
    static char text[9000];
    memset(text, 'x', sizeof text);
    text[4500] = text[8900] = '\n';
    OK(dpt_fs_write_file_atomic(in_root("l.txt"), text, sizeof text, &err));
    add("l.txt", false);
    options.cut.unit = DPT_UNIT_LINES;
    options.vocab.kind = DPT_TOKENIZER_BYTES;
    OK(encode("out"));
    assert_int_equal(result.split[0].tokens + result.split[1].tokens, sizeof text);
}

static void validation_text_by_name(void **state)
{
    (void)state;
    struct dpt_tokens tokens = {0};
    write_string("t.txt", "for training\n");
    write_string("v.txt", "for validation\n");
    add("t.txt", false);
    add("v.txt", true);
    options.cut.val_fraction = 0;
    options.vocab.kind = DPT_TOKENIZER_BYTES;
    OK(encode("out"));
    read_tokens("out", DPT_SPLIT_VAL, &tokens);
    assert_int_equal(tokens.n, 15);
    for (size_t i = 0; i < tokens.n; i++)
        assert_int_equal(tokens.ids[i], "for validation\n"[i]);
    read_tokens("out", DPT_SPLIT_TRAIN, &tokens);
    assert_int_equal(tokens.n, 13);
    dpt_tokens_fini(&tokens);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {TEST(blocks_and_threads_change_nothing),
                                       TEST(tokens_are_the_encoders),
                                       TEST(documents_are_split_by_lot),
                                       TEST(lines_are_split_by_lot),
                                       TEST(few_long_lines),
                                       TEST(validation_text_by_name)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
