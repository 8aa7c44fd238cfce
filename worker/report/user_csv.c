/* Reads the user's CSV (user_csv.h). */
#include "worker/report/user_csv.h"

#include "base/fs.h"
#include "base/parse.h"
#include "worker/report/means.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COLUMNS_MAX = 128, BYTES_MAX = 1 << 20, WORLD_MAX = 1 << 20 };
enum { COLUMN_IGNORED = -1, COLUMN_NAME = -2, COLUMN_WORLD = -3 }; /* else of the means */

/* Spreadsheets begin UTF-8 with it. */
static const char byte_order_mark[] = "\xEF\xBB\xBF";

/* The fields of a line. */
struct line {
    char *field[COLUMNS_MAX];
    int n;
};

struct table {
    const char *path;
    int column[COLUMNS_MAX], n_columns;
    int number; /* of the line, from 1 */
};

/* Takes the next field from *text, in place: without its quotes, and with a blank for each
 * character that would break a line of output. *ret_ends: the line ends after it. NULL: a quote is
 * not closed. */
static char *take_field(char **text, bool *ret_ends)
{
    char *from = *text, *to = from, *field = from;
    bool quoted = *from == '"';
    if (quoted)
        from++;
    while (*from && (quoted || (*from != ',' && *from != '\n' && *from != '\r'))) {
        if (quoted && *from == '"' && from[1] != '"') {
            quoted = false;
            from++;
            continue;
        }
        from += quoted && *from == '"';
        const char c = *from++;
        *to++ = (unsigned char)c < ' ' ? ' ' : c;
    }
    if (quoted)
        return NULL;
    const char ended_by = *from;
    if (ended_by)
        from++;
    if (ended_by == '\r' && *from == '\n')
        from++;
    *to = '\0';
    *ret_ends = ended_by != ',';
    *text = from;
    return field;
}

static enum dpt_status take_line(struct table *t, char **text, struct line *line,
                                 struct dpt_err *err)
{
    bool ends = false;
    t->number++;
    for (line->n = 0; !ends; line->n++) {
        if (line->n == COLUMNS_MAX)
            return dpt_fail(err, DPT_EINVAL, "'%s' line %d: more than %d columns", t->path,
                            t->number, COLUMNS_MAX);
        line->field[line->n] = take_field(text, &ends);
        if (!line->field[line->n])
            return dpt_fail(err, DPT_EINVAL, "'%s' line %d: a quote is not closed", t->path,
                            t->number);
    }
    return DPT_OK;
}

static int column_of(const char *name)
{
    if (strcmp(name, "name") == 0)
        return COLUMN_NAME;
    if (strcmp(name, "world_size") == 0)
        return COLUMN_WORLD;
    for (size_t i = 0; i < report_n_mean_columns; i++)
        if (strcmp(name, report_mean_columns[i].name) == 0)
            return (int)i;
    return COLUMN_IGNORED;
}

/* The header has no column `name`: says which columns it has. */
static enum dpt_status refuse_header(const struct table *t, const struct line *line,
                                     struct dpt_err *err)
{
    char columns[128] = "";
    for (int i = 0; i < line->n; i++) {
        const size_t used = strlen(columns);
        if (used > 64) {
            (void)snprintf(columns + used, sizeof columns - used, ", …");
            break;
        }
        (void)snprintf(columns + used, sizeof columns - used, "%s'%.40s'", i > 0 ? ", " : "",
                       line->field[i]);
    }
    return dpt_fail(err, DPT_EINVAL,
                    "'%s' has no column 'name'; its first line has %s: expected names of columns "
                    "separated by commas, 'name' and step_ms or others of dpt-trace compare's "
                    "summary.csv",
                    t->path, columns);
}

static enum dpt_status take_header(struct table *t, const struct line *line, struct dpt_err *err)
{
    int names = 0, figures = 0;
    t->n_columns = line->n;
    for (int i = 0; i < line->n; i++) {
        t->column[i] = column_of(line->field[i]);
        names += t->column[i] == COLUMN_NAME;
        figures += t->column[i] >= 0;
    }
    if (names == 0)
        return refuse_header(t, line, err);
    if (names > 1)
        return dpt_fail(err, DPT_EINVAL, "'%s' has %d columns 'name', expected one", t->path,
                        names);
    if (figures == 0)
        return dpt_fail(err, DPT_EINVAL,
                        "'%s' has no column with a figure: expected step_ms or another column of "
                        "dpt-trace compare's summary.csv",
                        t->path);
    return DPT_OK;
}

