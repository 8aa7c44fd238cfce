/* A table of texts and labels: one .csv, .tsv or .jsonl file, read row by row. */
#ifndef DPT_WORKER_DATA_LABEL_TABLE_H
#define DPT_WORKER_DATA_LABEL_TABLE_H

#include "base/err.h"
#include "worker/data/rows.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DPT_LABEL_TABLE_CHUNK_BYTES = 1 << 16 };

struct dpt_label_table_options {
    const char *path;                       /* its ending, in any case, says which kind it is */
    const char *text_column, *label_column; /* names, or both numbers from 1 of a .csv or .tsv file
                                               whose first row is data */
    int64_t first_label;
    int labels;
};

/* Zero-initialise; borrows the options and the file. */
struct dpt_label_table {
    const struct dpt_label_table_options *options;
    int fd;
    int64_t at; /* of the file: read so far */
    uint8_t chunk[DPT_LABEL_TABLE_CHUNK_BYTES];
    size_t chunk_at, chunk_bytes;
    bool ended;
    struct dpt_rows rows;
    bool jsonl, started;
    int columns, text, label; /* of a .csv or .tsv file; the latter from 0 */
    void *json;               /* of the row of a .jsonl file */
};

struct dpt_label_table_row {
    const char *text; /* the table's, until its next row; may hold NULs */
    size_t bytes;
    int32_t label; /* 0 … labels - 1 */
};

/* DPT_ECONFIG: not a table by its name, or columns by number of a .jsonl file. */
DPT_MUST_USE enum dpt_status dpt_label_table_init(struct dpt_label_table *table,
                                                  const struct dpt_label_table_options *options,
                                                  int fd, struct dpt_err *err);
void dpt_label_table_fini(struct dpt_label_table *table);

/* The next row; `*ret_any` false: there is none. Errors say what is wrong with the row of line
 * dpt_label_table_line, or with its column names, and what to do; they do not name the file. */
DPT_MUST_USE enum dpt_status dpt_label_table_next(struct dpt_label_table *table,
                                                  struct dpt_label_table_row *ret, bool *ret_any,
                                                  struct dpt_err *err);

/* The line, from 1, of the last row or of what was wrong with it. */
int64_t dpt_label_table_line(const struct dpt_label_table *table);

#endif
