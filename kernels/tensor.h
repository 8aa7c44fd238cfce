/* Element types. Tensors are dense, row-major memory with their shape said beside every pointer;
 * there is no tensor object, because every shape in the project is known where it is used. */
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

/* Element i of p; NULL of NULL, which pointers are while a stream prepares. */
static inline const void *dpt_at(const void *p, enum dpt_dtype dtype, int64_t i)
{
    return p ? (const char *)p + (size_t)i * dpt_dtype_bytes(dtype) : NULL;
}

static inline void *dpt_at_out(void *p, enum dpt_dtype dtype, int64_t i)
{
    return p ? (char *)p + (size_t)i * dpt_dtype_bytes(dtype) : NULL;
}

#endif
