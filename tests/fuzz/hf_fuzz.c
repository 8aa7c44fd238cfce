/* Fuzz target: files that are nearly a tokenizer.json: those of the tests with edits. A file that
 * opens encodes the rest of the input, with special tokens as text and as tokens; every id is a
 * token. */
#include "base/err.h"
#include "tests/fuzz/edited_file.h"
#include "tests/fuzz/fuzz.h"
#include "worker/data/tokenizer.h"

enum { EDITS_MAX = 16 };

static const char *const paths[] = {DPT_RECORDED "/hf_gpt2.json", DPT_RECORDED "/hf_llama3.json",
                                    DPT_RECORDED "/hf_smollm2.json", DPT_RECORDED "/hf_odd.json"};
enum { FILES = sizeof paths / sizeof *paths };

static void encode_whole(const struct dpt_vocab *vocab, struct dpt_encoder *encoder,
                         const uint8_t *text, size_t bytes)
{
    struct dpt_tokens tokens = {0};
    struct dpt_err err;
    const enum dpt_status status = dpt_encoder_encode(encoder, text, bytes, &tokens, &err);
    DPT_ASSERT(status == DPT_OK || status == DPT_EOVERFLOW); /* a pattern without an end */
    for (size_t i = 0; i < tokens.n; i++) {
        size_t n = 0;
        DPT_ASSERT(dpt_vocab_token(vocab, (int)tokens.ids[i], &n) != NULL && n > 0);
    }
    dpt_tokens_fini(&tokens);
}

static void use_vocab(const struct dpt_vocab *vocab, const uint8_t *text, size_t bytes)
{
    struct dpt_encoder *encoder = NULL;
    struct dpt_err err;
    char digest[DPT_HASH_HEX_BYTES];
    DPT_ASSERT(dpt_vocab_end_of_text(vocab) < dpt_vocab_size(vocab));
    dpt_vocab_digest(vocab, digest);
    DPT_ASSERT(dpt_encoder_create(vocab, &encoder, &err) == DPT_OK);
    encode_whole(vocab, encoder, text, bytes);
    dpt_encoder_take_special(encoder);
    encode_whole(vocab, encoder, text, bytes);
    dpt_encoder_destroy(&encoder);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct edited_file files[FILES] = {{.fd = -1}, {.fd = -1}, {.fd = -1}, {.fd = -1}};
    struct feed feed = feed_from(data, bytes);
    const uint8_t choice = feed_u8(&feed);
    struct edited_file *file = &files[choice % FILES];
    if (file->fd < 0)
        edited_file_open(file, paths[choice % FILES]);
    edited_file_write(file, &feed, choice / FILES % EDITS_MAX);
    const struct dpt_vocab_options options = {.kind = DPT_TOKENIZER_HF,
                                              .tokenizer_json = file->path};
    struct dpt_vocab *vocab = NULL;
    struct dpt_err err = {.status = DPT_OK};
    const enum dpt_status status = dpt_vocab_open(&options, &vocab, &err);
    DPT_ASSERT((status == DPT_OK) == (vocab != NULL));
    if (status == DPT_OK) {
        const uint8_t *text = feed_rest(&feed, &bytes);
        use_vocab(vocab, text, bytes);
    } else {
        DPT_ASSERT(err.text[0] != '\0' && status == DPT_ECONFIG);
    }
    dpt_vocab_close(&vocab);
    return 0;
}
