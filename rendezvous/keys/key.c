/* Keys as bytes and as hexadecimal digits. */
#include "rendezvous/keys/key.h"

#include <string.h>

static const char digits[] = "0123456789abcdef";

bool dpt_key_equal(const struct dpt_key *a, const struct dpt_key *b)
{
    return memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
}

void dpt_key_hex(const struct dpt_key *key, char ret[DPT_KEY_HEX_BYTES])
{
    for (int i = 0; i < DPT_KEY_BYTES; i++) {
        ret[2 * i] = digits[key->bytes[i] >> 4];
        ret[2 * i + 1] = digits[key->bytes[i] & 15];
    }
    ret[DPT_KEY_HEX_BYTES - 1] = '\0';
}

/* The value of a digit; -1: it is none. */
static int digit_value(char c)
{
    const char *at = c != '\0' ? strchr(digits, c) : NULL;
    return at != NULL ? (int)(at - digits) : -1;
}

bool dpt_key_parse(const char *text, struct dpt_key *ret)
{
    struct dpt_key key;
    for (int i = 0; i < DPT_KEY_BYTES; i++) {
        const int high = digit_value(text[2 * i]);
        const int low = high < 0 ? -1 : digit_value(text[2 * i + 1]);
        if (low < 0)
            return false;
        key.bytes[i] = (uint8_t)(high << 4 | low);
    }
    *ret = key;
    return true;
}
