/* Copies from the device's memory to a block's shared memory that go on while the thread that asks
 * for them does something else (PTX ISA, cp.async). The asking thread sees the data after it has
 * waited; other threads of the block see it after a barrier that follows the wait. */
#ifndef DPT_KERNELS_CUDA_FETCH_CUH
#define DPT_KERNELS_CUDA_FETCH_CUH

#include <cuda_runtime.h>

/* Sixteen bytes; both places are aligned to them. */
__device__ inline void fetch_16_bytes(void *shared, const void *from)
{
    const unsigned to = (unsigned)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"(to), "l"(from) : "memory");
}

/* Makes a group, which may be empty, of the copies since the thread's last call. */
__device__ inline void fetch_group(void)
{
    asm volatile("cp.async.commit_group;" : : : "memory");
}

/* Waits for all groups of the thread except the last LATER. */
template <int LATER> __device__ inline void await_fetched(void)
{
    asm volatile("cp.async.wait_group %0;" : : "n"(LATER) : "memory");
}

#endif
