/* Opens and closes vocabularies; the vocabulary of bytes, the bytes of a token, the digest. */
#include "worker/data/vocab.h"

#include "worker/data/split_pattern.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[] = {
    [DPT_TOKENIZER_BYTES] = "bytes", [DPT_TOKENIZER_GPT2] = "gpt2", [DPT_TOKENIZER_HF] = "hf"};
enum { NAMES = sizeof names / sizeof *names };

const char *dpt_tokenizer_name(enum dpt_tokenizer kind)
{
    return names[kind];
}

bool dpt_tokenizer_named(const char *name, enum dpt_tokenizer *ret)
{
    for (int i = 0; i < NAMES; i++)
        if (strcmp(names[i], name) == 0) {
            *ret = (enum dpt_tokenizer)i;
            return true;
        }
    return false;
}

static enum dpt_status fill_byte_vocab(struct dpt_vocab *vocab, struct dpt_err *err)
{
    vocab->texts = calloc(DPT_BYTES, sizeof *vocab->texts);
    vocab->bytes = malloc(DPT_BYTES);
    if (!vocab->texts || !vocab->bytes)
        return dpt_fail_nomem(err, "tokenizer");
    for (int i = 0; i < DPT_BYTES; i++) {
        vocab->bytes[i] = (uint8_t)i;
        vocab->texts[i] = (struct dpt_token_text){(uint32_t)i, 1};
        vocab->of_byte[i] = (uint32_t)i;
    }
    vocab->n_tokens = DPT_BYTES;
    vocab->n_bytes = DPT_BYTES;
    vocab->end_of_text = -1;
    vocab->cuts = DPT_CUTS_ANYWHERE;
    return DPT_OK;
}

enum dpt_status dpt_vocab_open(const struct dpt_vocab_options *options, struct dpt_vocab **ret,
                               struct dpt_err *err)
{
    struct dpt_vocab *vocab = calloc(1, sizeof *vocab);
    if (!vocab)
        return dpt_fail_nomem(err, "tokenizer");
    vocab->kind = options->kind;
    enum dpt_status status = options->kind == DPT_TOKENIZER_BYTES ? fill_byte_vocab(vocab, err)
                             : options->kind == DPT_TOKENIZER_HF
                                 ? dpt_vocab_load_hf(vocab, options, err)
                                 : dpt_vocab_load_gpt2(vocab, options, err);
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
    free((*vocab)->names);
    free((*vocab)->added);
    for (int i = 0; i < (*vocab)->n_steps; i++)
        dpt_pattern_free(&(*vocab)->steps[i].pattern);
    free(*vocab);
    *vocab = NULL;
}

int dpt_vocab_size(const struct dpt_vocab *vocab)
{
    return vocab->n_tokens;
}

int dpt_vocab_token_bytes(const struct dpt_vocab *vocab)
{
    return vocab->n_tokens <= UINT16_MAX + 1 ? 2 : 4;
}

enum dpt_cuts dpt_vocab_cuts(const struct dpt_vocab *vocab)
{
    return vocab->cuts;
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

/* The hash of the members of a tokenizer.json other than tokens and merges. */
static struct dpt_hash128 hash_of_hf(const struct dpt_vocab *vocab)
{
    struct dpt_hash128 parts[DPT_STEPS_MAX + 3] = {
        dpt_hash128(vocab->of_byte, sizeof vocab->of_byte),
        dpt_hash128(&vocab->ignore_merges, sizeof vocab->ignore_merges)};
    for (int i = 0; i < vocab->n_steps; i++) {
        const struct dpt_step *step = &vocab->steps[i];
        char text[DPT_PATTERN_BYTES_MAX + 2];
        const int n = snprintf(text, sizeof text, "%c%s", '0' + 2 * (int)step->kind + step->each,
                               step->pattern ? dpt_pattern_text(step->pattern) : "");
        parts[2 + i] = dpt_hash128(text, (size_t)n);
    }
    struct dpt_hash128 *added = &parts[2 + vocab->n_steps];
    for (int i = 0; i < vocab->n_added; i++) {
        const struct dpt_added *a = &vocab->added[i];
        const uint64_t next[] = {added->hi, added->lo, a->id, (uint64_t)a->special << 1 | a->late};
        *added = dpt_hash128(next, sizeof next);
    }
    return dpt_hash128(parts, sizeof parts);
}

void dpt_vocab_digest(const struct dpt_vocab *vocab, char ret_hex[DPT_HASH_HEX_BYTES])
{
    const struct dpt_hash128 parts[] = {
        dpt_hash128(vocab->bytes, vocab->n_bytes),
        dpt_hash128(vocab->texts, (size_t)vocab->n_tokens * sizeof *vocab->texts),
        dpt_hash128(vocab->merges,
                    vocab->merges ? ((size_t)vocab->merges_mask + 1) * sizeof *vocab->merges : 0),
        vocab->kind == DPT_TOKENIZER_HF ? hash_of_hf(vocab) : (struct dpt_hash128){0, 0}};
    const size_t n = vocab->kind == DPT_TOKENIZER_HF ? 4 : 3;
    dpt_hash128_hex(dpt_hash128(parts, n * sizeof *parts), ret_hex);
}
