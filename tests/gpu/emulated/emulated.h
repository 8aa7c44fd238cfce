/* A CUDA device on the host, for tests of kernels/cuda where there is no GPU: the kernels
 * themselves, compiled for the host, thread by thread.
 *
 * Blocks run one after another, the threads of a block on stacks of their own, each up to the next
 * barrier or exchange of its warp: the order in which they do is turned round after each, so that a
 * forgotten barrier shows. One that not all threads of a block (or warp) come to ends the test, and
 * says so. Memory that a launch gives to a block begins as NaN.
 *
 * What this shows: arithmetic, indices, barriers, and the C code around the kernels. What it does
 * not: what cuBLASLt does, memory that is the device's own (tests/kernels/discrete.h), and
 * anything about speed. */
#ifndef DPT_TESTS_GPU_EMULATED_EMULATED_H
#define DPT_TESTS_GPU_EMULATED_EMULATED_H

#include <stddef.h>
#include <stdint.h>

#include <functional>

enum { EMULATED_WARP = 32, EMULATED_THREADS_MAX = 1024, EMULATED_SHARED_BYTES_MAX = 227 << 10 };

/* What a block may have: EMULATED_SHARED_BYTES_MAX, or as many bytes as DPT_EMULATED_SHARED_BYTES
 * in the environment says. */
int emulated_shared_bytes_max(void);

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned nx = 1, unsigned ny = 1, unsigned nz = 1) : x(nx), y(ny), z(nz)
    {
    }
};

/* Of the thread of a kernel that runs now on this thread of the host. __thread: no access calls a
 * function that looks whether the variable is constructed. */
struct emulated_places {
    dim3 thread, block, block_size, grid;
};
extern __thread struct emulated_places emulated_place;

/* Runs `kernel` for every thread of every block; blocks have one dimension. */
void emulated_launch(dim3 grid, unsigned block, size_t shared_bytes,
                     const std::function<void()> &kernel);

/* In a kernel. The launch's shared memory; all of the block are here; `x` of the lane whose number
 * differs from this one's in the bits of `other`, when all of the warp are here. */
void *emulated_shared(void);
void emulated_await_block(void);
uint64_t emulated_exchange(unsigned mask, uint64_t x, int other);
/* What all lanes of the warp have of `bytes` (EMULATED_GATHERED_BYTES_MAX), in their order: until
 * the next exchange but one. */
enum { EMULATED_GATHERED_BYTES_MAX = 48 };
const void *emulated_gather(const void *mine, size_t bytes);

#endif
