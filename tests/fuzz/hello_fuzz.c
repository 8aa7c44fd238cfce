/* Fuzz target: the first message of a data connection, and the addresses in a plan. The first byte
 * chooses: 136 bytes as a hello, which is accepted if and only if a rank of this world would have
 * sent exactly these bytes; a true hello with some bytes overwritten; or a text as an address,
 * which prints and parses again to the same. */
#include "tests/fuzz/fuzz.h"
#include "worker/comm/handshake.h"
#include "worker/comm/socket_address.h"

#include <string.h>

enum { WORLD = 5, OWN_RANK = 2, TEXT_BYTES = 256 };

static const struct dpt_comm_spec own = {.run = "demo",
                                         .generation = 7,
                                         .nonce = {1, 2, 3, 4, 5, 6, 7, 8},
                                         .rank = OWN_RANK,
                                         .world_size = WORLD};

static void check_hello(const uint8_t bytes[DPT_HANDSHAKE_BYTES], enum dpt_handshake_kind kind)
{
    int who = -1, from = -1;
    for (int rank = 0; rank < WORLD; rank++) {
        uint8_t expected[DPT_HANDSHAKE_BYTES];
        struct dpt_comm_spec other = own;
        other.rank = rank;
        dpt_handshake_encode(&other, kind, OWN_RANK, bytes + DPT_HANDSHAKE_SALT_AT, expected);
        if (memcmp(bytes, expected, sizeof expected) == 0)
            who = rank;
    }
    const bool taken = dpt_handshake_check(&own, kind, bytes, &from);
    DPT_ASSERT(taken == (who >= 0) && from == who);
}

static void hello(struct feed *feed)
{
    uint8_t bytes[DPT_HANDSHAKE_BYTES];
    for (int i = 0; i < DPT_HANDSHAKE_BYTES; i++)
        bytes[i] = feed_u8(feed);
    check_hello(bytes, DPT_HANDSHAKE_DIALER);
}

static void spoilt_hello(struct feed *feed)
{
    static const uint8_t salt[DPT_HANDSHAKE_SALT_BYTES] = {6, 5, 4};
    uint8_t bytes[DPT_HANDSHAKE_BYTES];
    struct dpt_comm_spec other = own;
    other.rank = (int)feed_below(feed, WORLD);
    const enum dpt_handshake_kind kind =
        feed_below(feed, 2) ? DPT_HANDSHAKE_DIALER : DPT_HANDSHAKE_WELCOME;
    dpt_handshake_encode(&other, kind, (int)feed_below(feed, WORLD), salt, bytes);
    while (!feed_is_over(feed)) {
        const uint32_t at = feed_below(feed, DPT_HANDSHAKE_BYTES);
        bytes[at] = feed_u8(feed);
    }
    check_hello(bytes, kind);
}

static void address(struct feed *feed)
{
    char text[TEXT_BYTES], printed[TEXT_BYTES], again[TEXT_BYTES];
    size_t n;
    const uint8_t *rest = feed_rest(feed, &n);
    if (n >= sizeof text)
        return;
    memcpy(text, rest, n);
    text[n] = '\0';
    struct dpt_address parsed, copy;
    struct dpt_err err = {.status = DPT_OK};
    if (dpt_address_parse(text, &parsed, &err) != DPT_OK) {
        DPT_ASSERT(err.status == DPT_EINVAL && err.text[0] != '\0');
        return;
    }
    if (text[0] == '@') /* a local socket has no other form */
        return;
    DPT_ASSERT(dpt_address_format(&parsed, printed, sizeof printed, &err) == DPT_OK);
    DPT_ASSERT(dpt_address_parse(printed, &copy, &err) == DPT_OK);
    DPT_ASSERT(dpt_address_format(&copy, again, sizeof again, &err) == DPT_OK);
    DPT_ASSERT(strcmp(printed, again) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct feed feed = feed_from(data, bytes);
    switch (feed_below(&feed, 3)) {
    case 0:
        hello(&feed);
        break;
    case 1:
        spoilt_hello(&feed);
        break;
    default:
        address(&feed);
    }
    return 0;
}
