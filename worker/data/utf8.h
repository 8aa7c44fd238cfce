/* UTF-8: the valid prefix of a text, and the repair of invalid bytes. */
#ifndef DPT_WORKER_DATA_UTF8_H
#define DPT_WORKER_DATA_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Bytes of the valid UTF-8 that `text` begins with (RFC 3629: no surrogates, no overlong forms,
 * nothing above U+10FFFF); `bytes` when all of it is valid. */
size_t dpt_utf8_valid(const uint8_t *text, size_t bytes);

/* Copies `text` to `ret`, which holds 3 * bytes, with U+FFFD in place of invalid UTF-8: one for
 * each maximal subpart (Unicode 15, 3.9, U+FFFD substitution), as Python's errors="replace" does.
 * Adds the replacements to *replaced. Returns the bytes written. */
size_t dpt_utf8_repair(const uint8_t *text, size_t bytes, uint8_t *ret, int64_t *replaced);

#endif
