/* SHA-256 (FIPS 180-4), for files that other projects publish with this checksum, and for
 * `sha256sum -c`. All other data is hashed with base/hash.h, which is faster. */
#ifndef DPT_BASE_SHA256_H
#define DPT_BASE_SHA256_H

#include <stddef.h>
#include <stdint.h>

struct dpt_sha256 {
    uint32_t h[8];
    uint64_t bytes;    /* number of bytes added so far */
    uint8_t block[64]; /* its first `bytes` % 64 bytes are not hashed yet */
};

/* Call init, then add any number of times, then end or hex once. hex writes 64 lower-case hex
 * digits and a NUL. */
enum { DPT_SHA256_BYTES = 32, DPT_SHA256_HEX_BYTES = 65 };
void dpt_sha256_init(struct dpt_sha256 *sha);
void dpt_sha256_add(struct dpt_sha256 *sha, const void *data, size_t bytes);
void dpt_sha256_end(struct dpt_sha256 *sha, uint8_t ret[DPT_SHA256_BYTES]);
void dpt_sha256_hex(struct dpt_sha256 *sha, char ret_hex[DPT_SHA256_HEX_BYTES]);

#endif
