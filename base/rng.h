/* Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as
 * 1, 2, 3", SC'11).
 *
 * There is no state: a number is a function of (key, counter). Keys say what the number is for,
 * never which rank draws it, so that any rank, at any world size, draws the same one. */
#ifndef DPT_BASE_RNG_H
#define DPT_BASE_RNG_H

#include <stdint.h>

enum dpt_rng_purpose {
    DPT_RNG_INIT = 1,    /* initial weights; a = tensor index */
    DPT_RNG_DROPOUT = 2, /* a = step, b = slot, c = site in the model */
    DPT_RNG_SAMPLER = 3, /* data permutation; a = epoch */
    DPT_RNG_TEST = 4,
    DPT_RNG_GENERATE = 5, /* tokens drawn from a model; a = which */
    DPT_RNG_POWERSGD = 6, /* factors; a = tensor index, b = step + 1, c = column + 1; 0: all */
    DPT_RNG_AUGMENT = 7   /* how an image is varied; a = number of the sample in the run */
};

struct dpt_rng_key {
    uint32_t k[2];
};

/* Derives the key of one stream from the run's seed and up to three numbers (meaning: see
 * dpt_rng_purpose), by hashing them with Philox itself. */
struct dpt_rng_key dpt_rng_key(uint64_t seed, enum dpt_rng_purpose purpose, uint64_t a, uint64_t b,
                               uint64_t c);

/* The block of four 32-bit numbers at `counter` of the stream `key`. */
void dpt_philox(struct dpt_rng_key key, uint64_t counter, uint32_t ret_block[4]);

/* The block at a full 128-bit counter (low word first), as Random123 defines it. */
void dpt_philox_block(struct dpt_rng_key key, const uint32_t counter[4], uint32_t ret_block[4]);

/* Standard normal values i and i+1 of a stream, for even i, by Box-Muller on 32-bit uniforms
 * (double precision inside, rounded once). */
void dpt_rng_normal_pair(struct dpt_rng_key key, uint64_t i, float ret_pair[2]);

#endif
