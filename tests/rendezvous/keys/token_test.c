/* Tokens as text: each one prints and parses to itself, and each changed character is noticed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "rendezvous/keys/token.h"

#include <stdio.h>
#include <string.h>

static struct dpt_token some_token(uint8_t first)
{
    struct dpt_token token;
    for (int i = 0; i < DPT_KEY_BYTES; i++)
        token.server.bytes[i] = (uint8_t)(first + 7 * i);
    for (int i = 0; i < DPT_TOKEN_SECRET_BYTES; i++)
        token.secret[i] = (uint8_t)(first ^ (31 * i));
    return token;
}

static void prints_and_parses(void **state)
{
    (void)state;
    for (int first = 0; first < 256; first++) {
        const struct dpt_token token = some_token((uint8_t)first);
        struct dpt_token again;
        struct dpt_err err;
        char text[DPT_TOKEN_TEXT_BYTES];
        dpt_token_print(&token, text);
        assert_int_equal(strlen(text), DPT_TOKEN_TEXT_BYTES - 1);
        assert_int_equal(dpt_token_parse(text, &again, &err), DPT_OK);
        assert_memory_equal(&token, &again, sizeof token);
    }
}

static void expect_bad(const char *text, const char *why)
{
    struct dpt_token token;
    struct dpt_err err;
    assert_int_equal(dpt_token_parse(text, &token, &err), DPT_ECONFIG);
    if (strstr(err.text, why) == NULL)
        fail_msg("wanted '%s' in: %s", why, err.text);
    if (strlen(text) > 20)
        assert_null(strstr(err.text, text)); /* a secret is not repeated */
}

static void changed_character_is_noticed(void **state)
{
    (void)state;
    const struct dpt_token token = some_token(9);
    char text[DPT_TOKEN_TEXT_BYTES], changed[DPT_TOKEN_TEXT_BYTES + 1];
    dpt_token_print(&token, text);
    for (size_t i = 5; i < strlen(text); i++) {
        memcpy(changed, text, sizeof text);
        changed[i] = text[i] == 'A' ? 'B' : 'A';
        expect_bad(changed, "checksum is wrong");
        changed[i] = '*';
        expect_bad(changed, "copy it whole");
        changed[i] = '\0'; /* cut */
        expect_bad(changed, "copy it whole");
    }
    (void)snprintf(changed, sizeof changed, "%sA", text);
    expect_bad(changed, "copy it whole");
    expect_bad("", "this is no token");
    expect_bad("none of your business", "this is no token");
    text[0] = 'D';
    expect_bad(text, "this is no token");
}

/* SHA-256("dpt token 1" and the secret), as `printf 'dpt token 1…' | sha256sum` prints it. */
static void secret_key_is_hash_of_secret(void **state)
{
    (void)state;
    struct dpt_token token = {.secret = "0123456789abcdef"};
    char hex[DPT_KEY_HEX_BYTES];
    const struct dpt_key key = dpt_token_secret_key(&token);
    dpt_key_hex(&key, hex);
    assert_string_equal(hex, "3c80c638f724fd4db62e4c18418e663cd5786db3fba355d071de3e5d0f64d7f6");
    token.server.bytes[0] = 1; /* the server's key is no part of it */
    const struct dpt_key same = dpt_token_secret_key(&token);
    assert_true(dpt_key_equal(&key, &same));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prints_and_parses),
        cmocka_unit_test(changed_character_is_noticed),
        cmocka_unit_test(secret_key_is_hash_of_secret),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
