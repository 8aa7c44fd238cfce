/* Byte pair encoding of one piece of text (Sennrich et al. 2016; over bytes, Radford et al. 2019).
 */
#ifndef DPT_WORKER_DATA_BPE_H
#define DPT_WORKER_DATA_BPE_H

#include "worker/data/vocab.h"

/* Work space that grows with the longest piece seen. Zero-initialise; not thread safe. */
struct dpt_bpe_space {
    void *memory;
    size_t bytes;
};
void dpt_bpe_space_fini(struct dpt_bpe_space *space);

/* Appends the tokens of a piece of 1 byte at least: the token that it is, if the vocabulary ignores
 * merges then; else, starting from the bytes, the adjacent pair of the lowest rank, the leftmost
 * such, is merged until none can be. A long piece takes time n log n
 * and 40 bytes of memory a byte, so that one of more than DPT_PIECE_BYTES_MAX is DPT_EOVERFLOW. */
enum { DPT_PIECE_BYTES_MAX = 16 << 20 };
DPT_MUST_USE enum dpt_status dpt_bpe_piece(const struct dpt_vocab *vocab,
                                           struct dpt_bpe_space *space, const uint8_t *piece,
                                           size_t bytes, struct dpt_tokens *tokens,
                                           struct dpt_err *err);

#endif
