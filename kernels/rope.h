/* Cosine and sine of a rotary embedding's angle (ops.h, dpt_rope_table): plain double arithmetic in
 * fixed order, so that every device and instruction set has the same bits, where libraries of
 * mathematics do not agree. */
#ifndef DPT_KERNELS_ROPE_H
#define DPT_KERNELS_ROPE_H

#include <stdint.h>

#ifdef __CUDACC__
#define DPT_ROPE_FN static inline __host__ __device__
#else
#define DPT_ROPE_FN static inline
#endif

/* |angle| at most 2^24. The nearest multiple of pi/2 is taken off in three parts (Cody & Waite
 * 1980): the first two have 24 bits, so that their products with the multiple, and the differences,
 * are exact, and the third brings pi/2 to 101 bits. What is left is at most pi/4, where Taylor's
 * series to x^19 is good to 1e-17. */
DPT_ROPE_FN void dpt_rope_cos_sin(float angle, float *ret_cos, float *ret_sin)
{
    const double sin_terms[] = {-1.0 / 6.0,
                                1.0 / 120.0,
                                -1.0 / 5040.0,
                                1.0 / 362880.0,
                                -1.0 / 39916800.0,
                                1.0 / 6227020800.0,
                                -1.0 / 1307674368000.0,
                                1.0 / 355687428096000.0,
                                -1.0 / 121645100408832000.0};
    const double cos_terms[] = {-1.0 / 2.0,
                                1.0 / 24.0,
                                -1.0 / 720.0,
                                1.0 / 40320.0,
                                -1.0 / 3628800.0,
                                1.0 / 479001600.0,
                                -1.0 / 87178291200.0,
                                1.0 / 20922789888000.0,
                                -1.0 / 6402373705728000.0};
    const double turns = (double)angle * 0.63661977236758134308;
    const int32_t quadrant = (int32_t)(turns < 0.0 ? turns - 0.5 : turns + 0.5);
    const double k = (double)quadrant;
    const double x =
        ((double)angle - k * 0x1.921fb4p+0 - k * 0x1.4442dp-24) - k * 0x1.8469898cc517p-48;
    const double x2 = x * x;
    double s = 0.0, c = 0.0;
    for (int i = 8; i >= 0; i--) {
        s = (s + sin_terms[i]) * x2;
        c = (c + cos_terms[i]) * x2;
    }
    s = x + x * s;
    c = 1.0 + c;
    const double cos_of = quadrant & 1 ? s : c, sin_of = quadrant & 1 ? c : s;
    const int32_t quarter = quadrant & 3;
    *ret_cos = (float)(quarter == 1 || quarter == 2 ? -cos_of : cos_of);
    *ret_sin = (float)(quarter >= 2 ? -sin_of : sin_of);
}

#endif
