/* SHA-256: the examples of FIPS 180-4 and the length of every padding, whole and in pieces. */
#include "base/sha256.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void expect_sha256(const char *text, size_t bytes, const char *hex)
{
    struct dpt_sha256 sha;
    char found[DPT_SHA256_HEX_BYTES];
    for (size_t step = 1; step <= bytes + 1; step = step * 3 + 1) {
        dpt_sha256_init(&sha);
        for (size_t at = 0; at < bytes; at += step)
            dpt_sha256_add(&sha, text + at, bytes - at < step ? bytes - at : step);
        dpt_sha256_hex(&sha, found);
        assert_string_equal(found, hex);
    }
}

static void sha256_of_fips_180(void **state)
{
    (void)state;
    static char million[1000000];
    const char *two = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    memset(million, 'a', sizeof million);
    expect_sha256("", 0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    expect_sha256("abc", 3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    expect_sha256(two, strlen(two),
                  "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    expect_sha256(million, sizeof million,
                  "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

/* The hash of the digits of all texts of 0 … 200 letters 'a', one after another: every length of
 * padding. Python's hashlib gave the expected value. */
static void every_padding(void **state)
{
    (void)state;
    struct dpt_sha256 all, one;
    char text[200], hex[DPT_SHA256_HEX_BYTES];
    memset(text, 'a', sizeof text);
    dpt_sha256_init(&all);
    for (size_t n = 0; n <= sizeof text; n++) {
        dpt_sha256_init(&one);
        dpt_sha256_add(&one, text, n);
        dpt_sha256_hex(&one, hex);
        dpt_sha256_add(&all, hex, 64);
    }
    dpt_sha256_hex(&all, hex);
    assert_string_equal(hex, "eb555248bd20c7831e511d4461b42c9b084e3a64b44d57b00051172f8afe03ff");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(sha256_of_fips_180),
                                       cmocka_unit_test(every_padding)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
