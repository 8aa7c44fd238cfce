/* tokenizer.json: the ids of the package tokenizers on awkward strings, in the forms of GPT-2,
 * Llama 3 and SmolLM2 and in an odd one; what text becomes where it is cut; files that are refused.
 * recorded/hf_*.json and hf.txt are made by record_hf.py. */
#include "worker/data/tokenizer.h"

#include "base/fs.h"
#include "tests/tmp.h"
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

static void encode(struct dpt_encoder *encoder, const void *text, size_t bytes,
                   struct dpt_tokens *tokens)
{
    if (dpt_encoder_encode(encoder, text, bytes, tokens, &err) != DPT_OK)
        fail_msg("%s", err.text);
}

static size_t decode(const struct dpt_vocab *vocab, const struct dpt_tokens *tokens, uint8_t *ret)
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
    encode(encoder, text, bytes, &tokens);
    for (; (id = strtok_r(NULL, " ", &rest)); i++)
        if (i >= tokens.n || tokens.ids[i] != strtoul(id, NULL, 10))
            fail_msg("%s, text %s: token %zu of %zu is not %s", name, hex, i, tokens.n, id);
    if (i != tokens.n)
        fail_msg("%s, text %s: %zu tokens, not %zu", name, hex, tokens.n, i);
    if (whole) {
        const size_t n = dpt_utf8_repair(text, bytes, repaired, &replaced);
        assert_int_equal(decode(vocab, &tokens, decoded), n);
        assert_memory_equal(decoded, repaired, n);
    }
    dpt_tokens_fini(&tokens);
}

/* Every line of `name`, twice: the second time from the encoder's memory. */
static void check_lines(const struct dpt_vocab *vocab, const char *name, bool special, bool whole)
{
    char *text, *rest;
    size_t bytes;
    int lines = 0;
    struct dpt_encoder *encoder = make_encoder(vocab);
    const size_t n = strlen(name);
    if (special)
        dpt_encoder_take_special(encoder);
    for (int pass = 0; pass < 2; pass++) {
        assert_int_equal(dpt_fs_read_file(DPT_RECORDED "/hf.txt", 1 << 24, &text, &bytes, &err),
                         DPT_OK);
        for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
            if (strncmp(line, name, n) == 0 && strncmp(line + n, special ? "+ " : " ", 1) == 0) {
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
    struct dpt_vocab *vocab = open_file(recorded(name));
    assert_int_equal(dpt_vocab_size(vocab), size);
    assert_int_equal(dpt_vocab_end_of_text(vocab), end_of_text);
    assert_int_equal(dpt_vocab_token_bytes(vocab), 2);
    check_lines(vocab, name, false, whole);
    check_lines(vocab, name, true, whole);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(awkward_strings_gpt2), cmocka_unit_test(awkward_strings_llama3),
        cmocka_unit_test(awkward_strings_smollm2), cmocka_unit_test(awkward_strings_odd)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
