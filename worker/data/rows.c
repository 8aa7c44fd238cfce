/* A state machine over bytes (rows.h). Stretches without special bytes are copied at once. */
#include "worker/data/rows.h"

#include "base/array.h"

#include <stdlib.h>
#include <string.h>

void dpt_rows_fini(struct dpt_rows *rows)
{
    free(rows->text);
    *rows = (struct dpt_rows){0};
}

const char *dpt_rows_field(const struct dpt_rows *rows, int i, size_t *ret_bytes)
{
    DPT_ASSERT(i >= 0 && i < rows->n_fields);
    *ret_bytes = rows->begin[i + 1] - rows->begin[i] - 1;
    return rows->text + rows->begin[i];
}

static void begin_row(struct dpt_rows *rows)
{
    rows->state = DPT_ROWS_FIELD;
    rows->whole = rows->quoted = false;
    rows->line = rows->lines + 1;
    rows->bytes = 0;
    rows->n_fields = 0;
    rows->begin[0] = 0;
}

static enum dpt_status append_bytes(struct dpt_rows *rows, const void *data, size_t bytes,
                                    struct dpt_err *err)
{
    if (bytes == 0) /* rows->text may be NULL */
        return DPT_OK;
    if (rows->bytes + bytes > DPT_ROW_BYTES_MAX)
        return dpt_fail(err, DPT_EOVERFLOW, "a row of more than %d bytes%s", DPT_ROW_BYTES_MAX,
                        rows->quoted ? "; is a quote missing?" : "");
    if (!dpt_array_reserve(&rows->text, &rows->room, rows->bytes + bytes, 1))
        return dpt_fail_nomem(err, "a row of the table");
    memcpy(rows->text + rows->bytes, data, bytes);
    rows->bytes += bytes;
    return DPT_OK;
}

static enum dpt_status end_field(struct dpt_rows *rows, struct dpt_err *err)
{
    if (rows->n_fields == DPT_ROW_FIELDS_MAX)
        return dpt_fail(err, DPT_EOVERFLOW, "a row of more than %d columns", DPT_ROW_FIELDS_MAX);
    DPT_TRY(append_bytes(rows, "", 1, err));
    rows->n_fields++;
    rows->begin[rows->n_fields] = rows->bytes;
    rows->state = DPT_ROWS_FIELD;
    return DPT_OK;
}

static bool is_blank_row(const struct dpt_rows *rows)
{
    if (rows->n_fields > 1 || rows->quoted)
        return false;
    return rows->bytes == 1 ||
           (rows->form == DPT_ROWS_LINES && strspn(rows->text, " \t\r") == rows->bytes - 1);
}

/* Ends the row. A blank row does not count. */
static enum dpt_status end_row(struct dpt_rows *rows, struct dpt_err *err)
{
    DPT_TRY(end_field(rows, err));
    rows->whole = !is_blank_row(rows);
    return DPT_OK;
}

static bool is_end_of_line(const struct dpt_rows *rows, uint8_t byte)
{
    return byte == '\n' || (byte == '\r' && rows->form != DPT_ROWS_LINES);
}

static bool is_separator(const struct dpt_rows *rows, uint8_t byte)
{
    return (byte == ',' && rows->form == DPT_ROWS_CSV) ||
           (byte == '\t' && rows->form == DPT_ROWS_TSV);
}

/* A byte outside quotes that ends a field. */
static enum dpt_status end_at_byte(struct dpt_rows *rows, uint8_t byte, struct dpt_err *err)
{
    if (is_separator(rows, byte))
        return end_field(rows, err);
    DPT_TRY(end_row(rows, err));
    rows->lines++;
    rows->skip_lf = byte == '\r';
    if (!rows->whole)
        begin_row(rows);
    return DPT_OK;
}

static enum dpt_status handle_special_byte(struct dpt_rows *rows, uint8_t byte, struct dpt_err *err)
{
    const bool ends = is_separator(rows, byte) || is_end_of_line(rows, byte);
    switch (rows->state) {
    case DPT_ROWS_FIELD:
    case DPT_ROWS_PLAIN:
        if (ends)
            return end_at_byte(rows, byte, err);
        rows->state = DPT_ROWS_QUOTED;
        rows->quoted = true;
        rows->field_line = rows->lines + 1;
        return DPT_OK;
    case DPT_ROWS_QUOTED:
        rows->lines += byte == '\r' || (byte == '\n' && !rows->after_cr);
        rows->after_cr = byte == '\r';
        if (byte != '"')
            return append_bytes(rows, &byte, 1, err);
        rows->state = DPT_ROWS_AFTER_QUOTE;
        return DPT_OK;
    default:
        if (ends)
            return end_at_byte(rows, byte, err);
        if (byte != '"') {
            rows->line = rows->lines + 1;
            return dpt_fail(err, DPT_ECORRUPT,
                            "a quoted field continues behind its closing quote; double the quotes "
                            "inside it");
        }
        rows->state = DPT_ROWS_QUOTED;
        return append_bytes(rows, &byte, 1, err);
    }
}

/* The number of leading bytes that belong to the field unchanged. */
static size_t count_plain_bytes(struct dpt_rows *rows, const uint8_t *data, size_t bytes)
{
    size_t n = 0;
    if (rows->state == DPT_ROWS_AFTER_QUOTE)
        return 0;
    if (rows->state == DPT_ROWS_QUOTED) {
        while (n < bytes && data[n] != '"' && data[n] != '\n' && data[n] != '\r')
            n++;
        rows->after_cr = rows->after_cr && n == 0;
        return n;
    }
    if (rows->state == DPT_ROWS_FIELD && rows->form == DPT_ROWS_CSV && data[0] == '"')
        return 0;
    while (n < bytes && !is_separator(rows, data[n]) && !is_end_of_line(rows, data[n]))
        n++;
    if (n > 0)
        rows->state = DPT_ROWS_PLAIN;
    return n;
}

enum dpt_status dpt_rows_feed(struct dpt_rows *rows, const void *data, size_t bytes,
                              size_t *ret_taken, bool *ret_row, struct dpt_err *err)
{
    const uint8_t *from = data;
    size_t at = 0;
    if (rows->whole || rows->line == 0)
        begin_row(rows);
    while (at < bytes && !rows->whole) {
        const bool skip = rows->skip_lf && from[at] == '\n';
        rows->skip_lf = false;
        at += skip;
        if (at == bytes)
            break;
        const size_t n = count_plain_bytes(rows, from + at, bytes - at);
        DPT_TRY(append_bytes(rows, from + at, n, err));
        at += n;
        if (at == bytes)
            break;
        DPT_TRY(handle_special_byte(rows, from[at++], err));
    }
    *ret_taken = at;
    *ret_row = rows->whole;
    return DPT_OK;
}

enum dpt_status dpt_rows_end(struct dpt_rows *rows, bool *ret_row, struct dpt_err *err)
{
    if (rows->whole || rows->line == 0)
        begin_row(rows);
    if (rows->state == DPT_ROWS_QUOTED) {
        rows->line = rows->field_line;
        return dpt_fail(err, DPT_ECORRUPT, "a quoted field that begins here does not end");
    }
    DPT_TRY(end_row(rows, err));
    *ret_row = rows->whole;
    return DPT_OK;
}
