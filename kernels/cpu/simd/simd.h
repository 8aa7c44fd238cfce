/* The kernels of one instruction set that do not depend on the type of elements, gathered by
 * table.c. elem.h has the kernels that do. kernels/cpu/kernels.def says what each one computes. */
#ifndef DPT_KERNELS_CPU_SIMD_SIMD_H
#define DPT_KERNELS_CPU_SIMD_SIMD_H

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd/lanes.h"

#define SIMD(name) DPT_ISA_NAME(dpt_simd_##name)

#define DPT_CPU_KERNEL(result, name, parameters) result SIMD(name) parameters;
#include "kernels/cpu/kernels.def"

/* c (rows, cols) = or += a (rows, k) b (k, cols). Element (i, j) of a is a[i*a_row + j*a_col]. Rows
 * of b and c are ldb and ldc apart. cols is a multiple of 16. Each result is one chain of fma in
 * the order of k. */
struct simd_product {
    int64_t rows, cols, k;
    const float *a;
    int64_t a_row, a_col;
    const float *b;
    int64_t ldb;
    float *c;
    int64_t ldc;
};
void SIMD(product)(const struct simd_product *p, bool accumulate);

/* ret[i] = 1/(1-p) where element first+i of the mask is kept, else 0. */
void SIMD(drop_factors)(int64_t n, const struct dpt_dropout *d, uint64_t first, float *ret);

/* GELU in its tanh form, computed as x * sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3), which
 * avoids the cancellation of tanh. */
INLINE v16 v_gelu(v16 x)
{
    const v16 a = v_set(-1.5957691216057308f), b = v_set(-1.5957691216057308f * 0.044715f);
    v16 minus_2u = v_mul(x, v_fma(b, v_mul(x, x), a));
    return v_div(x, v_add(v_set(1.0f), v_exp(minus_2u)));
}

#endif
