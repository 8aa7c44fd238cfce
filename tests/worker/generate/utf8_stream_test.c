/* Bytes in pieces: the output is valid at every moment, and as a whole it equals the repair of the
 * whole input at once. */
#include "worker/generate/utf8_stream.h"

#include "base/rng.h"
#include "worker/data/utf8.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <string.h>

enum { TEXT_MAX = 64 };

static void check_utf8_stream(const uint8_t *text, size_t n, uint64_t seed)
{
    uint8_t whole[3 * TEXT_MAX], told[3 * TEXT_MAX], piece[DPT_UTF8_TEXT_BYTES];
    int64_t replaced = 0;
    struct dpt_utf8_stream stream = {0};
    const struct dpt_rng_key key = dpt_rng_key(seed, DPT_RNG_TEST, 5, 0, 0);
    size_t expected = dpt_utf8_repair(text, n, whole, &replaced), bytes = 0;
    for (size_t at = 0; at < n;) {
        uint32_t block[4];
        dpt_philox(key, at, block);
        const size_t left = n - at, take = 1 + block[0] % 3 < left ? 1 + block[0] % 3 : left;
        const size_t out = dpt_utf8_stream_put(&stream, text + at, take, piece);
        assert_int_equal(dpt_utf8_valid(piece, out), out);
        memcpy(told + bytes, piece, out);
        bytes += out;
        at += take;
        /* What cannot be part of a character any more is not held back. */
        assert_true(stream.n_held <= 3);
    }
    const size_t out = dpt_utf8_stream_end(&stream, piece);
    memcpy(told + bytes, piece, out);
    bytes += out;
    assert_int_equal(bytes, expected);
    assert_memory_equal(told, whole, expected);
    assert_int_equal(dpt_utf8_stream_end(&stream, piece), 0);
}

static void test_cut_characters(void **state)
{
    (void)state;
    static const char *const cases[] = {
        "plain",
        "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", /* 2, 3 and 4 bytes */
        "\xf0\x9f\x98",
        "\xf0\x9f",
        "\xe2\x82",
        "\xc3",
        "\x80\x80",
        "\xc0\xaf", /* overlong */
        "\xe0\x80\x80",
        "\xed\xa0\x80", /* a surrogate */
        "\xf4\x90\x80\x80",
        "\xf5\xff\xfe",
        "a\xf0\x9f"
        "b\xe2"
        "\xc3\xa9\xf0\x9f\x98\x80\xf0",
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (uint64_t seed = 0; seed < 20; seed++)
            check_utf8_stream((const uint8_t *)cases[i], strlen(cases[i]), seed);
}

/* Any bytes, with many that begin or continue characters. */
static void stream_of_any_bytes_is_valid_utf8(void **state)
{
    (void)state;
    static const uint8_t often[] = {0x80, 0xbf, 0xc2, 0xc3, 0xe0, 0xe2, 0xed, 0xf0, 0xf4, 'a'};
    for (uint64_t seed = 0; seed < 2000; seed++) {
        uint8_t text[TEXT_MAX];
        const struct dpt_rng_key key = dpt_rng_key(seed, DPT_RNG_TEST, 6, 0, 0);
        for (uint64_t i = 0; i < TEXT_MAX; i++) {
            uint32_t block[4];
            dpt_philox(key, i, block);
            text[i] = block[0] % 4 == 0 ? (uint8_t)block[1] : often[block[1] % sizeof often];
        }
        check_utf8_stream(text, 1 + seed % TEXT_MAX, seed);
    }
}

/* A whole character leaves at once. */
static void nothing_waits_for_long(void **state)
{
    (void)state;
    uint8_t out[DPT_UTF8_TEXT_BYTES];
    struct dpt_utf8_stream stream = {0};
    static const uint8_t smile[] = {0xf0, 0x9f, 0x98, 0x80};
    for (int i = 0; i < 3; i++)
        assert_int_equal(dpt_utf8_stream_put(&stream, smile + i, 1, out), 0);
    assert_int_equal(dpt_utf8_stream_put(&stream, smile + 3, 1, out), 4);
    assert_memory_equal(out, smile, 4);
    assert_int_equal(dpt_utf8_stream_put(&stream, smile, 2, out), 0);
    assert_int_equal(dpt_utf8_stream_put(&stream, (const uint8_t *)"x", 1, out), 4);
    assert_memory_equal(out, "\xef\xbf\xbdx", 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cut_characters),
        cmocka_unit_test(stream_of_any_bytes_is_valid_utf8),
        cmocka_unit_test(nothing_waits_for_long),
    };
    return cmocka_run_group_tests_name("utf8 stream", tests, NULL, NULL);
}
