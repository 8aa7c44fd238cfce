/* The members of a vocabulary: the bytes of each token, the pairs of tokens that merge, and the
 * steps and added tokens by which a text is cut. */
#ifndef DPT_WORKER_DATA_VOCAB_H
#define DPT_WORKER_DATA_VOCAB_H

#include "worker/data/tokenizer.h"

enum { DPT_BYTES = 256 };
#define DPT_RANK_NONE  UINT32_MAX
#define DPT_TOKEN_NONE UINT32_MAX

struct dpt_pattern;

/* A slot of the table of merges: the pair (left, right) becomes token `id`. */
struct dpt_merge {
    uint64_t pair; /* left << 32 | right */
    uint32_t rank; /* place in the list: the lowest merges first; DPT_RANK_NONE: empty slot */
    uint32_t id;
};

/* Where a token's bytes lie in `bytes`. */
struct dpt_token_text {
    uint32_t at, bytes;
};

/* A step cuts each piece that the step before it left, as the pre-tokenizers of tokenizer.json do.
 */
enum dpt_step_kind {
    DPT_STEP_GPT2,    /* dpt_split_next */
    DPT_STEP_DIGITS,  /* dpt_split_digits_next */
    DPT_STEP_PATTERN, /* the matches of the pattern, and the text between them */
    DPT_STEP_PREFIX   /* cuts nothing: a blank is put before a piece that does not begin with one */
};
struct dpt_step {
    enum dpt_step_kind kind;
    bool each;                   /* DIGITS: every digit is a piece */
    struct dpt_pattern *pattern; /* PATTERN: owned by the vocabulary */
};
enum { DPT_STEPS_MAX = 16 };

/* A token that is searched for in a text before the text is cut. */
struct dpt_added {
    uint32_t id;
    uint32_t bytes; /* of its text */
    uint8_t first;  /* the first byte of its text */
    bool special;
    bool late; /* searched for in the second pass, between the added tokens of the first */
};
enum { DPT_ADDED_PASSES = 2, DPT_ADDED_MAX = 65536 };

struct dpt_vocab {
    enum dpt_tokenizer kind;
    int n_tokens, end_of_text;
    struct dpt_token_text *texts; /* (n_tokens) */
    uint8_t *bytes;               /* (n_bytes) of all tokens */
    uint32_t n_bytes;
    uint32_t of_byte[DPT_BYTES]; /* the token of each single byte; DPT_TOKEN_NONE: none */
    struct dpt_merge *merges;    /* (merges_mask + 1), a power of two, open addressing */
    uint32_t merges_mask;
    /* Hash table by the bytes of a token (names_mask + 1): token + 1, or 0 in an empty slot. NULL:
     * the vocabulary does not need it. */
    uint32_t *names;
    uint32_t names_mask;
    bool ignore_merges; /* a piece with the bytes of a token becomes that token, without merges */
    struct dpt_step steps[DPT_STEPS_MAX];
    int n_steps;
    struct dpt_added *added;    /* (n_added) by pass, then first byte, then the longest first */
    int n_added, n_added_plain; /* number of all, and of those that are not special */
    int added_at[DPT_ADDED_PASSES][DPT_BYTES + 1]; /* index in `added` for each first byte */
    enum dpt_cuts cuts;
};

/* The token with these bytes; -1: there is no such token. Needs the names. */
int dpt_vocab_find(const struct dpt_vocab *vocab, const uint8_t *bytes, size_t n);

/* Fills a zeroed vocabulary from GPT-2's two files. dpt_vocab_close frees it, also after an error.
 */
DPT_MUST_USE enum dpt_status dpt_vocab_load_gpt2(struct dpt_vocab *vocab,
                                                 const struct dpt_vocab_options *options,
                                                 struct dpt_err *err);

/* Fills a zeroed vocabulary from a tokenizer.json of Hugging Face's tokenizers: byte-level byte
 * pair encoding, as GPT-2, Llama 3 and SmolLM2 have it. dpt_vocab_close frees it, also after an
 * error.
 *
 *   model          BPE: vocab, merges ("a b" or ["a", "b"]), unk_token, ignore_merges
 *   pre_tokenizer  ByteLevel (add_prefix_space, use_regex), alone or last in a Sequence after
 *                  Split (a Regex that worker/data/split_pattern.h takes; Isolated, not inverted)
 * and Digits (individual_digits) normalizer     null, or a Sequence of none added_tokens   special
 * or not, normalized or not decoder        ByteLevel post_processor ByteLevel, TemplateProcessing
 * or a Sequence of both: without effect, because they add special tokens, and text is encoded
 * without them truncation, padding: without effect, because they are for batches of requests
 *
 * Other members that would change a token (a normalizer, dropout, byte_fallback, fuse_unk, a prefix
 * or suffix of subwords, lstrip, rstrip and single_word of an added token, all other types) are
 * DPT_ECONFIG: one line with the key or option, the file and the place in it. Ids are 0 … n - 1,
 * each once. */
DPT_MUST_USE enum dpt_status dpt_vocab_load_hf(struct dpt_vocab *vocab,
                                               const struct dpt_vocab_options *options,
                                               struct dpt_err *err);

/* Sorts vocab->added and fills vocab->added_at and n_added_plain. */
void dpt_added_sort(struct dpt_vocab *vocab);

/* The first added token of a pass at or after *at; of several that begin there, the longest. NULL:
 * there is none. *at becomes the token's position, *ret_bytes its length. */
const struct dpt_added *dpt_added_next(const struct dpt_vocab *vocab, int pass, const uint8_t *text,
                                       size_t bytes, size_t *at, size_t *ret_bytes);

/* The slot of the pair's merge, or an empty slot. */
static inline const struct dpt_merge *dpt_vocab_merge(const struct dpt_vocab *vocab, uint32_t left,
                                                      uint32_t right)
{
    const uint64_t pair = (uint64_t)left << 32 | right;
    uint32_t at = (uint32_t)((pair * 0x9e3779b97f4a7c15u) >> 32) & vocab->merges_mask;
    while (vocab->merges[at].rank != DPT_RANK_NONE && vocab->merges[at].pair != pair)
        at = (at + 1) & vocab->merges_mask;
    return &vocab->merges[at];
}

#endif
