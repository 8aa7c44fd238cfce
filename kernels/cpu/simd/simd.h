/* The kernels of one instruction set that do not depend on the type of elements (elem.h has those
 * that do), gathered by table.c. Meanings: kernels/cpu/kernels.def. */
#ifndef DPT_KERNELS_CPU_SIMD_SIMD_H
#define DPT_KERNELS_CPU_SIMD_SIMD_H

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd/lanes.h"

#define SIMD(name) DPT_ISA_NAME(dpt_simd_##name)

#define DPT_CPU_KERNEL(result, name, parameters) result SIMD(name) parameters;
#include "kernels/cpu/kernels.def"

/* c (rows, cols) = or += a (rows, k) b (k, cols): element (i, j) of a is a[i*a_row + j*a_col], rows
 * of b and c lie ldb and ldc apart, cols is a multiple of 16. Each result is one chain of fma in
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

/* x * sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3): the tanh form of GELU without tanh's
 * cancellation. */
INLINE v16 v_gelu(v16 x)
{
    const v16 a = v_set(-1.5957691216057308f), b = v_set(-1.5957691216057308f * 0.044715f);
    v16 minus_2u = v_mul(x, v_fma(b, v_mul(x, x), a));
    return v_div(x, v_add(v_set(1.0f), v_exp(minus_2u)));
}

#endif
