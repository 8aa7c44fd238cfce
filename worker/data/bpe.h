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

/* Appends the tokens of a piece of 1 byte at least. With ignore_merges a piece with the bytes of a
 * token is that token. Else, from the tokens of the bytes on, the adjacent pair of the lowest rank,
 * the leftmost of these, is merged until no pair can be. A long piece takes time n log n and 40
 * bytes of memory a byte. DPT_EOVERFLOW: more than DPT_PIECE_BYTES_MAX bytes. */
enum { DPT_PIECE_BYTES_MAX = 16 << 20 };
DPT_MUST_USE enum dpt_status dpt_bpe_piece(const struct dpt_vocab *vocab,
                                           struct dpt_bpe_space *space, const uint8_t *piece,
                                           size_t bytes, struct dpt_tokens *tokens,
                                           struct dpt_err *err);

#endif
