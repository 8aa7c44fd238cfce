/* Element types. Tensors are dense, row-major memory with their shape said beside every pointer;
 * there is no tensor object, because every shape in the project is known where it is used. */
#ifndef DPT_KERNELS_TENSOR_H
#define DPT_KERNELS_TENSOR_H

#include <stddef.h>

/* half.h says what the 16-bit ones are. */
enum dpt_dtype { DPT_F32, DPT_BF16, DPT_F16, DPT_DTYPE_COUNT };

static inline size_t dpt_dtype_bytes(enum dpt_dtype dtype)
{
    return dtype == DPT_F32 ? 4 : 2;
}

#endif