static enum dpt_status take_value(const struct table *t, int column, const char *field,
                                  struct dpt_report *row, struct dpt_err *err)
{
    double value;
    int64_t world;
    if (column == COLUMN_NAME)
        (void)snprintf(row->name, sizeof row->name, "%s", field);
    if (column == COLUMN_NAME || column == COLUMN_IGNORED || !*field)
        return DPT_OK;
    if (column == COLUMN_WORLD) {
        if (dpt_parse_i64(field, 1, WORLD_MAX, &world, err) != DPT_OK)
            return dpt_fail(err, DPT_EINVAL, "'%s' line %d: world_size '%s' is not a whole number",
                            t->path, t->number, field);
        row->world_size = (int)world;
        return DPT_OK;
    }
    const bool negative = *field == '-';
    if (dpt_parse_double(field + negative, &value, err) != DPT_OK)
        return dpt_fail(err, DPT_EINVAL, "'%s' line %d: %s '%s' is not a number", t->path,
                        t->number, report_mean_columns[column].name, field);
    report_mean_set(&row->means, (size_t)column, negative ? -value : value);
    return DPT_OK;
}

static enum dpt_status take_row(const struct table *t, const struct line *line,
                                struct dpt_report *row, struct dpt_err *err)
{
    *row = (struct dpt_report){.source = "csv",
                               .generation = REPORT_UNKNOWN,
                               .window = REPORT_UNKNOWN,
                               .clock_error_ns = REPORT_UNKNOWN};
    for (size_t i = 0; i < report_n_mean_columns; i++)
        report_mean_set(&row->means, i, (double)NAN);
    if (line->n != t->n_columns)
        return dpt_fail(err, DPT_EINVAL, "'%s' line %d has %d fields, expected %d", t->path,
                        t->number, line->n, t->n_columns);
    for (int i = 0; i < line->n; i++)
        DPT_TRY(take_value(t, t->column[i], line->field[i], row, err));
    if (!row->name[0])
        return dpt_fail(err, DPT_EINVAL, "'%s' line %d has no name", t->path, t->number);
    return DPT_OK;
}

static enum dpt_status take_rows(struct table *t, char *text, struct dpt_report *ret,
                                 size_t rows_max, size_t *ret_n, struct dpt_err *err)
{
    struct line line;
    size_t n = 0;
    text +=
        strncmp(text, byte_order_mark, strlen(byte_order_mark)) == 0 ? strlen(byte_order_mark) : 0;
    if (text[strspn(text, " \t\r\n")] == '\0')
        return dpt_fail(err, DPT_EINVAL,
                        "'%s' is empty: expected a line with the names of columns, 'name' and "
                        "step_ms or others of dpt-trace compare's summary.csv",
                        t->path);
    DPT_TRY(take_line(t, &text, &line, err));
    DPT_TRY(take_header(t, &line, err));
    while (*text) {
        DPT_TRY(take_line(t, &text, &line, err));
        if (line.n == 1 && !*line.field[0])
            continue;
        if (n == rows_max)
            return dpt_fail(err, DPT_EINVAL, "'%s' has more than %zu rows", t->path, rows_max);
        DPT_TRY(take_row(t, &line, &ret[n], err));
        n++;
    }
    if (n == 0)
        return dpt_fail(err, DPT_EINVAL, "'%s' has no rows", t->path);
    *ret_n = n;
    return DPT_OK;
}

enum dpt_status report_user_csv_read(const char *path, struct dpt_report *ret, size_t rows_max,
                                     size_t *ret_n, struct dpt_err *err)
{
    struct table t = {.path = path};
    char *text;
    size_t bytes;
    DPT_TRY(dpt_fs_read_stream(path, BYTES_MAX, &text, &bytes, err));
    const enum dpt_status status = strlen(text) == bytes
                                       ? take_rows(&t, text, ret, rows_max, ret_n, err)
                                       : dpt_fail(err, DPT_EINVAL, "'%s' is not text", path);
    free(text);
    return status;
}
