/* Cutting text into the pieces that byte pair encoding never crosses, as GPT-2 does. */
#ifndef DPT_WORKER_DATA_SPLIT_H
#define DPT_WORKER_DATA_SPLIT_H

#include <stddef.h>
#include <stdint.h>

/* Bytes of the first piece of `text`, which is valid UTF-8 of `bytes` > 0 bytes: what the regular
 * expression of OpenAI's encoder (Radford et al. 2019) matches first,
 *
 *   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 *
 * with Unicode's letters, numbers and white space (unicode_table.inc). */
size_t dpt_split_next(const uint8_t *text, size_t bytes);

/* The last place in (0, bytes] where `text` may be cut so that both parts encoded alone give the
 * tokens of the whole: before white space that follows none, where a piece ends whatever follows.
 * 0 when there is none. `text` may be any bytes; where it is no UTF-8 it is cut as if repaired. */
size_t dpt_split_cut(const uint8_t *text, size_t bytes);

#endif
