/* Proofs of secret keys: a pinned one, and each change of a request that must spoil it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "rendezvous/keys/possession.h"

#include <string.h>

static struct dpt_key key_of(const char *hex)
{
    struct dpt_key key;
    assert_true(dpt_key_parse(hex, &key));
    return key;
}

/* The pairs of RFC 7748, section 6.1: the machine has Alice's, the server Bob's. */
static struct dpt_key machine_secret, token;
static struct dpt_key_pair server;
static struct dpt_enroll_request request;

static int setup(void **state)
{
    (void)state;
    struct dpt_err err;
    machine_secret = key_of("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a");
    server = (struct dpt_key_pair){
        .public_key = key_of("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"),
        .secret_key = key_of("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")};
    memset(token.bytes, 7, sizeof token.bytes);
    request = (struct dpt_enroll_request){
        .key = key_of("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"),
        .name = "gpu7.example.org"};
    return dpt_possession_prove(&request, &machine_secret, &server.public_key, &token, &err) ==
                   DPT_OK
               ? 0
               : -1;
}

static void expect_refused(void)
{
    struct dpt_err err;
    assert_int_equal(dpt_possession_check(&request, &server, &token, &err), DPT_EREFUSED);
    assert_non_null(strstr(err.text, "does not prove that its sender has the secret key of "));
}

/* Computed by Python: hmac.new(shared, label + server + token + machine + name, sha256), with the
 * shared secret that the RFC has. Programs of two versions must agree on it. */
static void proof_has_these_bytes(void **state)
{
    (void)state;
    const struct dpt_key expected =
        key_of("78532c19b18a10a9eaf7ea70f68479bef1266aed889aee41e81eeb8046a73755");
    struct dpt_err err;
    assert_memory_equal(request.proof, expected.bytes, sizeof request.proof);
    assert_int_equal(dpt_possession_check(&request, &server, &token, &err), DPT_OK);
}

static void each_changed_bit_is_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < 8 * sizeof request.proof; i++) {
        request.proof[i / 8] ^= (uint8_t)(1u << i % 8);
        expect_refused();
        request.proof[i / 8] ^= (uint8_t)(1u << i % 8);
    }
}

static void proof_is_of_one_token(void **state)
{
    (void)state;
    token.bytes[31] ^= 1;
    expect_refused();
}

static void proof_is_of_one_name(void **state)
{
    (void)state;
    request.name[strlen(request.name) - 1] = '\0';
    expect_refused();
}

static void proof_is_of_one_machine(void **state)
{
    (void)state;
    request.key = token;
    expect_refused();
}

/* No two servers have one public key. A server with another secret key does not agree.
 */
static void proof_is_of_one_server(void **state)
{
    (void)state;
    const struct dpt_key right = server.secret_key;
    server.secret_key = machine_secret;
    expect_refused();
    server.secret_key = right;
    server.public_key = token;
    expect_refused();
}

/* With these public keys (RFC 7748, section 6.1: of low order) everybody knows the shared secret.
 */
static void keys_of_low_order_are_refused(void **state)
{
    (void)state;
    request.key = (struct dpt_key){{0}};
    expect_refused();
    request.key = (struct dpt_key){{1}};
    expect_refused();
    struct dpt_err err;
    assert_int_equal(dpt_possession_prove(&request, &machine_secret, &request.key, &token, &err),
                     DPT_EREFUSED);
}

int main(void)
{
#define CASE(test) cmocka_unit_test_setup(test, setup)
    const struct CMUnitTest tests[] = {
        CASE(proof_has_these_bytes),         CASE(each_changed_bit_is_refused),
        CASE(proof_is_of_one_token),         CASE(proof_is_of_one_name),
        CASE(proof_is_of_one_machine),       CASE(proof_is_of_one_server),
        CASE(keys_of_low_order_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
