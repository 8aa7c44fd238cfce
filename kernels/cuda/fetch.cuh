/* Copies from the device's memory to a block's shared memory that go on while the thread that asks
 * for them does something else (PTX ISA, cp.async). The thread that asked sees what it waited for;
 * others of the block see it after a barrier behind that. */
#ifndef DPT_KERNELS_CUDA_FETCH_CUH
#define DPT_KERNELS_CUDA_FETCH_CUH

#include <cuda_runtime.h>

/* Sixteen bytes; both places are aligned to them. */
__device__ inline void fetch_16_bytes(void *shared, const void *from)
{
    const unsigned to = (unsigned)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"(to), "l"(from) : "memory");
}

/* What the thread asked for since its last call becomes a group, which may be empty. */
__device__ inline void fetch_group(void)
{
    asm volatile("cp.async.commit_group;" : : : "memory");
}

/* All of the thread's groups but the last LATER are there. */
template <int LATER> __device__ inline void await_fetched(void)
{
    asm volatile("cp.async.wait_group %0;" : : "n"(LATER) : "memory");
}

#endif
