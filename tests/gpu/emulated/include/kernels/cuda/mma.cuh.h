/* kernels/cuda/mma.cuh for a host's compiler: the warp's operands are gathered, and each lane adds
 * up its own four sums. */
#ifndef DPT_TESTS_GPU_EMULATED_INCLUDE_KERNELS_CUDA_MMA_CUH_H
#define DPT_TESTS_GPU_EMULATED_INCLUDE_KERNELS_CUDA_MMA_CUH_H

#include "kernels/cuda/elem.cuh"

struct mma_operands {
    uint32_t a[4], b[2];
};

template <typename E> static inline float mma_element(uint32_t word, int half)
{
    return widened(E{(uint16_t)(word >> 16 * half)});
}

template <typename E>
static inline void mma(E, float c[4], const uint32_t a[4], const uint32_t b[2])
{
    struct mma_operands mine, all[EMULATED_WARP];
    memcpy(mine.a, a, sizeof mine.a);
    memcpy(mine.b, b, sizeof mine.b);
    emulated_gather(&mine, sizeof mine, all);
    const int lane = (int)(threadIdx.x % EMULATED_WARP);
    for (int i = 0; i < 4; i++) {
        const int row = lane / 4 + 8 * (i / 2), column = lane % 4 * 2 + i % 2;
        double sum = c[i];
        for (int k = 0; k < 16; k++) {
            const struct mma_operands &left = all[row % 8 * 4 + k % 8 / 2],
                                      &right = all[column * 4 + k % 8 / 2];
            sum += (double)mma_element<E>(left.a[row / 8 + k / 8 * 2], k % 2) *
                   (double)mma_element<E>(right.b[k / 8], k % 2);
        }
        c[i] = (float)sum;
    }
}

#endif
