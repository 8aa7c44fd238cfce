/* Encodes text to tokens, and tokens to text: bytes, GPT-2's byte pair encoding from OpenAI's two
 * files, or the byte pair encoding over bytes of Hugging Face's tokenizer.json.
 *
 * A dpt_vocab is read-only once open, and threads may share it; each thread has its own
 * dpt_encoder. */
#ifndef DPT_WORKER_DATA_TOKENIZER_H
#define DPT_WORKER_DATA_TOKENIZER_H

#include "base/config.h"
#include "base/err.h"
#include "base/hash.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    DPT_VOCAB_TOKENS_MAX = 1 << 24, /* the limit of model.vocab */
    DPT_VOCAB_FILE_BYTES_MAX = 16 << 20,
    DPT_TOKENIZER_JSON_BYTES_MAX = 256 << 20,
    DPT_ENCODE_BYTES_MAX = 256 << 20 /* limit of one call */
};

struct dpt_vocab;
struct dpt_encoder;

/* "bytes", "gpt2", "hf", as in the config. */
const char *dpt_tokenizer_name(enum dpt_tokenizer kind);
bool dpt_tokenizer_named(const char *name, enum dpt_tokenizer *ret);

struct dpt_vocab_options {
    enum dpt_tokenizer kind;
    /* For kind GPT2: the two files as OpenAI published them. Files with other contents are refused
     * unless `any_vocab`, because their tokens would differ from those of published models, shards
     * and tools. The form of the files is always checked. */
    const char *vocab_bpe, *encoder_json;
    bool any_vocab;
    const char *tokenizer_json; /* for kind HF */
    /* Errors name options of a command line (--tokenizer-json) instead of keys of the config
     * (data.tokenizer_json). */
    bool by_options;
};

/* Errors begin with the key or option of the file. DPT_ECONFIG: a file is not OpenAI's or not
 * given, or a tokenizer.json is malformed or has a member that is not supported
 * (dpt_vocab_load_hf in vocab.h).
 * DPT_ECORRUPT: a place in OpenAI's files is malformed. */
DPT_MUST_USE enum dpt_status dpt_vocab_open(const struct dpt_vocab_options *options,
                                            struct dpt_vocab **ret, struct dpt_err *err);
void dpt_vocab_close(struct dpt_vocab **vocab);

#define DPT_TOKENIZER_JSON "tokenizer.json" /* in a Hugging Face folder */

/* Whether the config's tokens are those of tokenizer.json in `folder`. True if the folder has no
 * such file. If a run on shards names no tokenizer, its tokens count as the folder's, because the
 * folder's weights fit no others. If the config names a tokenizer.json that exists, the contents of
 * the two files are compared. */
DPT_MUST_USE enum dpt_status dpt_tokenizer_is_of_folder(const struct dpt_config *config,
                                                        const char *folder, bool *ret,
                                                        struct dpt_err *err);

/* Tokens are 0 … size - 1: 256 of bytes, 50,257 of GPT-2, or those of a tokenizer.json with its
 * added tokens. */
int dpt_vocab_size(const struct dpt_vocab *vocab);

/* Bytes of a token in shards: 2 for a vocabulary of at most 65,536 tokens (the form of GPT-2's
 * shards), else 4 (Llama 3's). */
int dpt_vocab_token_bytes(const struct dpt_vocab *vocab);

/* The token between documents: <|endoftext|>; in a tokenizer.json the first of <|endoftext|>,
 * <|end_of_text|>, </s> and <eos> that is a special added token; -1: there is none. No text is
 * encoded as this token before dpt_encoder_take_special is called. */
int dpt_vocab_end_of_text(const struct dpt_vocab *vocab);

/* The places where a text may be cut so that its parts, encoded alone, give the tokens of the
 * whole. */
enum dpt_cuts {
    DPT_CUTS_ANYWHERE, /* tokens are bytes */
    DPT_CUTS_SPACES,   /* before ASCII white space that follows no white space */
    DPT_CUTS_BLANKS,   /* before a blank that follows no white space */
    DPT_CUTS_NONE      /* not known */
};
enum dpt_cuts dpt_vocab_cuts(const struct dpt_vocab *vocab);

/* A hash of everything that decides the tokens of a text: equal for equal vocabularies. */
void dpt_vocab_digest(const struct dpt_vocab *vocab, char ret_hex[DPT_HASH_HEX_BYTES]);

/* The bytes of `token`, owned by the vocabulary, not terminated; NULL: there is no such token. The
 * text of several tokens is their bytes in a row; the bytes of one token need not be valid UTF-8.
 */
const uint8_t *dpt_vocab_token(const struct dpt_vocab *vocab, int token, size_t *ret_bytes);

/* A growing list of tokens. Zero-initialise; free with dpt_tokens_fini. */
struct dpt_tokens {
    uint32_t *ids;
    size_t n, room;
};
void dpt_tokens_fini(struct dpt_tokens *tokens);

/* Adds one token; DPT_ENOMEM. */
DPT_MUST_USE enum dpt_status dpt_tokens_add(struct dpt_tokens *tokens, uint32_t id,
                                            struct dpt_err *err);

/* The encoder borrows the vocabulary. */
DPT_MUST_USE enum dpt_status dpt_encoder_create(const struct dpt_vocab *vocab,
                                                struct dpt_encoder **ret, struct dpt_err *err);
void dpt_encoder_destroy(struct dpt_encoder **encoder);

/* Prepares the encoder for prompts: from now on special tokens of a tokenizer.json (for example
 * <|im_start|>) that are written in a text become those tokens. Without this call they are ordinary
 * text, so that training data cannot imitate the end of a document. Added tokens that are not
 * special always become tokens. */
void dpt_encoder_take_special(struct dpt_encoder *encoder);

/* Appends the tokens of `text`, at most DPT_ENCODE_BYTES_MAX bytes, to `tokens`.
 *   - BYTES: the tokens are the bytes.
 *   - GPT2: the tokens are those of OpenAI's encoder for the text decoded as UTF-8 with
 *     errors="replace". Each maximal subpart of invalid UTF-8 counts as U+FFFD
 *     (worker/data/utf8.h), and dpt_encoder_replaced counts them. "<|endoftext|>" in the text is
 *     encoded like any text.
 *   - HF: the tokens are those of the package tokenizers with add_special_tokens=False, which
 *     adds no token before or after the text, and with encode_special_tokens=True, unless
 *     dpt_encoder_take_special was called.
 * A word of more than 16 MiB is DPT_EOVERFLOW. */
DPT_MUST_USE enum dpt_status dpt_encoder_encode(struct dpt_encoder *encoder, const void *text,
                                                size_t bytes, struct dpt_tokens *tokens,
                                                struct dpt_err *err);
int64_t dpt_encoder_replaced(const struct dpt_encoder *encoder);

#endif
