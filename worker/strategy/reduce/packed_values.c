/* Packs and unpacks values within their own memory (packed_values.h), chunk by chunk through a
 * buffer, in ascending order. n floats have 4 n bytes. Values that are sent are packed into the
 * first 2 n bytes; values that are received arrive in the last 2 n bytes. So no value is
 * overwritten before it is read. */
#include "worker/strategy/reduce/packed_values.h"

#include "worker/trace/span.h"

#include "base/err.h"

enum { CHUNK = 2048 };

static int64_t chunk_at(int64_t n, int64_t at)
{
    return n - at < CHUNK ? n - at : CHUNK;
}

/* One op for all chunks. */
static void trace_in_place(const struct dpt_trace_whole *whole, const char *name, int64_t n)
{
    dpt_trace_end_whole(whole,
                        &(struct dpt_trace_span){
                            .name = name, .kind = DPT_TRACE_OP, .key = {"numel"}, .value = {n}});
}

void dpt_wire_pack(const struct dpt_ops *ops, struct dpt_stream *stream, enum dpt_dtype dtype,
                   int64_t n, float *values)
{
    uint16_t chunk[CHUNK];
    const struct dpt_trace_whole whole = dpt_trace_begin_whole();
    DPT_ASSERT(dpt_dtype_bytes(dtype) == sizeof *chunk);
    for (int64_t at = 0; at < n; at += CHUNK) {
        const int64_t len = chunk_at(n, at);
        ops->cast(stream, len, values + at, dtype, chunk);
        ops->copy(stream, (size_t)len * sizeof *chunk, chunk, (char *)values + 2 * at);
    }
    trace_in_place(&whole, "wire_pack", n);
}

void *dpt_wire_inbox(int64_t n, float *values)
{
    return (char *)values + 2 * n;
}

void dpt_wire_unpack(const struct dpt_ops *ops, struct dpt_stream *stream, enum dpt_dtype dtype,
                     int64_t n, float *values)
{
    const char *inbox = dpt_wire_inbox(n, values);
    uint16_t chunk[CHUNK];
    const struct dpt_trace_whole whole = dpt_trace_begin_whole();
    DPT_ASSERT(dpt_dtype_bytes(dtype) == sizeof *chunk);
    for (int64_t at = 0; at < n; at += CHUNK) {
        const int64_t len = chunk_at(n, at);
        ops->copy(stream, (size_t)len * sizeof *chunk, inbox + 2 * at, chunk);
        ops->widen(stream, len, dtype, chunk, values + at);
    }
    trace_in_place(&whole, "wire_unpack", n);
}
