/* Whether floats are finite. */
#ifndef DPT_BASE_FINITE_H
#define DPT_BASE_FINITE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Whether none of n values is NaN or infinite. The loop has no branch per value, because every
 * checkpoint checks all values of its state. */
static inline bool dpt_all_finite(const float *values, size_t n)
{
    const uint32_t exponent = 0x7f800000; /* all ones: NaN or infinite (IEEE 754, 3.4) */
    uint32_t found = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        found |= (bits & exponent) == exponent;
    }
    return found == 0;
}

#endif
