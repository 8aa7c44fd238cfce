/* Philox4x32-10 and what is drawn from it. Only integer arithmetic and the four correctly rounded
 * double operations are used, no libm function: initial weights are the same bits on every machine
 * and C library. */
#include "base/rng.h"

#include "base/err.h"

#include <math.h>

/* Constants of Salmon et al., section 3.3 and table 2 (Random123 philox.h). */
#define PHILOX_M0 0xD2511F53u
#define PHILOX_M1 0xCD9E8D57u
#define PHILOX_W0 0x9E3779B9u
#define PHILOX_W1 0xBB67AE85u
enum { PHILOX_ROUNDS = 10 };

void dpt_philox_block(struct dpt_rng_key key, const uint32_t counter[4], uint32_t ret_block[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key.k[0], k1 = key.k[1];
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        uint64_t p0 = (uint64_t)PHILOX_M0 * c0;
        uint64_t p1 = (uint64_t)PHILOX_M1 * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        k0 += PHILOX_W0;
        k1 += PHILOX_W1;
    }
    ret_block[0] = c0;
    ret_block[1] = c1;
    ret_block[2] = c2;
    ret_block[3] = c3;
}

void dpt_philox(struct dpt_rng_key key, uint64_t counter, uint32_t ret_block[4])
{
    const uint32_t c[4] = {(uint32_t)counter, (uint32_t)(counter >> 32), 0, 0};
    dpt_philox_block(key, c, ret_block);
}

struct dpt_rng_key dpt_rng_key(uint64_t seed, enum dpt_rng_purpose purpose, uint64_t a, uint64_t b,
                               uint64_t c)
{
    /* Two chained blocks: every input is a whole counter word, so no two tuples are mixed up before
     * hashing. */
    struct dpt_rng_key key = {{(uint32_t)seed, (uint32_t)(seed >> 32)}};
    uint32_t block[4];
    const uint32_t first[4] = {(uint32_t)purpose, 0x64707431u /* "dpt1" */, (uint32_t)a,
                               (uint32_t)(a >> 32)};
    dpt_philox_block(key, first, block);
    key = (struct dpt_rng_key){{block[0], block[1]}};
    const uint32_t second[4] = {(uint32_t)b, (uint32_t)(b >> 32), (uint32_t)c, (uint32_t)(c >> 32)};
    dpt_philox_block(key, second, block);
    return (struct dpt_rng_key){{block[0], block[1]}};
}

/* Coefficients; the compiler folds the divisions, rounding each once as IEEE 754 says. */
enum { LOG_TERMS = 11, TURN_TERMS = 9 };
static const double log_terms[LOG_TERMS] = {1.0,        1.0 / 3.0,  1.0 / 5.0,  1.0 / 7.0,
                                            1.0 / 9.0,  1.0 / 11.0, 1.0 / 13.0, 1.0 / 15.0,
                                            1.0 / 17.0, 1.0 / 19.0, 1.0 / 21.0};
static const double sin_terms[TURN_TERMS] = {-1.0 / 6.0,
                                             1.0 / 120.0,
                                             -1.0 / 5040.0,
                                             1.0 / 362880.0,
                                             -1.0 / 39916800.0,
                                             1.0 / 6227020800.0,
                                             -1.0 / 1307674368000.0,
                                             1.0 / 355687428096000.0,
                                             -1.0 / 121645100408832000.0};
static const double cos_terms[TURN_TERMS] = {-1.0 / 2.0,
                                             1.0 / 24.0,
                                             -1.0 / 720.0,
                                             1.0 / 40320.0,
                                             -1.0 / 3628800.0,
                                             1.0 / 479001600.0,
                                             -1.0 / 87178291200.0,
                                             1.0 / 20922789888000.0,
                                             -1.0 / 6402373705728000.0};

/* ln(n * 2^-32) for n in 1..2^32: n = m 2^e with m in [sqrt(1/2), sqrt(2)), ln m = 2
 * atanh((m-1)/(m+1)) by its series
 * (|s| <= 0.172, the first term left out is below 1e-18). */
static double log_of_uniform(uint64_t n)
{
    int top = 63 - __builtin_clzll(n);
    double m = (double)n / (double)(UINT64_C(1) << top); /* [1, 2), exact */
    int e = top - 32;
    if (m >= 1.4142135623730951) {
        m *= 0.5;
        e++;
    }
    double s = (m - 1.0) / (m + 1.0);
    double s2 = s * s;
    double sum = 0.0;
    for (int i = LOG_TERMS - 1; i >= 0; i--)
        sum = sum * s2 + log_terms[i];
    return e * 0.69314718055994530942 + 2.0 * s * sum;
}

/* sin and cos of 2 pi n 2^-32 by quadrants: the rest is exact in integers and at most pi/4, where
 * Taylor's series to x^19 is good to 1e-17. */
static void sincos_of_turn(uint32_t n, double *ret_sin, double *ret_cos)
{
    uint32_t quadrant =
        (n + (UINT32_C(1) << 29)) >> 30; /* nearest quarter turn; wraps to 0 with n */
    int32_t rest = (int32_t)(n - (quadrant << 30));
    double x = (double)rest * (6.28318530717958647693 * 0x1p-32);
    double x2 = x * x;
    double s = 0.0, c = 0.0;
    for (int i = TURN_TERMS - 1; i >= 0; i--) {
        s = (s + sin_terms[i]) * x2;
        c = (c + cos_terms[i]) * x2;
    }
    s = x + x * s;
    c = 1.0 + c;
    switch (quadrant & 3) {
    case 0:
        *ret_sin = s, *ret_cos = c;
        break;
    case 1:
        *ret_sin = c, *ret_cos = -s;
        break;
    case 2:
        *ret_sin = -s, *ret_cos = -c;
        break;
    default:
        *ret_sin = -c, *ret_cos = s;
        break;
    }
}

void dpt_rng_normal_pair(struct dpt_rng_key key, uint64_t i, float ret_pair[2])
{
    DPT_ASSERT(i % 2 == 0);
    /* A block holds two pairs. */
    uint32_t block[4];
    dpt_philox(key, i / 4, block);
    const uint32_t *u = block + (i % 4);
    double radius = sqrt(-2.0 * log_of_uniform((uint64_t)u[0] + 1)); /* uniform in (0, 1] */
    double s, c;
    sincos_of_turn(u[1], &s, &c);
    ret_pair[0] = (float)(radius * c);
    ret_pair[1] = (float)(radius * s);
}
