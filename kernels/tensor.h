/* Element types. A tensor is dense, row-major memory, and a comment beside each pointer gives its
 * shape. There is no tensor object, because every shape is known where it is used. */
#ifndef DPT_KERNELS_TENSOR_H
#define DPT_KERNELS_TENSOR_H

#include <stddef.h>
#include <stdint.h>

/* half.h defines the 16-bit types. */
enum dpt_dtype { DPT_F32, DPT_BF16, DPT_F16, DPT_DTYPE_COUNT };

static inline size_t dpt_dtype_bytes(enum dpt_dtype dtype)
{
    return dtype == DPT_F32 ? 4 : 2;
}

/* The address of element i of p. NULL for NULL: pointers are NULL while a stream prepares. */
static inline const void *dpt_at(const void *p, enum dpt_dtype dtype, int64_t i)
{
    return p ? (const char *)p + (size_t)i * dpt_dtype_bytes(dtype) : NULL;
}

static inline void *dpt_at_out(void *p, enum dpt_dtype dtype, int64_t i)
{
    return p ? (char *)p + (size_t)i * dpt_dtype_bytes(dtype) : NULL;
}

#endif
