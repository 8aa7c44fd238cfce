/* XXH3-128 (the only file that includes xxHash) and CRC32C. */
#include "base/hash.h"

#include "base/cursor.h"

#include <pthread.h>
#include <string.h>
#include <xxhash.h>

struct dpt_hash128 dpt_hash128(const void *data, size_t bytes)
{
    XXH128_hash_t h = XXH3_128bits(data, bytes);
    return (struct dpt_hash128){.hi = h.high64, .lo = h.low64};
}

struct dpt_hash128 dpt_hash128_join(struct dpt_hash128 h, struct dpt_hash128 next)
{
    uint8_t pair[32];
    struct dpt_writer writer;
    dpt_writer_init(&writer, pair, sizeof pair);
    dpt_writer_u64(&writer, h.hi);
    dpt_writer_u64(&writer, h.lo);
    dpt_writer_u64(&writer, next.hi);
    dpt_writer_u64(&writer, next.lo);
    return dpt_hash128(pair, sizeof pair);
}

void dpt_hash128_hex(struct dpt_hash128 h, char ret_hex[DPT_HASH_HEX_BYTES])
{
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < 16; i++) {
        ret_hex[i] = digits[(h.hi >> (60 - 4 * i)) & 15];
        ret_hex[16 + i] = digits[(h.lo >> (60 - 4 * i)) & 15];
    }
    ret_hex[32] = '\0';
}

/* CRC32C, reflected polynomial. table[0] advances a remainder by one byte, table[j] by j more zero
 * bytes ("slicing by 8", Kounavis and Berry, ISCC 2005). */
static const uint32_t POLYNOMIAL = 0x82F63B78u;
static uint32_t table[8][256];
static pthread_once_t table_once = PTHREAD_ONCE_INIT;

static void fill_table(void)
{
    for (uint32_t n = 0; n < 256; n++) {
        uint32_t r = n;
        for (int bit = 0; bit < 8; bit++)
            r = (r >> 1) ^ ((r & 1) ? POLYNOMIAL : 0);
        table[0][n] = r;
    }
    for (uint32_t n = 0; n < 256; n++)
        for (int j = 1; j < 8; j++)
            table[j][n] = (table[j - 1][n] >> 8) ^ table[0][table[j - 1][n] & 255];
}

uint32_t dpt_crc32c_portable(uint32_t crc, const void *data, size_t bytes)
{
    (void)pthread_once(&table_once, fill_table);
    const unsigned char *p = data;
    uint32_t r = ~crc;
    for (; bytes >= 8; bytes -= 8, p += 8) {
        uint32_t low = r ^ ((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 |
                            (uint32_t)p[3] << 24);
        r = table[7][low & 255] ^ table[6][(low >> 8) & 255] ^ table[5][(low >> 16) & 255] ^
            table[4][low >> 24] ^ table[3][p[4]] ^ table[2][p[5]] ^ table[1][p[6]] ^ table[0][p[7]];
    }
    for (; bytes > 0; bytes--, p++)
        r = (r >> 8) ^ table[0][(r ^ *p) & 255];
    return ~r;
}

#if defined(__x86_64__)
#include <immintrin.h>

__attribute__((target("sse4.2"))) static uint32_t crc32c_sse42(uint32_t crc, const void *data,
                                                               size_t bytes)
{
    const unsigned char *p = data;
    uint64_t r = (uint32_t)~crc;
    for (; bytes >= 8; bytes -= 8, p += 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        r = _mm_crc32_u64(r, word);
    }
    uint32_t r32 = (uint32_t)r;
    for (; bytes > 0; bytes--, p++)
        r32 = _mm_crc32_u8(r32, *p);
    return ~r32;
}

uint32_t dpt_crc32c(uint32_t crc, const void *data, size_t bytes)
{
    return __builtin_cpu_supports("sse4.2") ? crc32c_sse42(crc, data, bytes)
                                            : dpt_crc32c_portable(crc, data, bytes);
}
#else
uint32_t dpt_crc32c(uint32_t crc, const void *data, size_t bytes)
{
    return dpt_crc32c_portable(crc, data, bytes);
}
#endif

/* a x b modulo the polynomial; the highest bit is the coefficient of x^0. */
static uint32_t multiply_polynomials(uint32_t a, uint32_t b)
{
    uint32_t product = 0;
    for (uint32_t bit = UINT32_C(1) << 31; bit != 0; bit >>= 1) {
        product ^= a & bit ? b : 0;
        b = (b >> 1) ^ ((b & 1) ? POLYNOMIAL : 0); /* multiplies b by x */
    }
    return product;
}

uint32_t dpt_crc32c_join(uint32_t first, uint32_t second, int64_t second_bytes)
{
    uint32_t shift = UINT32_C(1) << 31;       /* x^0 */
    uint32_t power = UINT32_C(1) << (31 - 8); /* x^8: one byte */
    for (uint64_t n = (uint64_t)second_bytes; n != 0; n >>= 1) {
        if (n & 1)
            shift = multiply_polynomials(shift, power);
        power = multiply_polynomials(power, power);
    }
    return multiply_polynomials(shift, first) ^ second;
}
