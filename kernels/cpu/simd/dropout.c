/* Dropout's mask: sixteen Philox4x32-10 blocks at a time (Salmon et al., SC'11). The words are
 * those of dpt_philox. */
#include "base/rng.h"
#include "kernels/cpu/simd/simd.h"

enum { GROUP = 4 * LANES };

/* ret = words 0 … 3 of blocks counter + order[lane]. */
INLINE void philox16(struct dpt_rng_key key, uint64_t counter, const uint32_t order[LANES],
                     w16 ret[4])
{
    uint32_t lo[LANES], hi[LANES];
    for (int i = 0; i < LANES; i++) {
        uint64_t at = counter + order[i];
        lo[i] = (uint32_t)at;
        hi[i] = (uint32_t)(at >> 32);
    }
    w16 c0 = w_load(lo), c1 = w_load(hi), c2 = w_set(0), c3 = w_set(0);
    const w16 m0 = w_set(DPT_PHILOX_M0), m1 = w_set(DPT_PHILOX_M1);
    uint32_t k0 = key.k[0], k1 = key.k[1];
    for (int round = 0; round < DPT_PHILOX_ROUNDS; round++) {
        w16 hi0, lo0, hi1, lo1;
        w_multiply(c0, m0, &hi0, &lo0);
        w_multiply(c2, m1, &hi1, &lo1);
        c0 = w_xor(w_xor(hi1, c1), w_set(k0));
        c2 = w_xor(w_xor(hi0, c3), w_set(k1));
        c1 = lo1;
        c3 = lo0;
        k0 += DPT_PHILOX_W0;
        k1 += DPT_PHILOX_W1;
    }
    ret[0] = c0;
    ret[1] = c1;
    ret[2] = c2;
    ret[3] = c3;
}

/* Factors of the 64 elements of blocks `block` to `block` + 15. */
INLINE void drop_group(const struct dpt_dropout *d, uint64_t block, w16 below, v16 keep, float *ret)
{
    /* Lane 4q+j computes block 4j+q. A transposition of 4 x 4 lanes then makes the words of a block
     * adjacent and puts the blocks in order. */
    static const uint32_t order[LANES] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
    w16 words[4];
    v16 factors[4];
    philox16(d->key, block, order, words);
    for (int i = 0; i < 4; i++)
        factors[i] = w_keep(words[i], below, keep);
    v_transpose4(factors);
    for (int i = 0; i < 4; i++)
        v_store(ret + i * LANES, factors[i]);
}

void SIMD(drop_factors)(int64_t n, const struct dpt_dropout *d, uint64_t first, float *ret)
{
    const w16 below = w_set((uint32_t)((double)d->p * 4294967296.0));
    const v16 keep = v_set(1.0f / (1.0f - d->p));
    uint64_t block = first / 4;
    int64_t skip = (int64_t)(first % 4), at = 0;
    while (at < n) {
        if (skip == 0 && n - at >= GROUP) {
            drop_group(d, block, below, keep, ret + at);
            at += GROUP;
        } else {
            float part[GROUP];
            int64_t count = n - at < GROUP - skip ? n - at : GROUP - skip;
            drop_group(d, block, below, keep, part);
            memcpy(ret + at, part + skip, (size_t)count * sizeof *ret);
            at += count;
            skip = 0;
        }
        block += LANES;
    }
}
