/* Exact, order-free accumulator of doubles. */
#include "base/accum.h"

#include "base/err.h"

#include <math.h>
#include <string.h>

enum {
    LIMB_BITS = 32,
    MANTISSA_BITS = 52, /* stored bits of a double's mantissa */
    EXPONENT_SPECIAL = 2047,
    /* Carries move after this many terms: 2^30 * 2^32 is well inside int64. */
    PENDING_MAX = 1 << 30
};
#define LIMB_MASK ((int64_t)0xffffffff)

void dpt_accum_init(struct dpt_accum *accum)
{
    memset(accum, 0, sizeof *accum);
}

bool dpt_accum_is_sound(const struct dpt_accum *accum)
{
    const uint32_t known = DPT_ACCUM_NAN | DPT_ACCUM_PLUS_INF | DPT_ACCUM_MINUS_INF;
    if (accum->pending >= PENDING_MAX || (accum->flags & ~known) != 0)
        return false;
    const int64_t most = ((int64_t)accum->pending + 1) * (LIMB_MASK + 1);
    for (int i = 0; i < DPT_ACCUM_LIMBS; i++)
        if (accum->limb[i] < -most || accum->limb[i] > most)
            return false;
    return true;
}

void dpt_accum_normalise(struct dpt_accum *accum)
{
    /* Floor division by 2^32: limbs end in [0, 2^32), the last one keeps the sign. A right shift of
     * a negative number keeps its sign in every compiler we support. */
    int64_t carry = 0;
    for (int i = 0; i < DPT_ACCUM_LIMBS - 1; i++) {
        int64_t sum = accum->limb[i] + carry;
        accum->limb[i] = sum & LIMB_MASK;
        carry = sum >> LIMB_BITS;
    }
    accum->limb[DPT_ACCUM_LIMBS - 1] += carry;
    accum->pending = 0;
}

void dpt_accum_add(struct dpt_accum *accum, double value)
{
    uint64_t raw;
    memcpy(&raw, &value, sizeof raw);
    int exponent = (int)(raw >> MANTISSA_BITS) & EXPONENT_SPECIAL;
    uint64_t mantissa = raw & ((UINT64_C(1) << MANTISSA_BITS) - 1);
    bool negative = raw >> 63;
    if (exponent == EXPONENT_SPECIAL) {
        accum->flags |= mantissa != 0 ? DPT_ACCUM_NAN
                        : negative    ? DPT_ACCUM_MINUS_INF
                                      : DPT_ACCUM_PLUS_INF;
        return;
    }
    if (exponent > 0)
        mantissa |= UINT64_C(1) << MANTISSA_BITS;
    else
        exponent = 1; /* subnormals have the least exponent */

    /* value = ± mantissa 2^shift 2^-1074: at most 53 + 31 bits from bit `shift` on, which are in
     * three limbs. */
    int shift = exponent - 1;
    int first = shift / LIMB_BITS, by = shift % LIMB_BITS;
    uint64_t low = mantissa << by;
    int64_t high = by ? (int64_t)(mantissa >> (64 - by)) : 0;
    int64_t part[3] = {(int64_t)low & LIMB_MASK, (int64_t)(low >> LIMB_BITS), high};
    for (int i = 0; i < 3; i++)
        accum->limb[first + i] += negative ? -part[i] : part[i];
    if (++accum->pending >= PENDING_MAX)
        dpt_accum_normalise(accum);
}

void dpt_accum_merge(struct dpt_accum *accum, const struct dpt_accum *other)
{
    struct dpt_accum term = *other; /* a copy: `other` may be the same object */
    if ((uint64_t)accum->pending + term.pending + 1 >= PENDING_MAX) {
        dpt_accum_normalise(accum);
        dpt_accum_normalise(&term);
    }
    for (int i = 0; i < DPT_ACCUM_LIMBS; i++)
        accum->limb[i] += term.limb[i];
    accum->pending += term.pending + 1;
    accum->flags |= term.flags;
}

/* Bits [from, from + 64) of a normalised number that is not negative. */
static uint64_t bits_at(const struct dpt_accum *accum, int from)
{
    uint64_t bits = 0;
    for (int i = from / LIMB_BITS; i < DPT_ACCUM_LIMBS && i * LIMB_BITS < from + 64; i++) {
        uint64_t limb = (uint64_t)accum->limb[i];
        int at = i * LIMB_BITS - from;
        bits |= at >= 0 ? limb << at : limb >> -at;
    }
    return bits;
}

static bool any_bit_below(const struct dpt_accum *accum, int end)
{
    for (int i = 0; i * LIMB_BITS < end; i++) {
        int n = end - i * LIMB_BITS;
        int64_t mask = n >= LIMB_BITS ? LIMB_MASK : ((int64_t)1 << n) - 1;
        if (accum->limb[i] & mask)
            return true;
    }
    return false;
}

/* Returns a normalised number >= 0 as a double, rounded to nearest even. */
static double round_magnitude(const struct dpt_accum *accum)
{
    int top = -1; /* highest bit set */
    for (int i = DPT_ACCUM_LIMBS - 1; i >= 0 && top < 0; i--)
        if (accum->limb[i] != 0)
            top = i * LIMB_BITS + 63 - __builtin_clzll((unsigned long long)accum->limb[i]);
    if (top < 0)
        return 0.0;
    if (top <= MANTISSA_BITS) /* at most 53 bits from 2^-1074 on, as all subnormals: exact */
        return ldexp((double)bits_at(accum, 0), -1074);
    int from = top - MANTISSA_BITS;
    uint64_t mantissa = bits_at(accum, from) & ((UINT64_C(1) << (MANTISSA_BITS + 1)) - 1);
    bool half = bits_at(accum, from - 1) & 1;
    if (half && ((mantissa & 1) || any_bit_below(accum, from - 1)))
        mantissa++;                              /* 2^53 is exact too */
    return ldexp((double)mantissa, from - 1074); /* exact, or infinity */
}

double dpt_accum_value(const struct dpt_accum *accum)
{
    uint32_t infinite = accum->flags & (DPT_ACCUM_PLUS_INF | DPT_ACCUM_MINUS_INF);
    if ((accum->flags & DPT_ACCUM_NAN) || infinite == (DPT_ACCUM_PLUS_INF | DPT_ACCUM_MINUS_INF))
        return (double)NAN;
    if (infinite)
        return infinite == DPT_ACCUM_PLUS_INF ? (double)INFINITY : -(double)INFINITY;

    struct dpt_accum sum = *accum;
    dpt_accum_normalise(&sum);
    bool negative = sum.limb[DPT_ACCUM_LIMBS - 1] < 0;
    if (negative) {
        for (int i = 0; i < DPT_ACCUM_LIMBS; i++)
            sum.limb[i] = -sum.limb[i];
        dpt_accum_normalise(&sum);
    }
    double magnitude = round_magnitude(&sum);
    return negative ? -magnitude : magnitude;
}
