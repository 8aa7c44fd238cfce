/* Bounded reader and writer with a sticky failure. */
#include "base/cursor.h"

#include <string.h>

void dpt_reader_init(struct dpt_reader *reader, const void *data, size_t bytes)
{
    *reader = (struct dpt_reader){.data = data, .bytes = bytes};
}

size_t dpt_reader_left(const struct dpt_reader *reader)
{
    return reader->failed ? 0 : reader->bytes - reader->at;
}

void dpt_reader_reject(struct dpt_reader *reader)
{
    reader->failed = true;
}

const uint8_t *dpt_reader_view(struct dpt_reader *reader, size_t bytes)
{
    static const uint8_t nothing[1];
    if (reader->failed || bytes > reader->bytes - reader->at) {
        reader->failed = true;
        return NULL;
    }
    const uint8_t *view = reader->data ? reader->data + reader->at : nothing;
    reader->at += bytes;
    return view;
}

uint64_t dpt_reader_uint(struct dpt_reader *reader, size_t bytes)
{
    const uint8_t *p = dpt_reader_view(reader, bytes);
    uint64_t value = 0;
    for (size_t i = 0; p && i < bytes; i++)
        value |= (uint64_t)p[i] << (8 * i);
    return value;
}

uint16_t dpt_reader_u16(struct dpt_reader *reader)
{
    return (uint16_t)dpt_reader_uint(reader, 2);
}

uint32_t dpt_reader_u32(struct dpt_reader *reader)
{
    return (uint32_t)dpt_reader_uint(reader, 4);
}

uint64_t dpt_reader_u64(struct dpt_reader *reader)
{
    return dpt_reader_uint(reader, 8);
}

void dpt_reader_bytes(struct dpt_reader *reader, void *ret, size_t bytes)
{
    const uint8_t *p = dpt_reader_view(reader, bytes);
    if (bytes == 0)
        return;
    if (p)
        memcpy(ret, p, bytes);
    else
        memset(ret, 0, bytes);
}

enum dpt_status dpt_reader_status(const struct dpt_reader *reader, const char *what,
                                  struct dpt_err *err)
{
    if (reader->failed)
        return dpt_fail(err, DPT_EPROTO, "%s of %zu bytes is malformed near byte %zu", what,
                        reader->bytes, reader->at);
    return DPT_OK;
}

enum dpt_status dpt_reader_end(const struct dpt_reader *reader, const char *what,
                               struct dpt_err *err)
{
    DPT_TRY(dpt_reader_status(reader, what, err));
    if (reader->at != reader->bytes)
        return dpt_fail(err, DPT_EPROTO, "%s has %zu bytes too many after byte %zu", what,
                        reader->bytes - reader->at, reader->at);
    return DPT_OK;
}

void dpt_writer_init(struct dpt_writer *writer, void *data, size_t bytes)
{
    *writer = (struct dpt_writer){.data = data, .bytes = bytes};
}

void dpt_writer_bytes(struct dpt_writer *writer, const void *data, size_t bytes)
{
    if (writer->failed || bytes > writer->bytes - writer->at) {
        writer->failed = true;
        return;
    }
    if (bytes > 0)
        memcpy(writer->data + writer->at, data, bytes);
    writer->at += bytes;
}

void dpt_writer_uint(struct dpt_writer *writer, uint64_t value, size_t bytes)
{
    uint8_t raw[8];
    for (size_t i = 0; i < bytes; i++)
        raw[i] = (uint8_t)(value >> (8 * i));
    dpt_writer_bytes(writer, raw, bytes);
}

void dpt_writer_u8(struct dpt_writer *writer, uint8_t value)
{
    dpt_writer_uint(writer, value, 1);
}

void dpt_writer_u16(struct dpt_writer *writer, uint16_t value)
{
    dpt_writer_uint(writer, value, 2);
}

void dpt_writer_u32(struct dpt_writer *writer, uint32_t value)
{
    dpt_writer_uint(writer, value, 4);
}

void dpt_writer_u64(struct dpt_writer *writer, uint64_t value)
{
    dpt_writer_uint(writer, value, 8);
}

enum dpt_status dpt_writer_end(const struct dpt_writer *writer, const char *what,
                               struct dpt_err *err)
{
    if (writer->failed)
        return dpt_fail(err, DPT_EPROTO, "%s does not fit in %zu bytes", what, writer->bytes);
    return DPT_OK;
}
