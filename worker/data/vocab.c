/* Vocabularies: that of bytes, the life of any, and what a token stands for. */
#include "worker/data/vocab.h"

#include <stdlib.h>

static enum dpt_status no_memory(struct dpt_err *err)
{
    return dpt_fail(err, DPT_ENOMEM, "tokenizer: out of memory");
}

static enum dpt_status make_bytes(struct dpt_vocab *vocab, struct dpt_err *err)
{
    vocab->texts = calloc(DPT_BYTES, sizeof *vocab->texts);
    vocab->bytes = malloc(DPT_BYTES);
    if (!vocab->texts || !vocab->bytes)
        return no_memory(err);
    for (int i = 0; i < DPT_BYTES; i++) {
        vocab->bytes[i] = (uint8_t)i;
        vocab->texts[i] = (struct dpt_token_text){(uint32_t)i, 1};
        vocab->of_byte[i] = (uint16_t)i;
    }
    vocab->n_tokens = DPT_BYTES;
    vocab->end_of_text = -1;
    return DPT_OK;
}

enum dpt_status dpt_vocab_open(const struct dpt_vocab_options *options, struct dpt_vocab **ret,
                               struct dpt_err *err)
{
    struct dpt_vocab *vocab = calloc(1, sizeof *vocab);
    if (!vocab)
        return no_memory(err);
    vocab->kind = options->kind;
    enum dpt_status status = options->kind == DPT_TOKENIZER_BYTES
                                 ? make_bytes(vocab, err)
                                 : dpt_vocab_load(vocab, options, err);
    if (status != DPT_OK)
        dpt_vocab_close(&vocab);
    else
        *ret = vocab;
    return status;
}

void dpt_vocab_close(struct dpt_vocab **vocab)
{
    if (!*vocab)
        return;
    free((*vocab)->texts);
    free((*vocab)->bytes);
    free((*vocab)->merges);
    free(*vocab);
    *vocab = NULL;
}

int dpt_vocab_size(const struct dpt_vocab *vocab)
{
    return vocab->n_tokens;
}

int dpt_vocab_end_of_text(const struct dpt_vocab *vocab)
{
    return vocab->end_of_text;
}

const uint8_t *dpt_vocab_token(const struct dpt_vocab *vocab, int token, size_t *ret_bytes)
{
    if (token < 0 || token >= vocab->n_tokens)
        return NULL;
    *ret_bytes = vocab->texts[token].bytes;
    return vocab->bytes + vocab->texts[token].at;
}

void dpt_vocab_digest(const struct dpt_vocab *vocab, char ret_hex[DPT_HASH_HEX_BYTES])
{
    size_t bytes = 0;
    for (int i = 0; i < vocab->n_tokens; i++)
        bytes += vocab->texts[i].bytes;
    const struct dpt_hash128 parts[] = {
        dpt_hash128(vocab->bytes, bytes),
        dpt_hash128(vocab->texts, (size_t)vocab->n_tokens * sizeof *vocab->texts),
        dpt_hash128(vocab->merges,
                    vocab->merges ? ((size_t)vocab->merges_mask + 1) * sizeof *vocab->merges : 0)};
    dpt_hash128_hex(dpt_hash128(parts, sizeof parts), ret_hex);
}
