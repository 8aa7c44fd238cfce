/* Building a vocabulary: what the readers of its files share. */
#ifndef DPT_WORKER_DATA_VOCAB_BUILD_H
#define DPT_WORKER_DATA_VOCAB_BUILD_H

#include "worker/data/vocab.h"

/* Files write a token's bytes as characters that can be seen: a byte that is printable in Latin-1
 * (and no blank) as itself, the others, in order, as the characters from U+0100 on. */
enum { DPT_SYMBOLS = 0x100 + 68 };
struct dpt_symbols {
    int16_t byte_of[DPT_SYMBOLS]; /* -1: stands for none */
};
void dpt_symbols_fill(struct dpt_symbols *symbols);

/* The bytes of a token from its symbols; false when one is none, there is no symbol, or the room
 * ends. */
bool dpt_symbols_parse(const struct dpt_symbols *symbols, const char *text, size_t bytes,
                       uint8_t *ret, size_t room, size_t *ret_bytes);

/* Room for tokens 0 … n - 1 whose bytes, all together, are `bytes` at most, and for their names.
 * All of it is dpt_vocab_close's to free. */
DPT_MUST_USE enum dpt_status dpt_vocab_reserve(struct dpt_vocab *vocab, size_t n, size_t bytes,
                                               struct dpt_err *err);

/* Lets dpt_vocab_find find token `id`, whose text is set, by its bytes. */
void dpt_vocab_name(struct dpt_vocab *vocab, uint32_t id);

/* Room for `n` merges at most; none is there yet. */
DPT_MUST_USE enum dpt_status dpt_vocab_reserve_merges(struct dpt_vocab *vocab, size_t n,
                                                      struct dpt_err *err);

/* Of a pair that is put again the last rank counts. */
void dpt_vocab_put_merge(struct dpt_vocab *vocab, uint32_t left, uint32_t right, uint32_t rank,
                         uint32_t id);

/* Frees the names, which encoding needs with ignore_merges alone. */
void dpt_vocab_drop_names(struct dpt_vocab *vocab);

#endif
