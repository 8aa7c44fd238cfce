/* Values from the random words of a stream (rng.h), for host and device. Only integer arithmetic
 * and correctly rounded double operations are used: initial weights and masks have the same bits on
 * every machine, device and C library. */
#ifndef DPT_BASE_DRAW_H
#define DPT_BASE_DRAW_H

#include "base/exact_math.h"

#include <math.h>

/* The value in [-1, 1) of the upper 24 bits of a word. */
DPT_DEVICE_FN float dpt_draw_uniform(uint32_t word)
{
    return (float)(word >> 8) * 0x1p-23f - 1.0f;
}

/* Two normal values from two words by Box-Muller: one word is the radius, one the angle. */
DPT_DEVICE_FN void dpt_draw_normal_pair(uint32_t radius_word, uint32_t turn_word, float ret_pair[2])
{
    const double radius =
        sqrt(-2.0 * dpt_natural_log(((double)radius_word + 1.0) * 0x1p-32)); /* of (0, 1] */
    /* The nearest quarter turn is subtracted in integers, which is exact. The fourth quarter turn
     * wraps to 0 with the word. */
    const uint32_t quadrant = (turn_word + (1u << 29)) >> 30;
    const int32_t rest = (int32_t)(turn_word - (quadrant << 30));
    double s, c;
    dpt_sincos((int32_t)quadrant, (double)rest * (6.28318530717958647693 * 0x1p-32), &s, &c);
    ret_pair[0] = (float)(radius * c);
    ret_pair[1] = (float)(radius * s);
}

#endif
