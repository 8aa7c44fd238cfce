/* Converts bytes that arrive in pieces to text that is valid UTF-8 after every piece. */
#ifndef DPT_WORKER_GENERATE_UTF8_STREAM_H
#define DPT_WORKER_GENERATE_UTF8_STREAM_H

#include <stddef.h>
#include <stdint.h>

enum {
    DPT_UTF8_PIECE_BYTES_MAX = 256,
    DPT_UTF8_TEXT_BYTES = 3 * (DPT_UTF8_PIECE_BYTES_MAX + 3) /* most bytes of text from one piece */
};

/* Zero-initialise. */
struct dpt_utf8_stream {
    uint8_t held[3]; /* the beginning of an unfinished character */
    size_t n_held;
};

/* Adds at most DPT_UTF8_PIECE_BYTES_MAX bytes. Writes all finished characters to `ret`
 * (DPT_UTF8_TEXT_BYTES) and returns their length. Bytes that are not UTF-8 become U+FFFD, as in
 * dpt_utf8_repair. */
size_t dpt_utf8_stream_put(struct dpt_utf8_stream *stream, const uint8_t *bytes, size_t n,
                           uint8_t *ret);

/* Ends the text: an unfinished character becomes U+FFFD. */
size_t dpt_utf8_stream_end(struct dpt_utf8_stream *stream, uint8_t *ret);

#endif
