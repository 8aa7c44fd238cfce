/* Keys of CURVE (Curve25519), as libzmq's CURVE mechanism (ZeroMQ RFC 26) takes them: 32 bytes, in
 * files 64 hexadecimal digits. Pure. */
#ifndef DPT_RENDEZVOUS_KEYS_KEY_H
#define DPT_RENDEZVOUS_KEYS_KEY_H

#include <stdbool.h>
#include <stdint.h>

enum {
    DPT_KEY_BYTES = 32,
    DPT_KEY_HEX_BYTES = 2 * DPT_KEY_BYTES + 1, /* NUL included */
    DPT_KEY_SHORT_DIGITS = 8                   /* of the hexadecimal digits, for messages */
};

struct dpt_key {
    uint8_t bytes[DPT_KEY_BYTES];
};

struct dpt_key_pair {
    struct dpt_key public_key, secret_key;
};

bool dpt_key_equal(const struct dpt_key *a, const struct dpt_key *b);

/* Writes 64 lower-case hexadecimal digits and a NUL. Print the first DPT_KEY_SHORT_DIGITS with
 * "%.8s". */
void dpt_key_hex(const struct dpt_key *key, char ret[DPT_KEY_HEX_BYTES]);

/* Reads 64 lower-case hexadecimal digits from the start of `text`; a later character is not read.
 * False: these are no 64 digits; *ret is unchanged. */
bool dpt_key_parse(const char *text, struct dpt_key *ret);

#endif
