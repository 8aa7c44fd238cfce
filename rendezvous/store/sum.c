/* Checksums of rows: XXH3-128 over the type, the length and the bytes of each value, in order. */
#include "rendezvous/store/internal.h"

#include "base/cursor.h"

#include <string.h>

/* `type` is SQLite's: an empty text, an empty blob and NULL differ. */
static void sum_value(struct dpt_hash128 *sum, int type, const void *data, size_t bytes)
{
    const struct dpt_hash128 form = {.hi = (uint64_t)type, .lo = bytes};
    *sum = dpt_hash128_join(dpt_hash128_join(*sum, form), dpt_hash128(data, bytes));
}

void store_sum_number(struct dpt_hash128 *sum, int64_t number)
{
    uint8_t data[8];
    struct dpt_writer writer;
    dpt_writer_init(&writer, data, sizeof data);
    dpt_writer_u64(&writer, (uint64_t)number);
    sum_value(sum, SQLITE_INTEGER, data, sizeof data);
}

void store_sum_text(struct dpt_hash128 *sum, const char *text)
{
    sum_value(sum, SQLITE_TEXT, text, strlen(text));
}

void store_sum_blob(struct dpt_hash128 *sum, const void *data, size_t bytes)
{
    sum_value(sum, data != NULL ? SQLITE_BLOB : SQLITE_NULL, data, bytes);
}

void store_sum_column(struct dpt_hash128 *sum, sqlite3_stmt *row, int column)
{
    const int type = sqlite3_column_type(row, column);
    if (type == SQLITE_INTEGER) {
        store_sum_number(sum, sqlite3_column_int64(row, column));
        return;
    }
    /* Of a text that no server wrote, the type alone differs: it is read as it is stored. */
    const void *data = sqlite3_column_blob(row, column);
    const int bytes = sqlite3_column_bytes(row, column);
    sum_value(sum, type, data, data != NULL ? (size_t)bytes : 0);
}

void store_sum_pack(struct dpt_hash128 sum, uint8_t ret[STORE_SUM_BYTES])
{
    struct dpt_writer writer;
    dpt_writer_init(&writer, ret, STORE_SUM_BYTES);
    dpt_writer_u64(&writer, sum.hi);
    dpt_writer_u64(&writer, sum.lo);
}

struct dpt_hash128 store_sum_unpack(const uint8_t stored[STORE_SUM_BYTES])
{
    struct dpt_reader reader;
    dpt_reader_init(&reader, stored, STORE_SUM_BYTES);
    const uint64_t hi = dpt_reader_u64(&reader), lo = dpt_reader_u64(&reader);
    return (struct dpt_hash128){.hi = hi, .lo = lo};
}

bool store_sum_is(struct dpt_hash128 sum, sqlite3_stmt *row, int column)
{
    uint8_t packed[STORE_SUM_BYTES];
    store_sum_pack(sum, packed);
    const void *stored = sqlite3_column_blob(row, column);
    return stored != NULL && sqlite3_column_bytes(row, column) == STORE_SUM_BYTES &&
           memcmp(stored, packed, sizeof packed) == 0;
}
