/* tokenizer.json: the ids of the package tokenizers on awkward strings, in the forms of GPT-2,
 * Llama 3 and SmolLM2 and in an odd one; tokens of a text at a cut; ids above 65535.
 * recorded/hf_*.json and hf.txt are made by record_hf.py. */
#include "worker/data/tokenizer.h"

#include "base/fs.h"
#include "base/rng.h"
#include "tests/real_data.h"
#include "tests/tmp.h"
#include "worker/data/data.h"
#include "worker/data/split.h"
#include "worker/data/utf8.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { TEXT_MAX = 8192, PATH_BYTES = 256 };

static struct dpt_err err;
static char root[128];

static const char *recorded(const char *name)
{
    static char path[PATH_BYTES];
    (void)snprintf(path, sizeof path, DPT_RECORDED "/%s.json", name);
    return path;
}

static struct dpt_vocab *open_file(const char *path)
{
    const struct dpt_vocab_options options = {.kind = DPT_TOKENIZER_HF, .tokenizer_json = path};
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

static void encode_hf(struct dpt_encoder *encoder, const void *text, size_t bytes,
                      struct dpt_tokens *tokens)
{
    if (dpt_encoder_encode(encoder, text, bytes, tokens, &err) != DPT_OK)
        fail_msg("%s", err.text);
}

static size_t decode_hf(const struct dpt_vocab *vocab, const struct dpt_tokens *tokens,
                        uint8_t *ret)
{
    size_t n = 0, bytes = 0;
    for (size_t i = 0; i < tokens->n; i++) {
        const uint8_t *text = dpt_vocab_token(vocab, (int)tokens->ids[i], &bytes);
        assert_non_null(text);
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

/* `whole`: every byte has a token, so that the tokens decode to the text. */
static void check_line(const struct dpt_vocab *vocab, struct dpt_encoder *encoder, char *line,
                       bool whole)
{
    static uint8_t text[TEXT_MAX], repaired[3 * TEXT_MAX], decoded[16 * TEXT_MAX];
    char *rest;
    const char *name = strtok_r(line, " ", &rest), *hex = strtok_r(NULL, " ", &rest), *id;
    const size_t bytes = parse_hex(hex, text);
    struct dpt_tokens tokens = {0};
    int64_t replaced = 0;
    size_t i = 0;
    encode_hf(encoder, text, bytes, &tokens);
    for (; (id = strtok_r(NULL, " ", &rest)); i++)
        if (i >= tokens.n || tokens.ids[i] != strtoul(id, NULL, 10))
            fail_msg("%s, text %s: token %zu of %zu is not %s", name, hex, i, tokens.n, id);
    if (i != tokens.n)
        fail_msg("%s, text %s: %zu tokens, not %zu", name, hex, tokens.n, i);
    if (whole) {
        const size_t n = dpt_utf8_repair(text, bytes, repaired, &replaced);
        assert_int_equal(decode_hf(vocab, &tokens, decoded), n);
        assert_memory_equal(decoded, repaired, n);
    }
    dpt_tokens_fini(&tokens);
}

/* Every line of recorded/`file` under `name`, twice: the second time from the encoder's memory.
 * Under NAME+ are those with special tokens taken. */
static void check_lines(const struct dpt_vocab *vocab, const char *file, const char *name,
                        bool whole)
{
    char path[PATH_BYTES], *text, *rest;
    size_t bytes;
    int lines = 0;
    struct dpt_encoder *encoder = make_encoder(vocab);
    const size_t n = strlen(name);
    const bool special = name[n - 1] == '+';
    (void)snprintf(path, sizeof path, DPT_RECORDED "/%s", file);
    if (special)
        dpt_encoder_take_special(encoder);
    for (int pass = 0; pass < 2; pass++) {
        assert_int_equal(dpt_fs_read_file(path, 1 << 24, &text, &bytes, &err), DPT_OK);
        for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
            if (strncmp(line, name, n) == 0 && line[n] == ' ') {
                check_line(vocab, encoder, line, whole);
                lines++;
            }
        free(text);
    }
    assert_true(lines > (special ? 2 * 20 : 2 * 250));
    dpt_encoder_destroy(&encoder);
}

static void check_recorded(const char *name, int size, int end_of_text, bool whole)
{
    char with_special[32];
    struct dpt_vocab *vocab = open_file(recorded(name));
    assert_int_equal(dpt_vocab_size(vocab), size);
    assert_int_equal(dpt_vocab_end_of_text(vocab), end_of_text);
    assert_int_equal(dpt_vocab_token_bytes(vocab), 2);
    (void)snprintf(with_special, sizeof with_special, "%s+", name);
    check_lines(vocab, "hf.txt", name, whole);
    check_lines(vocab, "hf.txt", with_special, whole);
    dpt_vocab_close(&vocab);
}

static void awkward_strings_gpt2(void **state)
{
    (void)state;
    check_recorded("hf_gpt2", 480, 0, true);
}

static void awkward_strings_llama3(void **state)
{
    (void)state;
    check_recorded("hf_llama3", 487, 482, true);
}

static void awkward_strings_smollm2(void **state)
{
    (void)state;
    check_recorded("hf_smollm2", 480, 0, false);
}

static void awkward_strings_odd(void **state)
{
    (void)state;
    check_recorded("hf_odd", 308, -1, false);
}

/* ---------------------------------------------------------------- cutting */

/* A text of drawn parts, some of them no UTF-8. */
static size_t draw_text(uint64_t seed, uint8_t *ret)
{
    static const char *const parts[] = {" ",    "  ",     "\n",    "\r\n",   "\n\n", "\t",
                                        "a",    "the",    "don't", "'LL",    "12",   "3.5",
                                        "!",    "?!\r\n", "...",   "\xff",   "\xc3", "é",
                                        "中文", "\u3000", "<a>",   "\u2028", "<|x|>"};
    enum { PARTS = sizeof parts / sizeof *parts, DRAWN = 40 };
    const struct dpt_rng_key key = dpt_rng_key(seed, DPT_RNG_TEST, 0, 0, 0);
    size_t n = 0;
    for (uint64_t i = 0; i < DRAWN; i++) {
        uint32_t block[4];
        dpt_philox(key, i, block);
        const char *part = parts[block[0] % PARTS];
        memcpy(ret + n, part, strlen(part));
        n += strlen(part);
    }
    return n;
}

/* A text cut where dpt_split_cut says gives the tokens of the whole. */
static void check_cuts(const char *name, enum dpt_cuts cuts)
{
    struct dpt_vocab *vocab = open_file(recorded(name));
    struct dpt_encoder *encoder = make_encoder(vocab);
    struct dpt_tokens whole = {0}, parts = {0};
    uint8_t text[1024];
    int n_cuts = 0;
    assert_int_equal(dpt_vocab_cuts(vocab), cuts);
    for (uint64_t seed = 0; seed < 1000; seed++) {
        const size_t bytes = draw_text(seed, text);
        whole.n = 0;
        encode_hf(encoder, text, bytes, &whole);
        for (size_t at = bytes; (at = dpt_split_cut(text, at, cuts)) > 0; n_cuts++) {
            parts.n = 0;
            encode_hf(encoder, text, at, &parts);
            encode_hf(encoder, text + at, bytes - at, &parts);
            if (parts.n != whole.n ||
                memcmp(parts.ids, whole.ids, whole.n * sizeof *whole.ids) != 0)
                fail_msg("%s, seed %llu: cut at byte %zu of %zu gives other tokens", name,
                         (unsigned long long)seed, at, bytes);
        }
    }
    assert_true(cuts == DPT_CUTS_NONE ? n_cuts == 0 : n_cuts > 1000);
    dpt_tokens_fini(&whole);
    dpt_tokens_fini(&parts);
    dpt_encoder_destroy(&encoder);
    dpt_vocab_close(&vocab);
}

static void cutting_changes_nothing(void **state)
{
    (void)state;
    check_cuts("hf_gpt2", DPT_CUTS_SPACES);
    check_cuts("hf_llama3", DPT_CUTS_BLANKS);
    check_cuts("hf_smollm2", DPT_CUTS_SPACES);
    check_cuts("hf_odd", DPT_CUTS_NONE);
}

/* ---------------------------------------------------------------- OpenAI's vocabulary */

/* JSON that grows. */
struct json {
    char *text;
    size_t n, room;
};

__attribute__((format(printf, 2, 3))) static void put(struct json *json, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const int n = vsnprintf(json->text + json->n, json->room - json->n, fmt, ap);
    va_end(ap);
    assert_true(n >= 0 && (size_t)n < json->room - json->n);
    json->n += (size_t)n;
}

static struct json make_json(size_t room)
{
    struct json json = {.text = malloc(room), .room = room};
    assert_non_null(json.text);
    return json;
}

/* The merges of vocab.bpe as strings. */
static void put_merges(struct json *json, char *bpe)
{
    char *rest;
    const char *before = "";
    (void)strtok_r(bpe, "\n", &rest);
    for (const char *line; (line = strtok_r(NULL, "\n", &rest)); before = ",") {
        put(json, "%s\"", before);
        for (; *line; line++)
            put(json, *line == '"' || *line == '\\' ? "\\%c" : "%c", *line);
        put(json, "\"");
    }
}

/* OpenAI's two files as a tokenizer.json: the recorded ids of tiktoken. */
static void openai_as_tokenizer_json(void **state)
{
    (void)state;
    char path[PATH_BYTES], bpe_path[512], json_path[512], *bpe, *json;
    size_t bpe_bytes, json_bytes;
    if (!test_data_path(bpe_path, sizeof bpe_path, "vocab.bpe") ||
        !test_data_path(json_path, sizeof json_path, "encoder.json"))
        skip();
    assert_int_equal(dpt_fs_read_file(bpe_path, 1 << 24, &bpe, &bpe_bytes, &err), DPT_OK);
    assert_int_equal(dpt_fs_read_file(json_path, 1 << 24, &json, &json_bytes, &err), DPT_OK);
    struct json form = make_json(4 * bpe_bytes + json_bytes + 1024);
    put(&form,
        "{\"added_tokens\":[{\"id\":50256,\"content\":\"<|endoftext|>\",\"special\":true}],"
        "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
        "\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"vocab\":%s,\"merges\":[",
        json);
    put_merges(&form, bpe);
    put(&form, "]}}");
    (void)snprintf(path, sizeof path, "%s/openai.json", root);
    assert_int_equal(dpt_fs_write_file_atomic(path, form.text, form.n, &err), DPT_OK);
    struct dpt_vocab *vocab = open_file(path);
    assert_int_equal(dpt_vocab_size(vocab), 50257);
    assert_int_equal(dpt_vocab_end_of_text(vocab), 50256);
    check_lines(vocab, "awkward.txt", "g", true);
    dpt_vocab_close(&vocab);
    free(form.text);
    free(json);
    free(bpe);
}

/* ---------------------------------------------------------------- ids above 65535 */

enum { FILLERS = 70000 };

/* FILLERS tokens that text never becomes, then the bytes as files write them, then "th". */
static const char *write_wide(void)
{
    static char path[PATH_BYTES];
    struct json json = make_json((FILLERS + 256) * 24 + 1024);
    int next = 0x100;
    put(&json, "{\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"decoder\":{\"type\":\"ByteLevel\"},"
               "\"model\":{\"type\":\"BPE\",\"merges\":[[\"t\",\"h\"]],\"vocab\":{");
    for (int i = 0; i < FILLERS; i++)
        put(&json, "\" %d\":%d,", i, i);
    for (int b = 0; b < 256; b++) {
        const bool seen = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        put(&json, "\"\\u%04x\":%d,", (unsigned)(seen ? b : next++), FILLERS + b);
    }
    put(&json, "\"th\":%d}}}", FILLERS + 256);
    (void)snprintf(path, sizeof path, "%s/wide.json", root);
    assert_int_equal(dpt_fs_write_file_atomic(path, json.text, json.n, &err), DPT_OK);
    free(json.text);
    return path;
}

/* A text by these tokens, as in training: as its shard in Llama 3's form would be read. */
static void wide_tokens(void **state)
{
    (void)state;
    enum { SEQ = 4 };
    static const char text[] = "the machines go";
    static struct dpt_config config;
    struct dpt_data_digest of_text, of_shard;
    struct dpt_data *data = NULL;
    uint32_t shard[256 + sizeof text] = {20240801, 7, sizeof text - 2};
    int32_t got[SEQ], targets[SEQ];
    char path[PATH_BYTES];
    const char *json = write_wide();
    struct dpt_vocab *vocab = open_file(json);
    assert_int_equal(dpt_vocab_token_bytes(vocab), 4);
    assert_int_equal(dpt_vocab_end_of_text(vocab), -1);
    dpt_vocab_close(&vocab);
    (void)snprintf(path, sizeof path, "%s/wide.txt", root);
    assert_int_equal(dpt_fs_write_file_atomic(path, text, sizeof text - 1, &err), DPT_OK);
    config.data.kind = DPT_DATA_TEXT;
    config.data.tokenizer = DPT_TOKENIZER_HF;
    config.model.vocab = FILLERS + 257;
    config.train.seq_len = SEQ;
    (void)snprintf(config.data.train, sizeof config.data.train, "%s", path);
    (void)snprintf(config.data.tokenizer_json, sizeof config.data.tokenizer_json, "%s", json);
    if (dpt_data_open(&config, &data, &err) != DPT_OK)
        fail_msg("%s", err.text);
    assert_int_equal(
        dpt_data_read(data, 0, 0, &(struct dpt_batch){.part = {got, targets}}, 0, &err), DPT_OK);
    assert_int_equal(got[0], FILLERS + 256);
    assert_int_equal(targets[0], FILLERS + 'e');
    assert_int_equal(dpt_data_digest(&config, &of_text, &err), DPT_OK);
    dpt_data_close(&data);
    shard[256] = FILLERS + 256;
    for (size_t i = 1; i < sizeof text - 2; i++)
        shard[256 + i] = FILLERS + (uint32_t)text[i + 1];
    (void)snprintf(path, sizeof path, "%s/wide.bin", root);
    assert_int_equal(dpt_fs_write_file_atomic(path, shard, 1024 + 4 * (sizeof text - 2), &err),
                     DPT_OK);
    config.data.kind = DPT_DATA_TOKENS;
    (void)snprintf(config.data.train, sizeof config.data.train, "%s", path);
    assert_int_equal(dpt_data_digest(&config, &of_shard, &err), DPT_OK);
    assert_string_equal(of_text.used, of_shard.used);
    config.data.kind = DPT_DATA_TEXT;
    config.model.vocab = FILLERS;
    assert_int_equal(dpt_data_open(&config, &data, &err), DPT_ECONFIG);
    assert_non_null(strstr(err.text, "/wide.json' need 70257 at least; set model.vocab: 70257"));
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

static int setup(void **state)
{
    (void)state;
    return test_make_dir(root, sizeof root, "hf-test") ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    return dpt_fs_remove_tree(root, NULL) == DPT_OK ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(awkward_strings_gpt2), TEST(awkward_strings_llama3),  TEST(awkward_strings_smollm2),
        TEST(awkward_strings_odd),  TEST(cutting_changes_nothing), TEST(openai_as_tokenizer_json),
        TEST(wide_tokens)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
