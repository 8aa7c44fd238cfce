/* Cuts text into pieces that are encoded one by one, as GPT-2 does. */
#ifndef DPT_WORKER_DATA_SPLIT_H
#define DPT_WORKER_DATA_SPLIT_H

#include "worker/data/tokenizer.h"

/* Returns the bytes of the first piece of `text`, which is valid UTF-8 of `bytes` > 0 bytes. The
 * piece is the first match of the regular expression of OpenAI's encoder (Radford et al. 2019),
 *
 *   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 *
 * with Unicode's letters, numbers and white space (unicode_table.inc). */
size_t dpt_split_next(const uint8_t *text, size_t bytes);

/* The same for the pre-tokenizer Digits of tokenizer.json. With `each`, a piece is a single number
 * character (\p{N}); else a run of them. The text between numbers is a piece, too. */
size_t dpt_split_digits_next(const uint8_t *text, size_t bytes, bool each);

/* The last position in (0, bytes) where `text` may be cut so that both parts, encoded alone, give
 * the tokens of the whole. A piece always ends there: with cuts SPACES before ASCII white space
 * that follows no white space, with cuts BLANKS before a blank that follows no white space. 0:
 * there is no such position, or the cuts are NONE. `text` may be any bytes; invalid UTF-8 is cut as
 * if repaired. */
size_t dpt_split_cut(const uint8_t *text, size_t bytes, enum dpt_cuts cuts);

#endif
