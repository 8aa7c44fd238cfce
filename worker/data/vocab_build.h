/* Builds a vocabulary: functions that the readers of its files share. */
#ifndef DPT_WORKER_DATA_VOCAB_BUILD_H
#define DPT_WORKER_DATA_VOCAB_BUILD_H

#include "worker/data/vocab.h"

/* Files write a token's bytes as visible characters, its symbols. A byte that is printable in
 * Latin-1 (and no blank) is written as itself. The other bytes, in order, are written as the
 * characters from U+0100 on. */
enum { DPT_SYMBOLS = 0x100 + 68 };
struct dpt_symbols {
    int16_t byte_of[DPT_SYMBOLS]; /* -1: the character is no symbol */
};
void dpt_symbols_fill(struct dpt_symbols *symbols);

/* Makes room for tokens 0 … n - 1, for at most `bytes` bytes of all tokens, and for their names.
 * dpt_vocab_close frees the memory. */
DPT_MUST_USE enum dpt_status dpt_vocab_reserve(struct dpt_vocab *vocab, size_t n, size_t bytes,
                                               struct dpt_err *err);

/* Returns the id of `token`. Fails with `refusal` if another token has this id, or the id is not in
 * 0 … n - 1. `id` -1: the file has no integer. */
DPT_MUST_USE enum dpt_status dpt_vocab_check_id(const struct dpt_vocab *vocab, const char *token,
                                                int64_t id, enum dpt_status refusal, uint32_t *ret,
                                                struct dpt_err *err);

/* Sets the bytes of token `id`. */
void dpt_vocab_set_text(struct dpt_vocab *vocab, uint32_t id, const void *text, size_t bytes);

/* Sets the bytes of token `id` from its symbols, so that dpt_vocab_find finds it by these bytes.
 * False, without effect: the text is empty, or has a character that is no symbol. */
bool dpt_vocab_add_symbols(struct dpt_vocab *vocab, uint32_t id, const struct dpt_symbols *symbols,
                           const char *text);

/* Makes room for at most `n` merges. The table starts empty. */
DPT_MUST_USE enum dpt_status dpt_vocab_reserve_merges(struct dpt_vocab *vocab, size_t n,
                                                      struct dpt_err *err);

/* The symbols of the left and the right token of a merge. */
struct dpt_merge_text {
    const char *text[2];
    size_t bytes[2];
};

/* Finds the left token, the right token and their result by their bytes; -1: there is no such
 * token. False: a text has a character that is no symbol; the ids of its token and of the later
 * tokens are -1. */
bool dpt_vocab_find_merge(const struct dpt_vocab *vocab, const struct dpt_symbols *symbols,
                          const struct dpt_merge_text *merge, int ret_id[3]);

/* Adds the merge of id[0] and id[1] to id[2]. If the pair has a merge, the new rank replaces it. */
void dpt_vocab_put_merge(struct dpt_vocab *vocab, const int id[3], uint32_t rank);

/* Frees the names, which only an encoder with ignore_merges needs. */
void dpt_vocab_drop_names(struct dpt_vocab *vocab);

#endif
