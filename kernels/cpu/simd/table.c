/* The table of one instruction set. */
#include "kernels/cpu/simd/simd.h"

#if defined(DPT_ISA_AVX512)
#define ISA_TEXT "avx512"
#elif defined(DPT_ISA_AVX2)
#define ISA_TEXT "avx2"
#else
#define ISA_TEXT "plain"
#endif

extern const struct dpt_elem_kernels SIMD(elem_f32), SIMD(elem_bf16), SIMD(elem_f16);

const struct dpt_cpu_kernels DPT_ISA_NAME(dpt_cpu_kernels) = {
    .name = ISA_TEXT,
    .of = {[DPT_F32] = &SIMD(elem_f32), [DPT_BF16] = &SIMD(elem_bf16), [DPT_F16] = &SIMD(elem_f16)},
#define DPT_CPU_KERNEL(result, kernel, parameters) .kernel = SIMD(kernel),
#include "kernels/cpu/kernels.def"
};
