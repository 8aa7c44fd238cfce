/* Cutting text into pieces that are encoded one by one, as GPT-2 does. */
#ifndef DPT_WORKER_DATA_SPLIT_H
#define DPT_WORKER_DATA_SPLIT_H

#include "worker/data/tokenizer.h"

/* Bytes of the first piece of `text`, which is valid UTF-8 of `bytes` > 0 bytes: the first match of
 * the regular expression of OpenAI's encoder (Radford et al. 2019),
 *
 *   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 *
 * with Unicode's letters, numbers and white space (unicode_table.inc). */
size_t dpt_split_next(const uint8_t *text, size_t bytes);

/* The same for the pre-tokenizer Digits of tokenizer.json: a number (\p{N}) alone, or with `each`
 * unset a run of them; else all up to the next one. */
size_t dpt_split_digits_next(const uint8_t *text, size_t bytes, bool each);

/* The last place in (0, bytes] where `text` may be cut so that both parts encoded alone give the
 * tokens of the whole, for a vocabulary whose cuts are SPACES or BLANKS: before ASCII white space,
 * or before a blank, that follows no white space; a piece always ends there. 0: there is no such
 * place, or the cuts are NONE. `text` may be any bytes; invalid UTF-8 is cut as if repaired. */
size_t dpt_split_cut(const uint8_t *text, size_t bytes, enum dpt_cuts cuts);

#endif
