/* Hellos: only holders of the nonce make one, it is for one receiver, and it does not have the
 * nonce. */
#include "worker/comm/handshake.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { SENDER = 2, RECEIVER = 1, WORLD = 4 };
static const uint8_t salt[DPT_HANDSHAKE_SALT_BYTES] = {1, 2, 3, 4, 5};

static struct dpt_comm_spec spec_of(int rank)
{
    struct dpt_comm_spec spec = {.generation = 7, .rank = rank, .world_size = WORLD};
    (void)snprintf(spec.run, sizeof spec.run, "demo");
    for (size_t i = 0; i < sizeof spec.nonce; i++)
        spec.nonce[i] = (uint8_t)(0x91 + 7 * i);
    return spec;
}

static bool is_taken(const struct dpt_comm_spec *receiver, const uint8_t hello[DPT_HANDSHAKE_BYTES])
{
    int from = -1;
    const bool taken = dpt_handshake_check(receiver, DPT_HANDSHAKE_DIALER, hello, &from);
    assert_int_equal(from, taken ? SENDER : -1);
    return taken;
}

static void nonce_stays_secret(void **state)
{
    (void)state;
    const struct dpt_comm_spec sender = spec_of(SENDER), receiver = spec_of(RECEIVER);
    uint8_t hello[DPT_HANDSHAKE_BYTES];
    dpt_handshake_encode(&sender, DPT_HANDSHAKE_DIALER, RECEIVER, salt, hello);
    assert_true(is_taken(&receiver, hello));
    for (size_t at = 0; at + 4 <= sizeof hello; at++)
        for (size_t i = 0; i + 4 <= sizeof sender.nonce; i++)
            assert_memory_not_equal(hello + at, sender.nonce + i, 4);
}

static void each_byte_is_covered(void **state)
{
    (void)state;
    const struct dpt_comm_spec sender = spec_of(SENDER), receiver = spec_of(RECEIVER);
    uint8_t hello[DPT_HANDSHAKE_BYTES];
    dpt_handshake_encode(&sender, DPT_HANDSHAKE_DIALER, RECEIVER, salt, hello);
    for (size_t i = 0; i < sizeof hello; i++) {
        hello[i] ^= 1;
        assert_false(is_taken(&receiver, hello));
        hello[i] ^= 1;
    }
}

/* The code of a hello is of no use for another one: a stranger who has seen it cannot change
 * receiver, kind, generation or sender. */
static void code_is_of_one_hello(void **state)
{
    (void)state;
    enum { CODE_AT = 40, CODE_BYTES = 16 };
    const struct dpt_comm_spec sender = spec_of(SENDER);
    struct dpt_comm_spec stranger = sender, receiver = spec_of(RECEIVER);
    uint8_t seen[DPT_HANDSHAKE_BYTES], made[DPT_HANDSHAKE_BYTES];
    memset(stranger.nonce, 0, sizeof stranger.nonce);
    dpt_handshake_encode(&sender, DPT_HANDSHAKE_DIALER, 0, salt, seen);
    for (int kind = DPT_HANDSHAKE_DIALER; kind <= DPT_HANDSHAKE_WELCOME; kind++) {
        dpt_handshake_encode(&stranger, (enum dpt_handshake_kind)kind, RECEIVER, salt, made);
        assert_false(is_taken(&receiver, made));
        memcpy(made + CODE_AT, seen + CODE_AT, CODE_BYTES);
        assert_false(is_taken(&receiver, made));
    }
    receiver.generation++;
    assert_false(is_taken(&receiver, seen));
}

/* Ranks whose configs protect the bytes in another way do not connect. */
static void protection_is_agreed(void **state)
{
    (void)state;
    struct dpt_comm_spec sender = spec_of(SENDER);
    const struct dpt_comm_spec receiver = spec_of(RECEIVER);
    uint8_t hello[DPT_HANDSHAKE_BYTES];
    sender.encrypt = DPT_ENCRYPT_DATA;
    dpt_handshake_encode(&sender, DPT_HANDSHAKE_DIALER, RECEIVER, salt, hello);
    assert_false(is_taken(&receiver, hello));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nonce_stays_secret),
        cmocka_unit_test(each_byte_is_covered),
        cmocka_unit_test(code_is_of_one_hello),
        cmocka_unit_test(protection_is_agreed),
    };
    return cmocka_run_group_tests_name("handshake", tests, NULL, NULL);
}
