/* Keys of streams, and normal values for the host (rng.h). */
#include "base/rng.h"

#include "base/draw.h"
#include "base/err.h"

struct dpt_rng_key dpt_rng_key(uint64_t seed, enum dpt_rng_purpose purpose, uint64_t a, uint64_t b,
                               uint64_t c)
{
    /* Two chained blocks. Every input is a whole counter word, so different tuples give different
     * counters. */
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

void dpt_rng_normal_pair(struct dpt_rng_key key, uint64_t i, float ret_pair[2])
{
    DPT_ASSERT(i % 2 == 0);
    /* A block holds two pairs. */
    uint32_t block[4];
    dpt_philox(key, i / 4, block);
    dpt_draw_normal_pair(block[i % 4], block[i % 4 + 1], ret_pair);
}
