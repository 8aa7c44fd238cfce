/* The table of one instruction set. */
#include "kernels/cpu/simd/simd.h"

#if defined(DPT_ISA_AVX512)
#define ISA_TEXT "avx512"
#elif defined(DPT_ISA_AVX2)
#define ISA_TEXT "avx2"
#else
#define ISA_TEXT "plain"
#endif

const struct dpt_cpu_kernels DPT_ISA_NAME(dpt_cpu_kernels) = {
    .name = ISA_TEXT,
    .tile_store = SIMD(tile_store),
    .transpose = SIMD(transpose),
    .column_sums = SIMD(column_sums),
    .norm = SIMD(norm),
    .norm_grad = SIMD(norm_grad),
    .gelu = SIMD(gelu),
    .gelu_grad = SIMD(gelu_grad),
    .add = SIMD(add),
    .fill = SIMD(fill),
    .drop_add = SIMD(drop_add),
    .adamw = SIMD(adamw),
    .sumsq = SIMD(sumsq),
    .attention_work = SIMD(attention_work),
    .attention = SIMD(attention),
    .attention_grad = SIMD(attention_grad),
    .softmax_part = SIMD(softmax_part),
    .softmax_grad = SIMD(softmax_grad),
};
