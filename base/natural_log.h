/* The natural logarithm in plain double arithmetic in fixed order: every device, machine and C
 * library has the same bits. */
#ifndef DPT_BASE_NATURAL_LOG_H
#define DPT_BASE_NATURAL_LOG_H

#include "base/device_fn.h"

#include <stdint.h>
#include <string.h>

/* Relative error below 1e-14 for x > 0 and normal: x = m 2^e with m in [sqrt(1/2), sqrt(2)), ln m =
 * 2 atanh((m-1)/(m+1)) by its series (|s| <= 0.172, the first term left out is below 1e-18). Else
 * -infinity for 0, infinity for itself, NaN. */
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
    memcpy(&m, &bits, sizeof m); /* in [1, 2) */
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
