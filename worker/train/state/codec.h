/* One function per struct serves both packing and unpacking: it calls the codec with each field of
 * the struct in order. Numbers are little-endian (base/cursor.h). */
#ifndef DPT_WORKER_TRAIN_STATE_CODEC_H
#define DPT_WORKER_TRAIN_STATE_CODEC_H

#include "base/cursor.h"
#include "base/hash.h"

#include <string.h>

struct codec {
    struct dpt_writer *writer; /* NULL: the codec unpacks */
    struct dpt_reader *reader;
};

static inline void codec_u64(struct codec *c, uint64_t *value)
{
    if (c->writer)
        dpt_writer_u64(c->writer, *value);
    else
        *value = dpt_reader_u64(c->reader);
}

static inline void codec_u32(struct codec *c, uint32_t *value)
{
    if (c->writer)
        dpt_writer_u32(c->writer, *value);
    else
        *value = dpt_reader_u32(c->reader);
}

/* Packs or unpacks the bits of an int64_t, a uint64_t or a double. */
static inline void codec_bits(struct codec *c, void *value)
{
    uint64_t bits;
    memcpy(&bits, value, sizeof bits);
    codec_u64(c, &bits);
    memcpy(value, &bits, sizeof bits);
}

static inline void codec_int32(struct codec *c, int *value)
{
    uint32_t bits = (uint32_t)*value;
    codec_u32(c, &bits);
    *value = (int)bits;
}

static inline void codec_hash(struct codec *c, struct dpt_hash128 *hash)
{
    codec_u64(c, &hash->hi);
    codec_u64(c, &hash->lo);
}

#endif
