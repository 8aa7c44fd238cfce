/* What is drawn at a place of a stream (rng.h), as functions that kernels of a device call, too.
 * Only integer arithmetic and the correctly rounded double operations are used: initial weights and
 * masks are the same bits on every machine, device and C library. */
#ifndef DPT_BASE_DRAW_H
#define DPT_BASE_DRAW_H

#include "base/natural_log.h"
#include "base/rng.h"
#include "base/sincos.h"

#include <math.h>

/* Constants of Salmon et al., section 3.3 and table 2 (Random123 philox.h). */
#define DPT_PHILOX_M0 0xD2511F53u
#define DPT_PHILOX_M1 0xCD9E8D57u
#define DPT_PHILOX_W0 0x9E3779B9u
#define DPT_PHILOX_W1 0xBB67AE85u
enum { DPT_PHILOX_ROUNDS = 10 };

/* dpt_philox_block. */
DPT_DEVICE_FN void dpt_draw_block(struct dpt_rng_key key, const uint32_t counter[4],
                                  uint32_t ret_block[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key.k[0], k1 = key.k[1];
    for (int round = 0; round < DPT_PHILOX_ROUNDS; round++) {
        const uint64_t p0 = (uint64_t)DPT_PHILOX_M0 * c0;
        const uint64_t p1 = (uint64_t)DPT_PHILOX_M1 * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        k0 += DPT_PHILOX_W0;
        k1 += DPT_PHILOX_W1;
    }
    ret_block[0] = c0;
    ret_block[1] = c1;
    ret_block[2] = c2;
    ret_block[3] = c3;
}

/* dpt_philox. */
DPT_DEVICE_FN void dpt_draw_words(struct dpt_rng_key key, uint64_t counter, uint32_t ret_block[4])
{
    const uint32_t words[4] = {(uint32_t)counter, (uint32_t)(counter >> 32), 0, 0};
    dpt_draw_block(key, words, ret_block);
}

/* The value in [-1, 1) that a word's upper 24 bits make. */
DPT_DEVICE_FN float dpt_draw_uniform(uint32_t word)
{
    return (float)(word >> 8) * 0x1p-23f - 1.0f;
}

/* The two normal values that two words make, by Box-Muller: one word is the radius, one the turn.
 */
DPT_DEVICE_FN void dpt_draw_normal_pair(uint32_t radius_word, uint32_t turn_word, float ret_pair[2])
{
    const double radius =
        sqrt(-2.0 * dpt_natural_log(((double)radius_word + 1.0) * 0x1p-32)); /* of (0, 1] */
    /* By the nearest quarter turn (it wraps to 0 with the word); the rest is exact in integers. */
    const uint32_t quadrant = (turn_word + (1u << 29)) >> 30;
    const int32_t rest = (int32_t)(turn_word - (quadrant << 30));
    double s, c;
    dpt_sincos((int32_t)quadrant, (double)rest * (6.28318530717958647693 * 0x1p-32), &s, &c);
    ret_pair[0] = (float)(radius * c);
    ret_pair[1] = (float)(radius * s);
}

#endif
