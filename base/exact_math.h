/* Sine, cosine and natural logarithm in plain double arithmetic in a fixed order. So every device,
 * machine and C library computes the same bits. Mathematical libraries do not guarantee that. */
#ifndef DPT_BASE_EXACT_MATH_H
#define DPT_BASE_EXACT_MATH_H

#include "base/device_fn.h"

#include <stdint.h>
#include <string.h>

/* Sine and cosine of the angle `quadrant` * pi/2 + x, where |x| is at most pi/4: Taylor's series to
 * x^19 has an error below 1e-17 there. The compiler folds the divisions and rounds each once (IEEE
 * 754). */
DPT_DEVICE_FN void dpt_sincos(int32_t quadrant, double x, double *ret_sin, double *ret_cos)
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
    *ret_sin = quarter >= 2 ? -sin_of : sin_of;
    *ret_cos = quarter == 1 || quarter == 2 ? -cos_of : cos_of;
}

/* Natural logarithm. Relative error below 1e-14 for normal x > 0: x = m 2^e with m in [sqrt(1/2),
 * sqrt(2)), ln m = 2 atanh((m-1)/(m+1)) by its series (|s| <= 0.172; the first omitted term is
 * below 1e-18). -infinity for 0, infinity for infinity, NaN for all other x. */
DPT_DEVICE_FN double dpt_natural_log(double x)
{
    const double terms[] = {1.0,        1.0 / 3.0,  1.0 / 5.0,  1.0 / 7.0,  1.0 / 9.0, 1.0 / 11.0,
                            1.0 / 13.0, 1.0 / 15.0, 1.0 / 17.0, 1.0 / 19.0, 1.0 / 21.0};
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    const uint64_t biased = bits >> 52;
    if (biased == 0 || biased >= 0x7ff) { /* zero, subnormal, negative, infinity, NaN */
        if (x == 0.0)
            return -__builtin_inf();
        return x > 0.0 && biased == 0x7ff ? x : __builtin_nan("");
    }
    int e = (int)biased - 1023;
    bits = (bits & 0xfffffffffffffu) | (uint64_t)1023 << 52;
    double m;
    memcpy(&m, &bits, sizeof m); /* m is in [1, 2) */
    if (m >= 1.4142135623730951) {
        m *= 0.5;
        e++;
    }
    const double s = (m - 1.0) / (m + 1.0), s2 = s * s;
    double sum = 0.0;
    for (int i = 10; i >= 0; i--)
        sum = sum * s2 + terms[i];
    return e * 0.69314718055994530942 + 2.0 * s * sum;
}

#endif
