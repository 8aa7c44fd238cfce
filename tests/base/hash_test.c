/* Known answers of both hashes; the instruction and the table agree at every length, alignment and
 * split. */
#include "base/hash.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

typedef uint32_t crc_fn(uint32_t crc, const void *data, size_t bytes);
static crc_fn *const variants[] = {dpt_crc32c, dpt_crc32c_portable};

/* RFC 3720, B.4, and the check value of the CRC catalogue. */
static void crc_known_answers(void **state)
{
    (void)state;
    unsigned char zeros[32] = {0}, ones[32], up[32], down[32];
    for (int i = 0; i < 32; i++) {
        ones[i] = 0xff;
        up[i] = (unsigned char)i;
        down[i] = (unsigned char)(31 - i);
    }
    for (size_t v = 0; v < 2; v++) {
        assert_int_equal(variants[v](0, "", 0), 0);
        assert_int_equal(variants[v](0, "123456789", 9), 0xE3069283u);
        assert_int_equal(variants[v](0, zeros, 32), 0x8A9136AAu);
        assert_int_equal(variants[v](0, ones, 32), 0x62A8AB43u);
        assert_int_equal(variants[v](0, up, 32), 0x46DD794Eu);
        assert_int_equal(variants[v](0, down, 32), 0x113FDB5Cu);
    }
}

static void crc_variants_agree(void **state)
{
    (void)state;
    static unsigned char data[4096];
    uint32_t x = 1;
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)((x = x * 1664525u + 1013904223u) >> 24);
    for (size_t from = 0; from < 9; from++)
        for (size_t n = 0; n < 300; n++)
            assert_int_equal(dpt_crc32c(x, data + from, n), dpt_crc32c_portable(x, data + from, n));
    uint32_t whole = dpt_crc32c(0, data, sizeof data);
    assert_int_equal(dpt_crc32c_portable(0, data, sizeof data), whole);
    for (size_t cut = 0; cut <= sizeof data; cut += 13) {
        uint32_t crc = dpt_crc32c(0, data, cut);
        assert_int_equal(dpt_crc32c_portable(crc, data + cut, sizeof data - cut), whole);
    }
    data[1000] ^= 0x10;
    assert_int_not_equal(dpt_crc32c(0, data, sizeof data), whole);
}

/* Any cut of any bytes, the empty ends too. */
static void crc_of_parts_joined(void **state)
{
    (void)state;
    static unsigned char data[70000];
    uint32_t x = 5;
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)((x = x * 1664525u + 1013904223u) >> 24);
    const uint32_t whole = dpt_crc32c(0, data, sizeof data);
    for (size_t cut = 0; cut <= sizeof data; cut += cut < 300 ? 1 : 997) {
        const uint32_t first = dpt_crc32c(0, data, cut);
        const uint32_t second = dpt_crc32c(0, data + cut, sizeof data - cut);
        assert_int_equal(dpt_crc32c_join(first, second, (int64_t)(sizeof data - cut)), whole);
    }
    assert_int_equal(dpt_crc32c_join(whole, 0, 0), whole);
    assert_int_not_equal(dpt_crc32c_join(whole, 0, 1), whole);
    /* Zeros by the TiB: as many as one after the other. */
    const int64_t tib = INT64_C(1) << 40;
    assert_int_equal(dpt_crc32c_join(dpt_crc32c_join(whole, 0, tib), 0, 12345),
                     dpt_crc32c_join(whole, 0, tib + 12345));
}

static void xxh3_known_answers(void **state)
{
    (void)state;
    static const struct {
        const char *text, *hex;
    } cases[] = {{"", "99aa06d3014798d86001c324468d497f"},
                 {"abc", "06b05ab6733a618578af5f94892f3950"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char hex[DPT_HASH_HEX_BYTES];
        dpt_hash128_hex(dpt_hash128(cases[i].text, strlen(cases[i].text)), hex);
        assert_string_equal(hex, cases[i].hex);
    }
    char hex[DPT_HASH_HEX_BYTES];
    dpt_hash128_hex((struct dpt_hash128){.hi = 0x1, .lo = 0xf000000000000002}, hex);
    assert_string_equal(hex, "0000000000000001f000000000000002");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(crc_known_answers), cmocka_unit_test(crc_variants_agree),
        cmocka_unit_test(crc_of_parts_joined), cmocka_unit_test(xxh3_known_answers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
