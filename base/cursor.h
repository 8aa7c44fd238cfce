/* Bounded reader and writer over a range of bytes, for every binary header and message body.
 *
 * An access that does not fit sets a sticky `failed` flag and nothing else. From then on reads
 * return zeros and writes have no effect. So a parser reads all its fields and checks once at the
 * end (the idea of s2n's stuffer). Numbers are little-endian. Reader and writer allocate nothing
 * and borrow the bytes. */
#ifndef DPT_BASE_CURSOR_H
#define DPT_BASE_CURSOR_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dpt_reader {
    const uint8_t *data;
    size_t bytes, at;
    bool failed;
};

struct dpt_writer {
    uint8_t *data;
    size_t bytes, at; /* `at` bytes were written */
    bool failed;
};

void dpt_reader_init(struct dpt_reader *reader, const void *data, size_t bytes);
size_t dpt_reader_left(const struct dpt_reader *reader);
uint16_t dpt_reader_u16(struct dpt_reader *reader);
uint32_t dpt_reader_u32(struct dpt_reader *reader);
uint64_t dpt_reader_u64(struct dpt_reader *reader);
/* The next `bytes` <= 8 bytes as a number. */
uint64_t dpt_reader_uint(struct dpt_reader *reader, size_t bytes);

/* Copies `bytes` bytes; on failure `ret` is filled with zeros. */
void dpt_reader_bytes(struct dpt_reader *reader, void *ret, size_t bytes);

/* The next `bytes` bytes in place, valid as long as the reader's data; NULL on failure. */
const uint8_t *dpt_reader_view(struct dpt_reader *reader, size_t bytes);

/* Marks the data as malformed for a reason that the caller found, such as a number out of range. */
void dpt_reader_reject(struct dpt_reader *reader);

/* DPT_EPROTO: a read failed, or bytes are left over. `what` names the data in the error. */
DPT_MUST_USE enum dpt_status dpt_reader_end(const struct dpt_reader *reader, const char *what,
                                            struct dpt_err *err);

/* DPT_EPROTO: a read failed. Bytes may be left over. */
DPT_MUST_USE enum dpt_status dpt_reader_status(const struct dpt_reader *reader, const char *what,
                                               struct dpt_err *err);

void dpt_writer_init(struct dpt_writer *writer, void *data, size_t bytes);
void dpt_writer_u8(struct dpt_writer *writer, uint8_t value);
void dpt_writer_u16(struct dpt_writer *writer, uint16_t value);
void dpt_writer_u32(struct dpt_writer *writer, uint32_t value);
void dpt_writer_u64(struct dpt_writer *writer, uint64_t value);
/* The low `bytes` <= 8 bytes of `value`. */
void dpt_writer_uint(struct dpt_writer *writer, uint64_t value, size_t bytes);
void dpt_writer_bytes(struct dpt_writer *writer, const void *data, size_t bytes);

/* DPT_EPROTO: a write did not fit. `what` names the data in the error. */
DPT_MUST_USE enum dpt_status dpt_writer_end(const struct dpt_writer *writer, const char *what,
                                            struct dpt_err *err);

#endif
