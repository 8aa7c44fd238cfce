/* A CUDA device on the host, for tests of kernels/cuda without a GPU: the kernels are compiled for
 * the host and run thread by thread.
 *
 * Blocks run one after another. Each thread of a block has its own stack and runs up to the next
 * barrier or exchange of its warp. The order of the threads is reversed after each barrier, so that
 * a forgotten barrier gives a wrong result. If not all threads of a block (or warp) reach a
 * barrier, the test ends with a message. Shared memory of a block starts as NaN.
 *
 * This tests arithmetic, indices, barriers and the C code around the kernels. It does not test
 * cuBLASLt, the separation of host and device memory (tests/kernels/discrete.h does), or speed. */
#ifndef DPT_TESTS_GPU_EMULATED_EMULATED_H
#define DPT_TESTS_GPU_EMULATED_EMULATED_H

#include <stddef.h>
#include <stdint.h>

#include <functional>

enum { EMULATED_WARP = 32, EMULATED_THREADS_MAX = 1024, EMULATED_SHARED_BYTES_MAX = 227 << 10 };

/* The most shared memory of a block: EMULATED_SHARED_BYTES_MAX, or the number of bytes in the
 * environment variable DPT_EMULATED_SHARED_BYTES. */
int emulated_shared_bytes_max(void);

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned nx = 1, unsigned ny = 1, unsigned nz = 1) : x(nx), y(ny), z(nz)
    {
    }
};

/* The place of the kernel's thread that now runs on this thread of the host. __thread instead of
 * thread_local: an access then calls no function that checks whether the variable is constructed.
 */
struct emulated_places {
    dim3 thread, block, block_size, grid;
};
extern __thread struct emulated_places emulated_place;

/* Runs `kernel` for every thread of every block; blocks have one dimension. */
void emulated_launch(dim3 grid, unsigned block, size_t shared_bytes,
                     const std::function<void()> &kernel);

/* For kernels. _shared: the block's shared memory. _await_block: waits for all threads of the
 * block. _exchange: waits for all lanes of the warp; returns the `x` of lane (this lane XOR
 * `other`). */
void *emulated_shared(void);
void emulated_await_block(void);
uint64_t emulated_exchange(unsigned mask, uint64_t x, int other);
/* Gathers `bytes` (at most EMULATED_GATHERED_BYTES_MAX) of every lane of the warp, in the order of
 * lanes. The result is valid until the second next exchange. */
enum { EMULATED_GATHERED_BYTES_MAX = 48 };
const void *emulated_gather(const void *mine, size_t bytes);

#endif
