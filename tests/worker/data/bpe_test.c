/* GPT-2's tokens: the ids of a reference encoder on awkward strings and on a real text, decoding,
 * cutting. recorded/awkward.txt is made by record_bpe.py. */
#include "worker/data/tokenizer.h"

#include "base/fs.h"
#include "base/rng.h"
#include "base/sha256.h"
#include "tests/real_data.h"
#include "tests/tmp.h"
#include "worker/data/split.h"
#include "worker/data/utf8.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define TINY_BPE  DPT_RECORDED "/tiny.bpe"
#define TINY_JSON DPT_RECORDED "/tiny.json"
enum { TEXT_MAX = 8192, TOKENS_MAX = 8192 };

static struct dpt_err err;

static struct dpt_vocab *open_tiny(void)
{
    const struct dpt_vocab_options options = {.kind = DPT_TOKENIZER_GPT2,
                                              .vocab_bpe = TINY_BPE,
                                              .encoder_json = TINY_JSON,
                                              .any_vocab = true};
    struct dpt_vocab *vocab = NULL;
    if (dpt_vocab_open(&options, &vocab, &err) != DPT_OK)
        fail_msg("%s", err.text);
    return vocab;
}

/* OpenAI's, by its hash; skips the test where it is not there. */
static struct dpt_vocab *open_real(void)
{
    char bpe[512], json[512];
    if (!test_data_path(bpe, sizeof bpe, "vocab.bpe") ||
        !test_data_path(json, sizeof json, "encoder.json"))
        skip();
    const struct dpt_vocab_options options = {
        .kind = DPT_TOKENIZER_GPT2, .vocab_bpe = bpe, .encoder_json = json};
    struct dpt_vocab *vocab = NULL;
    if (dpt_vocab_open(&options, &vocab, &err) != DPT_OK)
        fail_msg("%s", err.text);
    return vocab;
}

static struct dpt_encoder *make_encoder(const struct dpt_vocab *vocab)
{
    struct dpt_encoder *encoder = NULL;
    if (dpt_encoder_create(vocab, &encoder, &err) != DPT_OK)
        fail_msg("%s", err.text);
    return encoder;
}

static void encode_bpe(struct dpt_encoder *encoder, const void *text, size_t bytes,
                       struct dpt_tokens *tokens)
{
    if (dpt_encoder_encode(encoder, text, bytes, tokens, &err) != DPT_OK)
        fail_msg("%s", err.text);
}

static size_t decode_bpe(const struct dpt_vocab *vocab, const struct dpt_tokens *tokens,
                         uint8_t *ret, size_t room)
{
    size_t n = 0;
    for (size_t i = 0; i < tokens->n; i++) {
        size_t bytes;
        const uint8_t *text = dpt_vocab_token(vocab, (int)tokens->ids[i], &bytes);
        assert_non_null(text);
        assert_true(n + bytes <= room);
        memcpy(ret + n, text, bytes);
        n += bytes;
    }
    return n;
}

/* ---------------------------------------------------------------- the recorded ids */

static size_t parse_hex(const char *hex, uint8_t *ret)
{
    size_t n = 0;
    unsigned byte;
    for (; sscanf(hex, "%2x", &byte) == 1; hex += 2) {
        assert_true(n < TEXT_MAX);
        ret[n++] = (uint8_t)byte;
    }
    return n;
}

static void check_line(const struct dpt_vocab *vocab, struct dpt_encoder *encoder, char *line)
{
    static uint8_t text[TEXT_MAX], repaired[3 * TEXT_MAX], decoded[3 * TEXT_MAX];
    char *rest;
    const char *hex = strtok_r(line + 2, " ", &rest), *id;
    const size_t bytes = parse_hex(hex, text);
    struct dpt_tokens tokens = {0};
    int64_t replaced = 0;
    size_t i = 0;
    const int64_t before = dpt_encoder_replaced(encoder);
    encode_bpe(encoder, text, bytes, &tokens);
    for (; (id = strtok_r(NULL, " ", &rest)); i++)
        if (i >= tokens.n || tokens.ids[i] != strtol(id, NULL, 10))
            fail_msg("text %s: token %zu of %zu is not %s", hex, i, tokens.n, id);
    if (i != tokens.n)
        fail_msg("text %s: %zu tokens, not %zu", hex, tokens.n, i);
    const size_t n = dpt_utf8_repair(text, bytes, repaired, &replaced);
    assert_int_equal(dpt_encoder_replaced(encoder) - before, replaced);
    assert_int_equal(decode_bpe(vocab, &tokens, decoded, sizeof decoded), n);
    assert_memory_equal(decoded, repaired, n);
    dpt_tokens_fini(&tokens);
}

