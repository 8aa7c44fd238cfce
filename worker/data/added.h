/* Added tokens of a tokenizer.json: strings that are looked for in a text before it is cut. */
#ifndef DPT_WORKER_DATA_ADDED_H
#define DPT_WORKER_DATA_ADDED_H

#include "worker/data/vocab.h"

/* Puts vocab->added in its order and fills vocab->added_at and n_added_plain. */
void dpt_added_sort(struct dpt_vocab *vocab);

/* The first added token of a pass at or after *at, of those that begin there the longest; NULL when
 * there is none. *at becomes where it begins, *ret_bytes its length. */
const struct dpt_added *dpt_added_next(const struct dpt_vocab *vocab, int pass, const uint8_t *text,
                                       size_t bytes, size_t *at, size_t *ret_bytes);

#endif
