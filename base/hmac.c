/* HMAC with SHA-256. */
#include "base/hmac.h"

#include "base/err.h"
#include "base/sha256.h"

#include <string.h>

enum { INNER_PAD = 0x36, OUTER_PAD = 0x5c };

/* Begins a hash with the key, each byte of it changed by `pad`. */
static void begin_with_key(struct dpt_sha256 *sha, const void *key, size_t key_bytes, uint8_t pad)
{
    uint8_t block[DPT_HMAC_KEY_BYTES_MAX] = {0};
    if (key_bytes > 0)
        memcpy(block, key, key_bytes);
    for (size_t i = 0; i < sizeof block; i++)
        block[i] ^= pad;
    dpt_sha256_init(sha);
    dpt_sha256_add(sha, block, sizeof block);
}

void dpt_hmac(const void *key, size_t key_bytes, const void *message, size_t bytes,
              uint8_t ret[DPT_HMAC_BYTES])
{
    struct dpt_sha256 sha;
    uint8_t inner[DPT_SHA256_BYTES];
    DPT_ASSERT(key_bytes <= DPT_HMAC_KEY_BYTES_MAX);
    begin_with_key(&sha, key, key_bytes, INNER_PAD);
    if (bytes > 0)
        dpt_sha256_add(&sha, message, bytes);
    dpt_sha256_end(&sha, inner);
    begin_with_key(&sha, key, key_bytes, OUTER_PAD);
    dpt_sha256_add(&sha, inner, sizeof inner);
    dpt_sha256_end(&sha, ret);
}

bool dpt_hmac_equal(const uint8_t *a, const uint8_t *b, size_t bytes)
{
    uint8_t differs = 0;
    for (size_t i = 0; i < bytes; i++)
        differs |= (uint8_t)(a[i] ^ b[i]);
    return differs == 0;
}
