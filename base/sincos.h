/* Sine and cosine in plain double arithmetic in fixed order: every device and instruction set has
 * the same bits, where libraries of mathematics do not agree. */
#ifndef DPT_BASE_SINCOS_H
#define DPT_BASE_SINCOS_H

#include "base/device_fn.h"

#include <stdint.h>

/* Of the angle `quadrant` * pi/2 + x, where |x| is at most pi/4: there Taylor's series to x^19 is
 * good to 1e-17. The compiler folds the divisions, rounding each once as IEEE 754 says. */
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

#endif
