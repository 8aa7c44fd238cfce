/* Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as
 * 1, 2, 3", SC'11).
 *
 * There is no state: a number is a function of (key, counter). A key names the purpose of the
 * number, never the rank that draws it. So every rank at every world size draws the same number. */
#ifndef DPT_BASE_RNG_H
#define DPT_BASE_RNG_H

#include "base/device_fn.h"

#include <stdint.h>

enum dpt_rng_purpose {
    DPT_RNG_INIT = 1,    /* initial weights; a = tensor index */
    DPT_RNG_DROPOUT = 2, /* a = step, b = slot, c = site in the model */
    DPT_RNG_SAMPLER = 3, /* data permutation; a = epoch */
    DPT_RNG_TEST = 4,
    DPT_RNG_GENERATE = 5, /* tokens drawn from a model; a = index of the token */
    /* Factors; a = tensor index, b = step + 1 (0: initial), c = column + 1 (0: all columns). */
    DPT_RNG_POWERSGD = 6,
    DPT_RNG_AUGMENT = 7 /* variation of an image; a = number of the sample in the run */
};

struct dpt_rng_key {
    uint32_t k[2];
};

/* Derives the key of one stream from the run's seed and up to three numbers.
 * dpt_rng_purpose defines the numbers. Philox itself hashes them. */
struct dpt_rng_key dpt_rng_key(uint64_t seed, enum dpt_rng_purpose purpose, uint64_t a, uint64_t b,
                               uint64_t c);

/* Constants of section 3.3 and table 2 of the paper (Random123, philox.h). */
#define DPT_PHILOX_M0 0xD2511F53u
#define DPT_PHILOX_M1 0xCD9E8D57u
#define DPT_PHILOX_W0 0x9E3779B9u
#define DPT_PHILOX_W1 0xBB67AE85u
enum { DPT_PHILOX_ROUNDS = 10 };

/* The block of four 32-bit numbers at a full 128-bit counter (low word first), as Random123 defines
 * it. */
DPT_DEVICE_FN void dpt_philox_block(struct dpt_rng_key key, const uint32_t counter[4],
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

/* The block at `counter` of the stream `key`. */
DPT_DEVICE_FN void dpt_philox(struct dpt_rng_key key, uint64_t counter, uint32_t ret_block[4])
{
    const uint32_t words[4] = {(uint32_t)counter, (uint32_t)(counter >> 32), 0, 0};
    dpt_philox_block(key, words, ret_block);
}

/* Standard normal values i and i+1 of a stream, for even i, by Box-Muller on 32-bit uniforms
 * (double precision inside, rounded once). */
void dpt_rng_normal_pair(struct dpt_rng_key key, uint64_t i, float ret_pair[2]);

#endif
