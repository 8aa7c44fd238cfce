/* A vocabulary from inside: what each token is, and which pairs of tokens merge. */
#ifndef DPT_WORKER_DATA_VOCAB_H
#define DPT_WORKER_DATA_VOCAB_H

#include "worker/data/tokenizer.h"

enum { DPT_BYTES = 256 };
#define DPT_RANK_NONE  UINT32_MAX
#define DPT_TOKEN_NONE UINT32_MAX

struct dpt_pattern;

/* A slot of the table of merges: the pair left, right becomes `id`. */
struct dpt_merge {
    uint64_t pair; /* left << 32 | right */
    uint32_t rank; /* place in the list: the lowest merges first; DPT_RANK_NONE: empty slot */
    uint32_t id;
};

/* Where a token's bytes lie in `bytes`. */
struct dpt_token_text {
    uint32_t at, bytes;
};

/* A step that cuts each piece that the one before it left, as the pre-tokenizers of tokenizer.json
 * do. */
enum dpt_step_kind {
    DPT_STEP_GPT2,    /* dpt_split_next */
    DPT_STEP_DIGITS,  /* dpt_split_digits_next */
    DPT_STEP_PATTERN, /* its matches, and what lies between them */
    DPT_STEP_PREFIX   /* cuts nothing: a blank is put before the piece if it begins with none */
};
struct dpt_step {
    enum dpt_step_kind kind;
    bool each;                   /* DIGITS: every digit is a piece */
    struct dpt_pattern *pattern; /* PATTERN: owned by the vocabulary */
};
enum { DPT_STEPS_MAX = 16 };

/* A token that is looked for in the text before it is cut. */
struct dpt_added {
    uint32_t id;
    uint32_t bytes; /* of its text */
    uint8_t first;  /* of them */
    bool special;
    bool late; /* looked for after, and between, those that are not */
};
enum { DPT_ADDED_PASSES = 2, DPT_ADDED_MAX = 65536 };

/* Fields of kind HF follow those of all. */
struct dpt_vocab {
    enum dpt_tokenizer kind;
    int n_tokens, end_of_text;
    struct dpt_token_text *texts; /* (n_tokens) */
    uint8_t *bytes;
    uint32_t of_byte[DPT_BYTES]; /* the token of each single byte; DPT_TOKEN_NONE: left out */
    struct dpt_merge *merges;    /* (merges_mask + 1), a power of two, open addressing */
    uint32_t merges_mask;
    uint32_t *names; /* (names_mask + 1) token + 1 by its bytes, 0: empty; NULL: not needed */
    uint32_t names_mask;

    bool ignore_merges; /* a piece that is a token is that token, however it could be merged */
    struct dpt_step steps[DPT_STEPS_MAX];
    int n_steps;
    struct dpt_added *added;    /* (n_added) by pass, then first byte, then the longest first */
    int n_added, n_added_plain; /* not special */
    int added_at[DPT_ADDED_PASSES][DPT_BYTES + 1]; /* where those of each first byte begin */
    enum dpt_cuts cuts;
};

/* The token whose bytes these are, -1 when there is none; needs the names. */
int dpt_vocab_find(const struct dpt_vocab *vocab, const uint8_t *bytes, size_t n);

/* Fills a zeroed vocabulary from the two files; what it allocated is dpt_vocab_close's to free
 * also when it fails. */
DPT_MUST_USE enum dpt_status dpt_vocab_load(struct dpt_vocab *vocab,
                                            const struct dpt_vocab_options *options,
                                            struct dpt_err *err);

/* The merge of a pair: its slot, or an empty one. */
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
