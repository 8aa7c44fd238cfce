/* Asynchronous copies from device memory to a block's shared memory (PTX ISA, cp.async). They
 * continue while the asking thread does other work. That thread sees the data after it has waited.
 * Other threads of the block see it after a barrier that follows the wait. */
#ifndef DPT_KERNELS_CUDA_FETCH_CUH
#define DPT_KERNELS_CUDA_FETCH_CUH

#include <cuda_runtime.h>

/* Begins a copy of sixteen bytes. Both addresses are aligned to sixteen. */
__device__ inline void fetch_16_bytes(void *shared, const void *from)
{
    const unsigned to = (unsigned)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"(to), "l"(from) : "memory");
}

/* Ends a group: the copies since the thread's last call, possibly none. */
__device__ inline void fetch_group(void)
{
    asm volatile("cp.async.commit_group;" : : : "memory");
}

/* Waits for all groups of the thread except the LATER newest ones. */
template <int LATER> __device__ inline void await_fetched(void)
{
    asm volatile("cp.async.wait_group %0;" : : "n"(LATER) : "memory");
}

#endif
