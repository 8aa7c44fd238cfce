/* The keyed permutation of samples (sampler.h): a balanced Feistel network on 2 h bits, the
 * smallest with 4^h >= n, applied again until the value is in [0, n) (J. Black and P. Rogaway,
 * "Ciphers with Arbitrary Finite Domains", CT-RSA 2002, §3 "cycle walking"). The domain is smaller
 * than 4 n, so it is applied less than 4 times on average. The walk ends because the network is a
 * permutation and the walk starts inside [0, n). The round function is Philox. */
#include "worker/plan/sampler.h"

#include "base/err.h"
#include "base/rng.h"

/* Small domains need more rounds than the 4 of Luby and Rackoff to look uniform. */
enum { ROUNDS = 8 };

static uint64_t feistel(struct dpt_rng_key key, int half_bits, uint64_t x)
{
    const uint64_t mask = (UINT64_C(1) << half_bits) - 1;
    uint64_t left = x >> half_bits;
    uint64_t right = x & mask;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        const uint32_t counter[4] = {(uint32_t)right, round, 0, 0};
        uint32_t block[4];
        dpt_philox_block(key, counter, block);
        const uint64_t next = left ^ (block[0] & mask);
        left = right;
        right = next;
    }
    return left << half_bits | right;
}

int64_t dpt_sampler_number(int64_t n, int64_t epoch_steps, int64_t batch, int64_t step, int64_t at)
{
    DPT_ASSERT(batch >= 1 && step >= 0 && at >= 0 && at < batch);
    if (epoch_steps == 0)
        return step * batch + at;
    DPT_ASSERT(epoch_steps <= n / batch);
    return step / epoch_steps * n + step % epoch_steps * batch + at;
}

int64_t dpt_sampler_index(uint64_t seed, int64_t n, int64_t i)
{
    DPT_ASSERT(n >= 1 && i >= 0);
    if (n == 1)
        return 0;
    int half_bits = 1;
    while (half_bits < 31 && INT64_C(1) << (2 * half_bits) < n)
        half_bits++;
    DPT_ASSERT(INT64_C(1) << (2 * half_bits) >= n); /* n <= 2^62 */
    const struct dpt_rng_key key = dpt_rng_key(seed, DPT_RNG_SAMPLER, (uint64_t)(i / n), 0, 0);
    uint64_t x = (uint64_t)(i % n);
    do
        x = feistel(key, half_bits, x);
    while (x >= (uint64_t)n);
    return (int64_t)x;
}
