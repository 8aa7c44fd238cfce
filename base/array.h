/* Growing arrays. */
#ifndef DPT_BASE_ARRAY_H
#define DPT_BASE_ARRAY_H

#include <stdbool.h>
#include <stddef.h>

/* Makes room for `n` elements of `bytes` bytes each in an array that has room for *room elements.
 * An array that grows at least doubles its room. `array` is the address of the pointer to the
 * elements (T **). False: out of memory; the array is unchanged. */
bool dpt_array_reserve(void *array, size_t *room, size_t n, size_t bytes);

#endif
