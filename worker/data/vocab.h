/* A vocabulary from inside: what each token is, and which pairs of tokens merge. */
#ifndef DPT_WORKER_DATA_VOCAB_H
#define DPT_WORKER_DATA_VOCAB_H

#include "worker/data/tokenizer.h"

enum { DPT_BYTES = 256, DPT_RANK_NONE = 0xffff };

/* A slot of the table of merges: the pair left, right becomes `id`. */
struct dpt_merge {
    uint32_t pair; /* left << 16 | right */
    uint16_t rank; /* place in vocab.bpe: the lowest merges first; DPT_RANK_NONE: empty slot */
    uint16_t id;
};

/* Where a token's bytes lie in `bytes`. */
struct dpt_token_text {
    uint32_t at, bytes;
};

struct dpt_vocab {
    enum dpt_tokenizer kind;
    int n_tokens, end_of_text;
    struct dpt_token_text *texts; /* (n_tokens) */
    uint8_t *bytes;
    uint16_t of_byte[DPT_BYTES]; /* the token of each single byte */
    struct dpt_merge *merges;    /* (merges_mask + 1), a power of two, open addressing */
    uint32_t merges_mask;
};

/* Fills a zeroed vocabulary from the two files; what it allocated is dpt_vocab_close's to free
 * also when it fails. */
DPT_MUST_USE enum dpt_status dpt_vocab_load(struct dpt_vocab *vocab,
                                            const struct dpt_vocab_options *options,
                                            struct dpt_err *err);

/* The merge of a pair: its slot, or an empty one. */
static inline const struct dpt_merge *dpt_vocab_merge(const struct dpt_vocab *vocab, uint16_t left,
                                                      uint16_t right)
{
    const uint32_t pair = (uint32_t)left << 16 | right;
    uint32_t at = (pair * 0x9e3779b1u) >> 8 & vocab->merges_mask;
    while (vocab->merges[at].rank != DPT_RANK_NONE && vocab->merges[at].pair != pair)
        at = (at + 1) & vocab->merges_mask;
    return &vocab->merges[at];
}

#endif
