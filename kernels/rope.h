/* Cosine and sine of the angle of a rotary embedding (ops.h, dpt_rope_table). */
#ifndef DPT_KERNELS_ROPE_H
#define DPT_KERNELS_ROPE_H

#include "base/exact_math.h"

/* |angle| is at most 2^24. The nearest multiple of pi/2 is subtracted in three parts (Cody & Waite
 * 1980). The first two parts have 24 bits, so their products with the multiple and the differences
 * are exact. The third part extends pi/2 to 101 bits. */
DPT_DEVICE_FN void dpt_rope_cos_sin(float angle, float *ret_cos, float *ret_sin)
{
    const double turns = (double)angle * 0.63661977236758134308;
    const int32_t quadrant = (int32_t)(turns < 0.0 ? turns - 0.5 : turns + 0.5);
    const double k = (double)quadrant;
    const double x =
        ((double)angle - k * 0x1.921fb4p+0 - k * 0x1.4442dp-24) - k * 0x1.8469898cc517p-48;
    double s, c;
    dpt_sincos(quadrant, x, &s, &c);
    *ret_cos = (float)c;
    *ret_sin = (float)s;
}

#endif
