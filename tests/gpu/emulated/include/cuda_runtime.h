/* The part of CUDA's C++ that kernels/cuda uses, for the host's compiler (emulated.h). */
#ifndef DPT_TESTS_GPU_EMULATED_INCLUDE_CUDA_RUNTIME_H
#define DPT_TESTS_GPU_EMULATED_INCLUDE_CUDA_RUNTIME_H

#include "tests/gpu/emulated/emulated.h"
#include "tests/gpu/emulated/include/cuda_runtime_api.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#define __global__
#define __device__
#define __host__
#define __launch_bounds__(...)

#define threadIdx emulated_place.thread
#define blockIdx  emulated_place.block
#define blockDim  emulated_place.block_size
#define gridDim   emulated_place.grid

static inline void __syncthreads(void)
{
    emulated_await_block();
}

template <typename T> static inline T __shfl_xor_sync(unsigned mask, T x, int other)
{
    static_assert(sizeof(T) <= sizeof(uint64_t), "one register, or two");
    uint64_t mine = 0, theirs;
    T ret;
    memcpy(&mine, &x, sizeof x);
    theirs = emulated_exchange(mask, mine, other);
    memcpy(&ret, &theirs, sizeof ret);
    return ret;
}

static inline uint32_t __float_as_uint(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float __uint_as_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

template <typename K> static inline cudaError_t cudaFuncSetAttribute(K *kernel, int name, int value)
{
    (void)kernel;
    (void)name;
    return emulated_error(value <= emulated_shared_bytes_max() ? cudaSuccess
                                                               : cudaErrorInvalidValue);
}

#endif
