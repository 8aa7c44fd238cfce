/* The larger and the smaller of two integers. */
#ifndef DPT_BASE_EXTREMES_H
#define DPT_BASE_EXTREMES_H

#include <stdint.h>

static inline int64_t dpt_max_i64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline int64_t dpt_min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

#endif