/* Every line that begins with `name`, twice: the second time from the encoder's memory. */
static void check_recorded(const struct dpt_vocab *vocab, char name)
{
    char *text, *rest;
    size_t bytes;
    int lines = 0;
    struct dpt_encoder *encoder = make_encoder(vocab);
    for (int pass = 0; pass < 2; pass++) {
        assert_int_equal(
            dpt_fs_read_file(DPT_RECORDED "/awkward.txt", 1 << 24, &text, &bytes, &err), DPT_OK);
        for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
            if (line[0] == name && line[1] == ' ') {
                check_line(vocab, encoder, line);
                lines++;
            }
        free(text);
    }
    assert_true(lines > 2 * 600);
    dpt_encoder_destroy(&encoder);
}

static void awkward_strings_tiny(void **state)
{
    (void)state;
    struct dpt_vocab *vocab = open_tiny();
    assert_int_equal(dpt_vocab_size(vocab), 657);
    assert_int_equal(dpt_vocab_end_of_text(vocab), 656);
    check_recorded(vocab, 't');
    dpt_vocab_close(&vocab);
}

static void awkward_strings_openai(void **state)
{
    (void)state;
    struct dpt_vocab *vocab = open_real();
    assert_int_equal(dpt_vocab_size(vocab), 50257);
    assert_int_equal(dpt_vocab_end_of_text(vocab), 50256);
    check_recorded(vocab, 'g');
    dpt_vocab_close(&vocab);
}

/* The value recorded under `name` on a separate line. */
static void recorded_line(const char *name, char *ret, size_t room)
{
    char *text, *rest;
    size_t bytes;
    ret[0] = '\0';
    assert_int_equal(dpt_fs_read_file(DPT_RECORDED "/awkward.txt", 1 << 24, &text, &bytes, &err),
                     DPT_OK);
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        if (strncmp(line, name, strlen(name)) == 0 && line[strlen(name)] == ' ')
            (void)snprintf(ret, room, "%s", line + strlen(name) + 1);
    free(text);
    assert_true(ret[0] != '\0');
}

static void test_shakespeare_as_recorded(void **state)
{
    (void)state;
    char path[512], expected[128], found[128], hex[DPT_SHA256_HEX_BYTES], *text;
    size_t bytes;
    struct dpt_vocab *vocab = open_real();
    struct dpt_encoder *encoder = make_encoder(vocab);
    struct dpt_tokens tokens = {0};
    struct dpt_sha256 sha;
    assert_true(test_data_path(path, sizeof path, "tinyshakespeare.txt"));
    assert_int_equal(dpt_fs_read_file(path, 1 << 24, &text, &bytes, &err), DPT_OK);
    encode_bpe(encoder, text, bytes, &tokens);
    dpt_sha256_init(&sha);
    for (size_t i = 0; i < tokens.n; i++) {
        const uint8_t number[] = {(uint8_t)tokens.ids[i], (uint8_t)(tokens.ids[i] >> 8)};
        dpt_sha256_add(&sha, number, sizeof number);
    }
    dpt_sha256_hex(&sha, hex);
    (void)snprintf(found, sizeof found, "%zu %s", tokens.n, hex);
    recorded_line("shakespeare", expected, sizeof expected);
    assert_string_equal(found, expected);
    uint8_t *decoded = malloc(bytes);
    assert_int_equal(decode_bpe(vocab, &tokens, decoded, bytes), bytes);
    assert_memory_equal(decoded, text, bytes);
    free(decoded);
    free(text);
    dpt_tokens_fini(&tokens);
    dpt_encoder_destroy(&encoder);
    dpt_vocab_close(&vocab);
}

/* ---------------------------------------------------------------- cutting */

static size_t put_utf8(uint32_t c, uint8_t *ret)
{
    if (c < 0x80) {
        ret[0] = (uint8_t)c;
        return 1;
    }
    const size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const uint8_t first[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = n; i-- > 1; c >>= 6)
        ret[i] = (uint8_t)(0x80 | (c & 0x3f));
    ret[0] = (uint8_t)(first[n] | c);
    return n;
}

/* The class of a character by its neighbours in a token: letters, numbers, other signs; else white
 * space. */
