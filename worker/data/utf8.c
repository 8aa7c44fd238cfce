/* UTF-8 by the table of well-formed byte sequences (Unicode 15, table 3-7). */
#include "worker/data/utf8.h"

#include <stdbool.h>
#include <string.h>

/* The bytes that may follow a first byte: `more` bytes of 80..BF. The first of them must also be in
 * low..high. */
struct lead {
    uint8_t more, low, high;
};

static struct lead lead_of(uint8_t first)
{
    if (first >= 0xc2 && first <= 0xdf)
        return (struct lead){1, 0x80, 0xbf};
    if (first >= 0xe0 && first <= 0xef)
        return (struct lead){2, first == 0xe0 ? 0xa0 : 0x80, first == 0xed ? 0x9f : 0xbf};
    if (first >= 0xf0 && first <= 0xf4)
        return (struct lead){3, first == 0xf0 ? 0x90 : 0x80, first == 0xf4 ? 0x8f : 0xbf};
    return (struct lead){0, 0, 0};
}

/* Bytes of the character at `text`. If it is not valid (*ret_valid false), bytes of its maximal
 * subpart. */
static size_t sequence_bytes(const uint8_t *text, size_t bytes, bool *ret_valid)
{
    *ret_valid = true;
    if (text[0] < 0x80)
        return 1;
    const struct lead lead = lead_of(text[0]);
    size_t n = 1;
    while (n <= lead.more && n < bytes && text[n] >= (n == 1 ? lead.low : 0x80) &&
           text[n] <= (n == 1 ? lead.high : 0xbf))
        n++;
    *ret_valid = lead.more > 0 && n == lead.more + 1u;
    return n;
}

size_t dpt_utf8_valid(const uint8_t *text, size_t bytes)
{
    size_t at = 0;
    bool valid = true;
    while (at < bytes) {
        uint64_t eight;
        if (bytes - at >= sizeof eight) { /* eight ASCII characters at once */
            memcpy(&eight, text + at, sizeof eight);
            if ((eight & 0x8080808080808080u) == 0) {
                at += sizeof eight;
                continue;
            }
        }
        const size_t n = sequence_bytes(text + at, bytes - at, &valid);
        if (!valid)
            break;
        at += n;
    }
    return at;
}

size_t dpt_utf8_repair(const uint8_t *text, size_t bytes, uint8_t *ret, int64_t *replaced)
{
    static const uint8_t replacement[] = {0xef, 0xbf, 0xbd}; /* U+FFFD */
    size_t at = 0, written = 0;
    while (at < bytes) {
        const size_t good = dpt_utf8_valid(text + at, bytes - at);
        memcpy(ret + written, text + at, good);
        at += good;
        written += good;
        if (at == bytes)
            break;
        bool valid;
        at += sequence_bytes(text + at, bytes - at, &valid);
        memcpy(ret + written, replacement, sizeof replacement);
        written += sizeof replacement;
        (*replaced)++;
    }
    return written;
}
