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

/* Appends the tokens of a piece of at least 1 byte. With ignore_merges, a piece whose bytes are a
 * token becomes this token. Otherwise the piece starts as the tokens of its bytes. Then the
 * adjacent pair of the lowest rank (of equal ranks the leftmost pair) is merged, again and again,
 * until no pair can merge. A long piece of n bytes takes O(n log n) time and 40 n bytes of memory.
 * DPT_EOVERFLOW: the piece has more than DPT_PIECE_BYTES_MAX bytes. */
enum { DPT_PIECE_BYTES_MAX = 16 << 20 };
DPT_MUST_USE enum dpt_status dpt_bpe_piece(const struct dpt_vocab *vocab,
                                           struct dpt_bpe_space *space, const uint8_t *piece,
                                           size_t bytes, struct dpt_tokens *tokens,
                                           struct dpt_err *err);

#endif