static char class_by_splitting(uint32_t c)
{
    static const char before[] = "!a1", digit[] = "012";
    for (int i = 0; i < 3; i++) {
        uint8_t text[5] = {(uint8_t)before[i]};
        const size_t bytes = 1 + put_utf8(c, text + 1);
        if (dpt_split_next(text, bytes) == bytes)
            return digit[i];
    }
    return '3';
}

static void every_character(void **state)
{
    (void)state;
    struct dpt_sha256 sha;
    char expected[128], hex[DPT_SHA256_HEX_BYTES];
    dpt_sha256_init(&sha);
    for (uint32_t c = 0; c < 0x110000; c++) {
        if (c >= 0xd800 && c < 0xe000)
            continue;
        const char class = class_by_splitting(c);
        dpt_sha256_add(&sha, &class, 1);
    }
    dpt_sha256_hex(&sha, hex);
    recorded_line("classes", expected, sizeof expected);
    assert_string_equal(hex, expected);
}

/* A text of drawn parts, some of them no UTF-8. */
static size_t draw_text(uint64_t seed, uint8_t *ret)
{
    static const char *const parts[] = {" ",
                                        "  ",
                                        "\n",
                                        "\n\n",
                                        "\t",
                                        "a",
                                        "the",
                                        "word",
                                        "don't",
                                        "'ll",
                                        "12",
                                        "3.5",
                                        "!",
                                        "...",
                                        "\xff",
                                        "\xc3",
                                        "é",
                                        "中文",
                                        "😀",
                                        "\u3000",
                                        "\u00a0",
                                        "\xe3\x80",
                                        "\xe2\x80\x80\x80",
                                        "\u2028"};
    enum { PARTS = sizeof parts / sizeof *parts };
    const struct dpt_rng_key key = dpt_rng_key(seed, DPT_RNG_TEST, 0, 0, 0);
    size_t n = 0;
    for (uint64_t i = 0; i < 40; i++) {
        uint32_t block[4];
        dpt_philox(key, i, block);
        const char *part = parts[block[0] % PARTS];
        memcpy(ret + n, part, strlen(part));
        n += strlen(part);
    }
    return n;
}

/* A text cut where dpt_split_cut says gives the tokens of the whole. */
static void cutting_changes_nothing(void **state)
{
    (void)state;
    struct dpt_vocab *vocab = open_tiny();
    struct dpt_encoder *encoder = make_encoder(vocab);
    struct dpt_tokens whole = {0}, parts = {0};
    uint8_t text[1024];
    int cuts = 0;
    for (uint64_t seed = 0; seed < 2000; seed++) {
        const size_t bytes = draw_text(seed, text);
        whole.n = 0;
        encode_bpe(encoder, text, bytes, &whole);
        for (size_t at = bytes; (at = dpt_split_cut(text, at, DPT_CUTS_SPACES)) > 0; cuts++) {
            parts.n = 0;
            encode_bpe(encoder, text, at, &parts);
            encode_bpe(encoder, text + at, bytes - at, &parts);
            if (parts.n != whole.n ||
                memcmp(parts.ids, whole.ids, whole.n * sizeof *whole.ids) != 0)
                fail_msg("seed %llu: cut at byte %zu of %zu gives other tokens",
                         (unsigned long long)seed, at, bytes);
        }
    }
    assert_true(cuts > 2000);
    dpt_tokens_fini(&whole);
    dpt_tokens_fini(&parts);
    dpt_encoder_destroy(&encoder);
    dpt_vocab_close(&vocab);
}

