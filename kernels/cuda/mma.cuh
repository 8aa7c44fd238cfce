/* A warp's product on tensor cores: c (16, 8) += a (16, 16) b (16, 8), elements of bf16 or fp16,
 * sums in f32 (PTX, mma.sync.m16n8k16). Lane 4g + t has
 *   a: rows g and g + 8; pairs of columns: {g, 2t} {g + 8, 2t} {g, 2t + 8} {g + 8, 2t + 8}
 *   b: column g; pairs of rows from 2t, from 2t + 8
 *   c: rows g, g, g + 8, g + 8; columns 2t, 2t + 1, 2t, 2t + 1
 * The lower half of a word has the first element of a pair. The hardware decides the order in which
 * the sixteen products are added; it is the same on every run of one kind of device. */
#ifndef DPT_KERNELS_CUDA_MMA_CUH
#define DPT_KERNELS_CUDA_MMA_CUH

#include "kernels/cuda/elem.cuh"

__device__ inline void mma(bf16, float c[4], const uint32_t a[4], const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ inline void mma(f16, float c[4], const uint32_t a[4], const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

#endif
