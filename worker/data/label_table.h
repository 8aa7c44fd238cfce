/* A table of texts and labels: one .csv, .tsv or .jsonl file, read row by row. */
#ifndef DPT_WORKER_DATA_LABEL_TABLE_H
#define DPT_WORKER_DATA_LABEL_TABLE_H

#include "worker/data/data_file.h"
#include "worker/data/rows.h"

enum { DPT_LABEL_TABLE_CHUNK_BYTES = 1 << 20 };

struct dpt_label_table_options {
    const char *path; /* its ending, in any case, tells the kind of table */
    /* Names of columns; or numbers from 1, of a .csv or .tsv file whose first row is data. */
    const char *text_column, *label_column;
    int64_t first_label;
    int labels;
};

/* Zero-initialise; borrows the options and the file. */
struct dpt_label_table {
    const struct dpt_label_table_options *options;
    const struct dpt_data_file *file;
    int64_t at; /* bytes of the file that were read so far */
    uint8_t chunk[DPT_LABEL_TABLE_CHUNK_BYTES];
    size_t chunk_at, chunk_bytes;
    struct dpt_rows rows;
    bool jsonl, started;
    int columns;     /* of a .csv or .tsv file */
    int text, label; /* the two columns, from 0 */
    void *json;      /* the current row of a .jsonl file */
};

struct dpt_label_table_row {
    const char *text; /* owned by the table, valid until its next row; may hold NULs */
    size_t bytes;
    int32_t label; /* 0 … labels - 1 */
};

/* `file` must be identified. DPT_ECONFIG: the path does not end like a table, or the columns of a
 * .jsonl file are numbers. */
DPT_MUST_USE enum dpt_status dpt_label_table_init(struct dpt_label_table *table,
                                                  const struct dpt_label_table_options *options,
                                                  const struct dpt_data_file *file,
                                                  struct dpt_err *err);
void dpt_label_table_fini(struct dpt_label_table *table);

/* The next row; `*ret_any` false: there is none. An error tells the fault of the row at line
 * dpt_label_table_line, or of the column names, and its remedy; it does not name the file. */
DPT_MUST_USE enum dpt_status dpt_label_table_next(struct dpt_label_table *table,
                                                  struct dpt_label_table_row *ret, bool *ret_any,
                                                  struct dpt_err *err);

/* The line, from 1, of the last row or of its fault. */
int64_t dpt_label_table_line(const struct dpt_label_table *table);

#endif
