/* kernels/cuda/mma.cuh for the host's compiler: gathers the warp's operands, and each lane computes
 * its four sums. */
#ifndef DPT_TESTS_GPU_EMULATED_INCLUDE_KERNELS_CUDA_MMA_CUH_H
#define DPT_TESTS_GPU_EMULATED_INCLUDE_KERNELS_CUDA_MMA_CUH_H

#include "kernels/cuda/elem.cuh"

/* As floats: 32 lanes read the value of one lane. */
struct mma_operands {
    float a[4][2], b[2][2];
};

template <typename E> static inline float mma_element(uint32_t word, int half)
{
    return widened(E{(uint16_t)(word >> 16 * half)});
}

template <typename E>
static inline void mma(E, float c[4], const uint32_t a[4], const uint32_t b[2])
{
    struct mma_operands mine;
    for (int half = 0; half < 2; half++) {
        for (int i = 0; i < 4; i++)
            mine.a[i][half] = mma_element<E>(a[i], half);
        for (int i = 0; i < 2; i++)
            mine.b[i][half] = mma_element<E>(b[i], half);
    }
    const struct mma_operands *all =
        (const struct mma_operands *)emulated_gather(&mine, sizeof mine);
    const int lane = (int)(threadIdx.x % EMULATED_WARP);
    for (int i = 0; i < 4; i++) {
        const int row = lane / 4 + 8 * (i / 2), column = lane % 4 * 2 + i % 2;
        double sum = c[i];
        for (int k = 0; k < 16; k++) {
            const struct mma_operands &left = all[row % 8 * 4 + k % 8 / 2],
                                      &right = all[column * 4 + k % 8 / 2];
            sum += (double)left.a[row / 8 + k / 8 * 2][k % 2] * (double)right.b[k / 8][k % 2];
        }
        c[i] = (float)sum;
    }
}

#endif