static void places_to_cut(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t at;
    } cases[] = {{"", 0},          {"word", 0},       {" word", 0},        {"a b", 1},
                 {"a b ", 3},      {"a  b", 1},       {"a b\n\n", 3},      {"\u3000 a", 0},
                 {"a\u3000 b", 0}, {"\xe3\x80 b", 2}, {"\xff b", 1},       {"é b", 2},
                 {"中 b", 3},      {"😀 b", 4},        {"\u00a0\x80 b", 3}, {"a\u00a0b", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(
            dpt_split_cut((const uint8_t *)cases[i].text, strlen(cases[i].text), DPT_CUTS_SPACES),
            cases[i].at);
}

/* ---------------------------------------------------------------- the interface */

static void bytes_are_tokens(void **state)
{
    (void)state;
    const struct dpt_vocab_options options = {.kind = DPT_TOKENIZER_BYTES};
    struct dpt_vocab *vocab = NULL;
    struct dpt_tokens tokens = {0};
    uint8_t text[256], decoded[256];
    size_t bytes;
    assert_int_equal(dpt_vocab_open(&options, &vocab, &err), DPT_OK);
    struct dpt_encoder *encoder = make_encoder(vocab);
    for (int i = 0; i < 256; i++)
        text[i] = (uint8_t)(255 - i);
    encode_bpe(encoder, text, sizeof text, &tokens);
    assert_int_equal(tokens.n, 256);
    for (int i = 0; i < 256; i++)
        assert_int_equal(tokens.ids[i], 255 - i);
    assert_int_equal(decode_bpe(vocab, &tokens, decoded, sizeof decoded), 256);
    assert_memory_equal(decoded, text, sizeof text);
    assert_int_equal(dpt_encoder_replaced(encoder), 0);
    assert_int_equal(dpt_vocab_size(vocab), 256);
    assert_int_equal(dpt_vocab_end_of_text(vocab), -1);
    assert_null(dpt_vocab_token(vocab, 256, &bytes));
    assert_null(dpt_vocab_token(vocab, -1, &bytes));
    dpt_tokens_fini(&tokens);
    dpt_encoder_destroy(&encoder);
    dpt_vocab_close(&vocab);
    assert_null(vocab);
}

/* Appending keeps the existing tokens; text never encodes to the special token, which only
 * decodes. */
static void appending_and_end_of_text(void **state)
{
    (void)state;
    struct dpt_vocab *vocab = open_tiny();
    struct dpt_encoder *encoder = make_encoder(vocab);
    struct dpt_tokens tokens = {0};
    uint8_t decoded[64];
    assert_int_equal(dpt_tokens_add(&tokens, 656, &err), DPT_OK);
    encode_bpe(encoder, "the end", 7, &tokens);
    encode_bpe(encoder, "", 0, &tokens);
    assert_int_equal(dpt_tokens_add(&tokens, 656, &err), DPT_OK);
    assert_int_equal(decode_bpe(vocab, &tokens, decoded, sizeof decoded), 33);
    assert_memory_equal(decoded, "<|endoftext|>the end<|endoftext|>", 33);
    tokens.n = 0;
    encode_bpe(encoder, "<|endoftext|>", 13, &tokens);
    for (size_t i = 0; i < tokens.n; i++)
        assert_int_not_equal(tokens.ids[i], 656);
    dpt_tokens_fini(&tokens);
    dpt_encoder_destroy(&encoder);
    dpt_vocab_close(&vocab);
}

/* Long words take their time and no more; there is a limit. */
static void words_without_end(void **state)
{
    (void)state;
    enum { MIB = 1 << 20, LIMIT = 16 * MIB };
    struct dpt_vocab *vocab = open_tiny();
    struct dpt_encoder *encoder = make_encoder(vocab);
    struct dpt_tokens tokens = {0};
    char *text = malloc(LIMIT + 1);
    memset(text, 'a', LIMIT + 1);
    assert_int_equal(dpt_encoder_encode(encoder, text, LIMIT + 1, &tokens, &err), DPT_EOVERFLOW);
    assert_non_null(strstr(err.text, "a word of 16777217 bytes"));
    for (size_t i = 0; i < MIB; i++)
        text[i] = "the"[i % 3];
    encode_bpe(encoder, text, MIB, &tokens);
    size_t bytes = 0, n;
    for (size_t i = 0; i < tokens.n; i++) {
        assert_non_null(dpt_vocab_token(vocab, (int)tokens.ids[i], &n));
        bytes += n;
    }
    assert_int_equal(bytes, MIB);
    assert_true(tokens.n < MIB * 3 / 4);
    free(text);
    dpt_tokens_fini(&tokens);
    dpt_encoder_destroy(&encoder);
    dpt_vocab_close(&vocab);
}

/* ---------------------------------------------------------------- files that are none */

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(awkward_strings_tiny),
                                       cmocka_unit_test(awkward_strings_openai),
                                       cmocka_unit_test(test_shakespeare_as_recorded),
                                       cmocka_unit_test(every_character),
                                       cmocka_unit_test(cutting_changes_nothing),
                                       cmocka_unit_test(places_to_cut),
                                       cmocka_unit_test(bytes_are_tokens),
                                       cmocka_unit_test(appending_and_end_of_text),
                                       cmocka_unit_test(words_without_end)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
