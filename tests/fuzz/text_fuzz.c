/* Fuzz target: any bytes as text for the tokenizers. The tokens decode to the text, with U+FFFD for
 * invalid UTF-8; if the text may be cut, the tokens of the parts are those of the whole. The
 * vocabulary is the small one of the tests. */
#include "tests/fuzz/fuzz.h"
#include "worker/data/split.h"
#include "worker/data/tokenizer.h"
#include "worker/data/utf8.h"

#include <stdlib.h>
#include <string.h>

enum { TEXT_BYTES_MAX = 2048 };

static struct dpt_vocab *open_vocab(void)
{
    const struct dpt_vocab_options options = {.kind = DPT_TOKENIZER_GPT2,
                                              .vocab_bpe = DPT_RECORDED "/tiny.bpe",
                                              .encoder_json = DPT_RECORDED "/tiny.json",
                                              .any_vocab = true};
    struct dpt_vocab *vocab = NULL;
    struct dpt_err err;
    DPT_ASSERT(dpt_vocab_open(&options, &vocab, &err) == DPT_OK);
    return vocab;
}

static void encode_text(struct dpt_encoder *encoder, const uint8_t *text, size_t bytes,
                        struct dpt_tokens *tokens)
{
    struct dpt_err err;
    DPT_ASSERT(dpt_encoder_encode(encoder, text, bytes, tokens, &err) == DPT_OK);
}

static void check_decodes(const struct dpt_vocab *vocab, const struct dpt_tokens *tokens,
                          const uint8_t *text, size_t bytes)
{
    size_t at = 0;
    for (size_t i = 0; i < tokens->n; i++) {
        size_t n = 0;
        const uint8_t *piece = dpt_vocab_token(vocab, (int)tokens->ids[i], &n);
        DPT_ASSERT(piece != NULL && n > 0 && (int)tokens->ids[i] != dpt_vocab_end_of_text(vocab));
        DPT_ASSERT(n <= bytes - at && memcmp(text + at, piece, n) == 0);
        at += n;
    }
    DPT_ASSERT(at == bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct dpt_vocab *vocab;
    static struct dpt_encoder *encoder;
    static uint8_t repaired[3 * TEXT_BYTES_MAX];
    struct dpt_tokens whole = {0}, parts = {0};
    struct dpt_err err;
    if (vocab == NULL) {
        vocab = open_vocab();
        DPT_ASSERT(dpt_encoder_create(vocab, &encoder, &err) == DPT_OK);
    }
    if (bytes == 0 || bytes > TEXT_BYTES_MAX)
        return 0;
    uint8_t *text = malloc(bytes); /* exact, so that a byte too far is seen */
    DPT_ASSERT(text != NULL);
    memcpy(text, data, bytes);
    int64_t replaced = 0;
    const int64_t replaced_before = dpt_encoder_replaced(encoder);
    const size_t valid = dpt_utf8_valid(text, bytes);
    const size_t n = dpt_utf8_repair(text, bytes, repaired, &replaced);
    DPT_ASSERT(valid <= bytes && (valid == bytes) == (replaced == 0));
    DPT_ASSERT(dpt_utf8_valid(repaired, n) == n && memcmp(repaired, text, valid) == 0);
    encode_text(encoder, text, bytes, &whole);
    DPT_ASSERT(dpt_encoder_replaced(encoder) - replaced_before == replaced);
    check_decodes(vocab, &whole, repaired, n);
    const size_t cut = dpt_split_cut(text, bytes, DPT_CUTS_SPACES);
    DPT_ASSERT(cut <= bytes);
    if (cut > 0) {
        encode_text(encoder, text, cut, &parts);
        encode_text(encoder, text + cut, bytes - cut, &parts);
        DPT_ASSERT(parts.n == whole.n &&
                   memcmp(parts.ids, whole.ids, whole.n * sizeof whole.ids[0]) == 0);
    }
    dpt_tokens_fini(&whole);
    dpt_tokens_fini(&parts);
    free(text);
    return 0;
}
