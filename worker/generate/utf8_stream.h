/* Bytes that come in pieces, as text: what leaves is valid UTF-8 at every moment. */
#ifndef DPT_WORKER_GENERATE_UTF8_STREAM_H
#define DPT_WORKER_GENERATE_UTF8_STREAM_H

#include <stddef.h>
#include <stdint.h>

enum {
    DPT_UTF8_PIECE_BYTES_MAX = 256,
    DPT_UTF8_TEXT_BYTES = 3 * (DPT_UTF8_PIECE_BYTES_MAX + 3) /* that one piece may give */
};

/* Zero-initialise. */
struct dpt_utf8_stream {
    uint8_t held[3]; /* the beginning of a character whose rest has not come */
    size_t n_held;
};

/* Takes at most DPT_UTF8_PIECE_BYTES_MAX bytes; writes the text that is certain now to `ret`
 * (DPT_UTF8_TEXT_BYTES) and returns its length. What is no UTF-8 becomes U+FFFD, as in
 * dpt_utf8_repair. */
size_t dpt_utf8_stream_put(struct dpt_utf8_stream *stream, const uint8_t *bytes, size_t n,
                           uint8_t *ret);

/* The end: a character that never became whole is U+FFFD. */
size_t dpt_utf8_stream_end(struct dpt_utf8_stream *stream, uint8_t *ret);

#endif
