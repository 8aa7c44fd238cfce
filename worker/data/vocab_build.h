/* Building a vocabulary: the functions that the readers of its files share. */
#ifndef DPT_WORKER_DATA_VOCAB_BUILD_H
#define DPT_WORKER_DATA_VOCAB_BUILD_H

#include "worker/data/vocab.h"

/* Files write a token's bytes as visible characters, its symbols: a byte that is printable in
 * Latin-1 (and no blank) as itself, the others, in order, as the characters from U+0100 on. */
enum { DPT_SYMBOLS = 0x100 + 68 };
struct dpt_symbols {
    int16_t byte_of[DPT_SYMBOLS]; /* -1: the character is no symbol */
};
void dpt_symbols_fill(struct dpt_symbols *symbols);

/* Room for tokens 0 … n - 1, whose bytes are `bytes` at most in all, and for their names. All of it
 * is dpt_vocab_close's to free. */
DPT_MUST_USE enum dpt_status dpt_vocab_reserve(struct dpt_vocab *vocab, size_t n, size_t bytes,
                                               struct dpt_err *err);

/* The id of `token`, which no other token may have. Fails with `refusal` if another token
 * has the id, or the id is not in 0 … n - 1. `id` -1: the file has no integer. */
DPT_MUST_USE enum dpt_status dpt_vocab_check_id(const struct dpt_vocab *vocab, const char *token,
                                                int64_t id, enum dpt_status refusal, uint32_t *ret,
                                                struct dpt_err *err);

/* Sets the bytes of token `id`. */
void dpt_vocab_set_text(struct dpt_vocab *vocab, uint32_t id, const void *text, size_t bytes);

/* Sets the bytes of token `id` from its symbols, and lets dpt_vocab_find find it by them. False,
 * and without effect: the text is empty, or has other characters than symbols. */
bool dpt_vocab_add_symbols(struct dpt_vocab *vocab, uint32_t id, const struct dpt_symbols *symbols,
                           const char *text);

/* Room for `n` merges at most; none is there yet. */
DPT_MUST_USE enum dpt_status dpt_vocab_reserve_merges(struct dpt_vocab *vocab, size_t n,
                                                      struct dpt_err *err);

/* The symbols of the left and the right token of a merge. */
struct dpt_merge_text {
    const char *text[2];
    size_t bytes[2];
};

/* Finds the left token, the right token and their result by name; -1: there is no such token.
 * False: a text has other characters than symbols; its token and the tokens after it are -1. */
bool dpt_vocab_find_merge(const struct dpt_vocab *vocab, const struct dpt_symbols *symbols,
                          const struct dpt_merge_text *merge, int ret_id[3]);

/* Adds the merge of id[0] and id[1] to id[2]; of a pair that is put again the last rank counts. */
void dpt_vocab_put_merge(struct dpt_vocab *vocab, const int id[3], uint32_t rank);

/* Frees the names, which only an encoder with ignore_merges needs. */
void dpt_vocab_drop_names(struct dpt_vocab *vocab);

#endif
