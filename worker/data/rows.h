/* The rows of a table, from its bytes in pieces of any size. Pure.
 *
 * CSV is RFC 4180: fields between commas, quoted where they hold a comma, a quote (doubled) or the
 * end of a line. In addition, a quote inside a field that does not begin with one is text, and a
 * row may end with LF or CR alone. TSV is text/tab-separated-values of IANA: fields between tabs,
 * unchanged, without quoting. LINES are rows of one field each, which end with LF. Empty lines are
 * no rows. With LINES, lines of white space are no rows either. */
#ifndef DPT_WORKER_DATA_ROWS_H
#define DPT_WORKER_DATA_ROWS_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DPT_ROW_BYTES_MAX = 16 << 20, DPT_ROW_FIELDS_MAX = 1024 };

enum dpt_rows_form { DPT_ROWS_CSV, DPT_ROWS_TSV, DPT_ROWS_LINES };

enum dpt_rows_state {
    DPT_ROWS_FIELD,      /* before the first byte of a field */
    DPT_ROWS_PLAIN,      /* in a field */
    DPT_ROWS_QUOTED,     /* between its quotes */
    DPT_ROWS_AFTER_QUOTE /* after a quote that ends the field or is the first of two */
};

/* Zero-initialise, then set `form`. */
struct dpt_rows {
    enum dpt_rows_form form;
    enum dpt_rows_state state;
    bool whole;               /* the row has ended: the next byte begins another */
    bool skip_lf;             /* the last row ended with CR: an LF at the beginning belongs to it */
    bool after_cr;            /* the previous byte, between quotes, is a CR */
    bool quoted;              /* a field of the row is quoted */
    int64_t lines;            /* ended so far */
    int64_t line, field_line; /* from 1: where the row and its last quoted field begin */
    char *text;               /* the row's fields, each followed by a NUL; owned */
    size_t bytes, room;
    /* Where each field begins in `text`; last, where the next field would begin. */
    size_t begin[DPT_ROW_FIELDS_MAX + 1];
    int n_fields;
};

void dpt_rows_fini(struct dpt_rows *rows);

/* Reads bytes up to the end of a row, or all of them. `*ret_row`: the row is complete; its
 * rows->n_fields fields stay until the next call. DPT_ECORRUPT: no valid CSV; DPT_EOVERFLOW: a row
 * beyond the limits; rows->line is the line of the fault. */
DPT_MUST_USE enum dpt_status dpt_rows_feed(struct dpt_rows *rows, const void *data, size_t bytes,
                                           size_t *ret_taken, bool *ret_row, struct dpt_err *err);

/* Call it when no bytes follow. The last row may lack the end of its line. */
DPT_MUST_USE enum dpt_status dpt_rows_end(struct dpt_rows *rows, bool *ret_row,
                                          struct dpt_err *err);

/* Field `i` of the row, followed by a NUL. */
const char *dpt_rows_field(const struct dpt_rows *rows, int i, size_t *ret_bytes);

#endif
