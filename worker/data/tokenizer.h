/* How text becomes tokens and tokens text: bytes, or GPT-2's byte pair encoding.
 *
 * A dpt_vocab is read-only once open and may be shared by threads; each thread encodes with a
 * dpt_encoder of its own. */
#ifndef DPT_WORKER_DATA_TOKENIZER_H
#define DPT_WORKER_DATA_TOKENIZER_H

#include "base/config.h"
#include "base/err.h"
#include "base/hash.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    DPT_VOCAB_TOKENS_MAX = 65536, /* a token is 16 bits */
    DPT_VOCAB_FILE_BYTES_MAX = 16 << 20,
    DPT_ENCODE_BYTES_MAX = 256 << 20 /* of one call */
};

struct dpt_vocab;
struct dpt_encoder;

struct dpt_vocab_options {
    enum dpt_tokenizer kind;
    /* Of kind GPT2: the files as OpenAI published them. Files with other contents are refused
     * unless `any_vocab`, because they would quietly give other tokens than those of the models,
     * shards and tools that the user's tokens will meet. Their form is checked in any case. */
    const char *vocab_bpe, *encoder_json;
    bool any_vocab;
};

/* DPT_ECONFIG names the file that is not OpenAI's or not given; DPT_ECORRUPT the place in a file
 * that cannot be understood. */
DPT_MUST_USE enum dpt_status dpt_vocab_open(const struct dpt_vocab_options *options,
                                            struct dpt_vocab **ret, struct dpt_err *err);
void dpt_vocab_close(struct dpt_vocab **vocab);

/* Tokens are 0 … size - 1: 256 of bytes, 50,257 of GPT-2. */
int dpt_vocab_size(const struct dpt_vocab *vocab);

/* The token <|endoftext|>, which text never encodes to; -1 when there is none (bytes). */
int dpt_vocab_end_of_text(const struct dpt_vocab *vocab);

/* A hash of all that decides about tokens: equal for equal vocabularies. */
void dpt_vocab_digest(const struct dpt_vocab *vocab, char ret_hex[DPT_HASH_HEX_BYTES]);

/* The bytes that `token` stands for, owned by the vocabulary, not terminated; text decodes to
 * those of its tokens in a row (which need not be valid UTF-8 when cut anywhere). NULL when there
 * is no such token. */
const uint8_t *dpt_vocab_token(const struct dpt_vocab *vocab, int token, size_t *ret_bytes);

/* A growing list of tokens. Zero-initialise; free with dpt_tokens_fini. */
struct dpt_tokens {
    uint16_t *ids;
    size_t n, room;
};
void dpt_tokens_fini(struct dpt_tokens *tokens);

/* Adds one token; DPT_ENOMEM. */
DPT_MUST_USE enum dpt_status dpt_tokens_add(struct dpt_tokens *tokens, uint16_t id,
                                            struct dpt_err *err);

/* The encoder borrows the vocabulary. */
DPT_MUST_USE enum dpt_status dpt_encoder_create(const struct dpt_vocab *vocab,
                                                struct dpt_encoder **ret, struct dpt_err *err);
void dpt_encoder_destroy(struct dpt_encoder **encoder);

/* Appends the tokens of `text`, at most DPT_ENCODE_BYTES_MAX bytes, to `tokens`. Byte tokens are
 * the bytes. GPT-2's are those of OpenAI's encoder for the text decoded as UTF-8 with
 * errors="replace": each maximal subpart of invalid UTF-8 counts as U+FFFD (worker/data/utf8.h),
 * and dpt_encoder_replaced counts them. "<|endoftext|>" in the text is encoded like any text. A
 * word of more than 16 MiB is DPT_EOVERFLOW. */
DPT_MUST_USE enum dpt_status dpt_encoder_encode(struct dpt_encoder *encoder, const void *text,
                                                size_t bytes, struct dpt_tokens *tokens,
                                                struct dpt_err *err);
int64_t dpt_encoder_replaced(const struct dpt_encoder *encoder);

#endif
