/* Hashes: XXH3-128 for content; CRC32C, by a hardware instruction if available, for blocks of
 * files. */
#ifndef DPT_BASE_HASH_H
#define DPT_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

struct dpt_hash128 {
    uint64_t hi, lo;
};

/* XXH3-128 of `bytes` bytes. */
struct dpt_hash128 dpt_hash128(const void *data, size_t bytes);

/* XXH3-128 of the two hashes, as little-endian numbers. For hashes of sequences. */
struct dpt_hash128 dpt_hash128_join(struct dpt_hash128 h, struct dpt_hash128 next);

/* Writes 32 lower-case hex digits and a NUL. */
enum { DPT_HASH_HEX_BYTES = 33 };
void dpt_hash128_hex(struct dpt_hash128 h, char ret_hex[DPT_HASH_HEX_BYTES]);

/* CRC32C (Castagnoli, as in RFC 3720 B.4) of the bytes with CRC32C `crc` followed by `data`. `crc`
 * is 0 for the first range. */
uint32_t dpt_crc32c(uint32_t crc, const void *data, size_t bytes);

/* The CRC32C of two byte ranges one after the other, from the CRC32C of each range and the length
 * of the second. It advances `first` by `second_bytes` zero bytes, which is a product of
 * polynomials modulo the CRC's polynomial (as in crc32_combine of zlib 1.2.12 by Mark Adler). O(log
 * second_bytes). */
uint32_t dpt_crc32c_join(uint32_t first, uint32_t second, int64_t second_bytes);

/* dpt_crc32c by table, for processors without the instruction. */
uint32_t dpt_crc32c_portable(uint32_t crc, const void *data, size_t bytes);

#endif
