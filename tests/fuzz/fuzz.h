/* Shared by the fuzz targets: the entry that both drivers call (libFuzzer and replay.c), and a
 * reader that turns the input's bytes into choices. */
#ifndef DPT_TESTS_FUZZ_FUZZ_H
#define DPT_TESTS_FUZZ_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Feeds one input to the code under test. Returns 0 for any bytes; a broken promise aborts
 * (DPT_ASSERT). */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* The input, read from front to back. After its end every choice is 0. */
struct feed {
    const uint8_t *data;
    size_t bytes, at;
};

static inline struct feed feed_from(const uint8_t *data, size_t bytes)
{
    return (struct feed){.data = data, .bytes = bytes};
}

static inline bool feed_is_over(const struct feed *feed)
{
    return feed->at >= feed->bytes;
}

static inline uint8_t feed_u8(struct feed *feed)
{
    return feed_is_over(feed) ? 0 : feed->data[feed->at++];
}

static inline uint64_t feed_u64(struct feed *feed)
{
    uint64_t value = 0;
    for (int i = 0; i < 8; i++)
        value |= (uint64_t)feed_u8(feed) << (8 * i);
    return value;
}

/* 0 … n - 1; n at most 256. */
static inline uint32_t feed_below(struct feed *feed, uint32_t n)
{
    return feed_u8(feed) % n;
}

/* The unread part of the input, in place; it counts as read afterwards. */
static inline const uint8_t *feed_rest(struct feed *feed, size_t *ret_bytes)
{
    const uint8_t *rest = feed->data + feed->at;
    *ret_bytes = feed->bytes - feed->at;
    feed->at = feed->bytes;
    return rest;
}

#endif
