/* Fuzz target: files that are nearly a vocabulary: those of the tests with bytes overwritten,
 * inserted or removed as the input says. A file that opens encodes every byte and decodes it
 * again. */
#include "base/err.h"
#include "tests/fuzz/edited_file.h"
#include "tests/fuzz/fuzz.h"
#include "worker/data/tokenizer.h"

#include <string.h>

enum { EDITS_MAX = 16 };

/* The bytes one by one: each is a token, or no vocabulary would do. */
static void encode_bytes(const struct dpt_vocab *vocab)
{
    struct dpt_encoder *encoder = NULL;
    struct dpt_tokens tokens = {0};
    struct dpt_err err;
    uint8_t text[128];
    size_t at = 0;
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (uint8_t)i;
    DPT_ASSERT(dpt_encoder_create(vocab, &encoder, &err) == DPT_OK);
    DPT_ASSERT(dpt_encoder_encode(encoder, text, sizeof text, &tokens, &err) == DPT_OK);
    for (size_t i = 0; i < tokens.n; i++) {
        size_t n = 0;
        const uint8_t *piece = dpt_vocab_token(vocab, (int)tokens.ids[i], &n);
        DPT_ASSERT(piece != NULL && n <= sizeof text - at && memcmp(text + at, piece, n) == 0);
        at += n;
    }
    DPT_ASSERT(at == sizeof text);
    dpt_tokens_fini(&tokens);
    dpt_encoder_destroy(&encoder);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct edited_file bpe = {.fd = -1}, json = {.fd = -1};
    if (bpe.fd < 0) {
        edited_file_open(&bpe, DPT_RECORDED "/tiny.bpe");
        edited_file_open(&json, DPT_RECORDED "/tiny.json");
    }
    struct feed feed = feed_from(data, bytes);
    const uint8_t choice = feed_u8(&feed);
    edited_file_write(&bpe, &feed, choice % EDITS_MAX);
    edited_file_write(&json, &feed, choice / EDITS_MAX);
    const struct dpt_vocab_options options = {.kind = DPT_TOKENIZER_GPT2,
                                              .vocab_bpe = bpe.path,
                                              .encoder_json = json.path,
                                              .any_vocab = true};
    struct dpt_vocab *vocab = NULL;
    struct dpt_err err = {.status = DPT_OK};
    const enum dpt_status status = dpt_vocab_open(&options, &vocab, &err);
    DPT_ASSERT((status == DPT_OK) == (vocab != NULL));
    if (status == DPT_OK)
        encode_bytes(vocab);
    else
        DPT_ASSERT(err.text[0] != '\0' && status != DPT_ENOMEM);
    dpt_vocab_close(&vocab);
    return 0;
}
