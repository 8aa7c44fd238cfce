/* Holds unfinished characters back until the rest arrives (utf8_stream.h). */
#include "worker/generate/utf8_stream.h"

#include "base/err.h"
#include "worker/data/utf8.h"

#include <stdbool.h>
#include <string.h>

/* Number of bytes of the character that begins with `lead`; 1 if no character begins with it. */
static size_t length_of(uint8_t lead)
{
    return lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc2 ? 2 : 1;
}

/* Whether `n` bytes are the beginning of a valid character. Only the first two bytes restrict each
 * other: after them any continuation bytes are valid. */
static bool can_become_whole(const uint8_t *bytes, size_t n)
{
    const size_t length = length_of(bytes[0]);
    uint8_t whole[4] = {0x80, 0x80, 0x80, 0x80};
    if (n >= length || bytes[0] > 0xf4)
        return false;
    memcpy(whole, bytes, n);
    return n == 1 || dpt_utf8_valid(whole, length) == length;
}

/* Number of bytes of the unfinished character at the end of `text`. */
static size_t unfinished_bytes(const uint8_t *text, size_t n)
{
    for (size_t tail = n < 3 ? n : 3; tail > 0; tail--)
        if (can_become_whole(text + n - tail, tail))
            return tail;
    return 0;
}

size_t dpt_utf8_stream_put(struct dpt_utf8_stream *stream, const uint8_t *bytes, size_t n,
                           uint8_t *ret)
{
    uint8_t text[DPT_UTF8_PIECE_BYTES_MAX + 3];
    int64_t replaced = 0;
    DPT_ASSERT(n <= DPT_UTF8_PIECE_BYTES_MAX);
    memcpy(text, stream->held, stream->n_held);
    memcpy(text + stream->n_held, bytes, n);
    n += stream->n_held;
    stream->n_held = unfinished_bytes(text, n);
    memcpy(stream->held, text + n - stream->n_held, stream->n_held);
    return dpt_utf8_repair(text, n - stream->n_held, ret, &replaced);
}

size_t dpt_utf8_stream_end(struct dpt_utf8_stream *stream, uint8_t *ret)
{
    int64_t replaced = 0;
    const size_t n = dpt_utf8_repair(stream->held, stream->n_held, ret, &replaced);
    stream->n_held = 0;
    return n;
}
