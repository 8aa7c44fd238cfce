/* HMAC-SHA256: the examples of RFC 4231 whose key has at most 64 bytes. */
#include "base/hmac.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void expect_code(const void *key, size_t key_bytes, const void *message, size_t bytes,
                        const char *hex)
{
    uint8_t code[DPT_HMAC_BYTES];
    char found[2 * DPT_HMAC_BYTES + 1];
    dpt_hmac(key, key_bytes, message, bytes, code);
    for (size_t i = 0; i < sizeof code; i++)
        (void)snprintf(found + 2 * i, 3, "%02x", code[i]);
    assert_string_equal(found, hex);
}

static void hmac_of_rfc_4231(void **state)
{
    (void)state;
    uint8_t key[25], message[50];
    memset(key, 0x0b, 20);
    expect_code(key, 20, "Hi There", 8,
                "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    expect_code("Jefe", 4, "what do ya want for nothing?", 28,
                "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    memset(key, 0xaa, 20);
    memset(message, 0xdd, sizeof message);
    expect_code(key, 20, message, sizeof message,
                "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
    for (size_t i = 0; i < sizeof key; i++)
        key[i] = (uint8_t)(i + 1);
    memset(message, 0xcd, sizeof message);
    expect_code(key, sizeof key, message, sizeof message,
                "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b");
}

static void bytes_are_compared(void **state)
{
    (void)state;
    const uint8_t a[] = {1, 2, 3, 4}, b[] = {1, 2, 3, 5}, c[] = {129, 2, 3, 4};
    assert_true(dpt_hmac_equal(a, a, sizeof a));
    assert_false(dpt_hmac_equal(a, b, sizeof a));
    assert_false(dpt_hmac_equal(a, c, sizeof a));
    assert_true(dpt_hmac_equal(a, b, 3));
    assert_true(dpt_hmac_equal(a, b, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hmac_of_rfc_4231),
        cmocka_unit_test(bytes_are_compared),
    };
    return cmocka_run_group_tests_name("hmac", tests, NULL, NULL);
}
