/* SHA-256 as FIPS 180-4 defines it, section by section. */
#include "base/sha256.h"

#include <string.h>

enum { BLOCK_BYTES = 64, LENGTH_BYTES = 8, ROUNDS = 64 };

/* Section 4.2.2: the first 32 bits of the fractional parts of the cube roots of the first 64
 * primes. */
static const uint32_t k[ROUNDS] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotate_right(uint32_t x, int n)
{
    return x >> n | x << (32 - n);
}

/* Section 6.2.2. */
static void sha256_add_block(uint32_t h[8], const uint8_t *block)
{
    uint32_t w[ROUNDS], s[8];
    for (int t = 0; t < 16; t++, block += 4)
        w[t] = (uint32_t)block[0] << 24 | (uint32_t)block[1] << 16 | (uint32_t)block[2] << 8 |
               block[3];
    for (int t = 16; t < ROUNDS; t++) {
        const uint32_t a = w[t - 15], b = w[t - 2];
        w[t] = (rotate_right(b, 17) ^ rotate_right(b, 19) ^ b >> 10) + w[t - 7] +
               (rotate_right(a, 7) ^ rotate_right(a, 18) ^ a >> 3) + w[t - 16];
    }
    memcpy(s, h, sizeof s);
    for (int t = 0; t < ROUNDS; t++) {
        const uint32_t e = s[4], a = s[0];
        const uint32_t t1 = s[7] +
                            (rotate_right(e, 6) ^ rotate_right(e, 11) ^ rotate_right(e, 25)) +
                            ((e & s[5]) ^ (~e & s[6])) + k[t] + w[t];
        const uint32_t t2 = (rotate_right(a, 2) ^ rotate_right(a, 13) ^ rotate_right(a, 22)) +
                            ((a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2]));
        memmove(s + 1, s, 7 * sizeof *s);
        s[4] += t1;
        s[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++)
        h[i] += s[i];
}

void dpt_sha256_init(struct dpt_sha256 *sha)
{
    /* Section 5.3.3: the first 32 bits of the fractional parts of the square roots of the first 8
     * primes. */
    *sha = (struct dpt_sha256){.h = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f,
                                     0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};
}

void dpt_sha256_add(struct dpt_sha256 *sha, const void *data, size_t bytes)
{
    const uint8_t *from = data;
    size_t used = (size_t)(sha->bytes % BLOCK_BYTES);
    sha->bytes += bytes;
    if (used > 0) {
        const size_t room = BLOCK_BYTES - used, n = bytes < room ? bytes : room;
        memcpy(sha->block + used, from, n);
        from += n;
        bytes -= n;
        if (n < room)
            return;
        sha256_add_block(sha->h, sha->block);
    }
    for (; bytes >= BLOCK_BYTES; bytes -= BLOCK_BYTES, from += BLOCK_BYTES)
        sha256_add_block(sha->h, from);
    if (bytes > 0)
        memcpy(sha->block, from, bytes);
}

void dpt_sha256_end(struct dpt_sha256 *sha, uint8_t ret[DPT_SHA256_BYTES])
{
    /* Section 5.1.1: a one bit, zeros, the length in bits. */
    uint8_t padding[BLOCK_BYTES + LENGTH_BYTES] = {0x80};
    const uint64_t bits = sha->bytes * 8;
    const size_t used = (size_t)(sha->bytes % BLOCK_BYTES);
    size_t n = BLOCK_BYTES - LENGTH_BYTES - used;
    if (used >= BLOCK_BYTES - LENGTH_BYTES)
        n += BLOCK_BYTES;
    for (int i = 0; i < LENGTH_BYTES; i++)
        padding[n + (size_t)i] = (uint8_t)(bits >> (56 - 8 * i));
    dpt_sha256_add(sha, padding, n + LENGTH_BYTES);
    for (int i = 0; i < DPT_SHA256_BYTES; i++)
        ret[i] = (uint8_t)(sha->h[i / 4] >> (24 - 8 * (i % 4)));
}

void dpt_sha256_hex(struct dpt_sha256 *sha, char ret_hex[DPT_SHA256_HEX_BYTES])
{
    static const char digits[] = "0123456789abcdef";
    uint8_t sum[DPT_SHA256_BYTES];
    dpt_sha256_end(sha, sum);
    for (int i = 0; i < DPT_SHA256_BYTES; i++) {
        ret_hex[2 * i] = digits[sum[i] >> 4];
        ret_hex[2 * i + 1] = digits[sum[i] & 15];
    }
    ret_hex[2 * DPT_SHA256_BYTES] = '\0';
}
