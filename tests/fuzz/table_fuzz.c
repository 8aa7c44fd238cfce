/* Fuzz target: any bytes as a table of texts and labels. The first byte chooses the kind of file
 * and how columns are named. Rows do not depend on where the file is cut into blocks; each that the
 * table gives has a label in its range. */
#include "tests/fuzz/fuzz.h"
#include "worker/data/label_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { FILE_BYTES_MAX = 4096, LABELS = 3, FIRST_LABEL = -1 };

/* Reads the rows of `bytes` in pieces of `piece`: their number, and a sum over their content. */
struct told {
    enum dpt_status status;
    int64_t rows, line;
    uint64_t sum;
};

static void add_row(struct told *told, const struct dpt_rows *rows)
{
    told->rows++;
    told->sum = told->sum * 31 + (uint64_t)rows->line;
    for (int i = 0; i < rows->n_fields; i++) {
        size_t n;
        const char *field = dpt_rows_field(rows, i, &n);
        DPT_ASSERT(field[n] == '\0');
        for (size_t j = 0; j <= n; j++)
            told->sum = told->sum * 31 + (uint8_t)field[j];
    }
}

static struct told read_rows(enum dpt_rows_form form, const uint8_t *data, size_t bytes,
                             size_t piece)
{
    struct dpt_rows rows = {.form = form};
    struct told told = {.status = DPT_OK};
    struct dpt_err err;
    bool row = false;
    for (size_t at = 0, taken; told.status == DPT_OK && at < bytes; at += taken) {
        const size_t n = bytes - at < piece ? bytes - at : piece;
        taken = 0;
        told.status = dpt_rows_feed(&rows, data + at, n, &taken, &row, &err);
        if (told.status == DPT_OK && row)
            add_row(&told, &rows);
        DPT_ASSERT(taken <= n);
    }
    if (told.status == DPT_OK)
        told.status = dpt_rows_end(&rows, &row, &err);
    if (told.status == DPT_OK && row)
        add_row(&told, &rows);
    told.line = rows.line;
    dpt_rows_fini(&rows);
    return told;
}

static void read_table(const struct dpt_label_table_options *options,
                       const struct dpt_data_file *file)
{
    struct dpt_label_table *table = calloc(1, sizeof *table);
    struct dpt_label_table_row row;
    struct dpt_err err;
    bool any = true;
    DPT_ASSERT(table != NULL && dpt_label_table_init(table, options, file, &err) == DPT_OK);
    while (any) {
        const enum dpt_status status = dpt_label_table_next(table, &row, &any, &err);
        if (status != DPT_OK) {
            DPT_ASSERT(status == DPT_ECORRUPT || status == DPT_ECONFIG || status == DPT_EOVERFLOW);
            DPT_ASSERT(err.text[0] != '\0' && dpt_label_table_line(table) > 0);
            break;
        }
        if (any)
            DPT_ASSERT(row.label >= 0 && row.label < LABELS && row.text[row.bytes] == '\0');
    }
    dpt_label_table_fini(table);
    free(table);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const char *const paths[] = {"t.csv", "t.tsv", "t.jsonl"}; /* in dpt_rows_form's order */
    static int fd = -1;
    struct feed feed = feed_from(data, bytes);
    const uint8_t choice = feed_u8(&feed);
    const enum dpt_rows_form form = choice % 3;
    const bool numbers = choice / 3 % 2 == 1 && form != DPT_ROWS_LINES;
    const struct dpt_label_table_options options = {.path = paths[form],
                                                    .text_column = numbers ? "2" : "text",
                                                    .label_column = numbers ? "1" : "label",
                                                    .first_label = FIRST_LABEL,
                                                    .labels = LABELS};
    size_t n;
    const uint8_t *rest = feed_rest(&feed, &n);
    if (n > FILE_BYTES_MAX)
        return 0;
    if (fd < 0)
        fd = memfd_create("table", MFD_CLOEXEC);
    DPT_ASSERT(fd >= 0 && ftruncate(fd, (off_t)n) == 0 && pwrite(fd, rest, n, 0) == (ssize_t)n);
    char path[32];
    struct dpt_data_file file = {.path = path};
    struct dpt_err err;
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    DPT_ASSERT(dpt_data_file_identify(&file, &err) == DPT_OK);
    const struct told whole = read_rows(form, rest, n, FILE_BYTES_MAX + 1),
                      bytewise = read_rows(form, rest, n, 1);
    DPT_ASSERT(whole.status == bytewise.status && whole.rows == bytewise.rows &&
               whole.line == bytewise.line && whole.sum == bytewise.sum);
    read_table(&options, &file);
    return 0;
}
