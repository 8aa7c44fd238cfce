/* The text and the label of each row, by their columns, and the checks on them. */
#include "worker/data/label_table.h"

#include "base/fs.h"
#include "base/parse.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

enum { NAMES_BYTES = 300, NAME_SHOWN = 40, LABEL_SHOWN = 40 };

/* ---------------------------------------------------------------- the file */

static bool by_number(const struct dpt_label_table_options *options)
{
    return options->text_column[strspn(options->text_column, "0123456789")] == '\0';
}

enum dpt_status dpt_label_table_init(struct dpt_label_table *table,
                                     const struct dpt_label_table_options *options,
                                     const struct dpt_data_file *file, struct dpt_err *err)
{
    const bool jsonl = dpt_fs_has_ending(options->path, "jsonl,ndjson");
    if (!jsonl && !dpt_fs_has_ending(options->path, "csv,tsv"))
        return dpt_fail(err, DPT_ECONFIG,
                        "the name '%s' does not end in .csv, .tsv or .jsonl: the ending tells the "
                        "kind of table; rename it, or convert it to one of these",
                        options->path);
    if (jsonl && by_number(options))
        return dpt_fail(err, DPT_ECONFIG,
                        "the members of a line of '%s' have names; set data.text_column and "
                        "data.label_column to those of the text and the label",
                        options->path);
    table->options = options;
    table->file = file;
    table->jsonl = jsonl;
    table->rows.form = jsonl                                     ? DPT_ROWS_LINES
                       : dpt_fs_has_ending(options->path, "tsv") ? DPT_ROWS_TSV
                                                                 : DPT_ROWS_CSV;
    return DPT_OK;
}

void dpt_label_table_fini(struct dpt_label_table *table)
{
    dpt_rows_fini(&table->rows);
    json_decref(table->json);
    table->json = NULL;
}

int64_t dpt_label_table_line(const struct dpt_label_table *table)
{
    return table->rows.line;
}

/* Call before the first row is read. Skips the byte order mark of UTF-8; refuses those of
 * UTF-16. */
static enum dpt_status skip_byte_order_mark(struct dpt_label_table *table, struct dpt_err *err)
{
    static const uint8_t utf8[] = {0xef, 0xbb, 0xbf}, little[] = {0xff, 0xfe}, big[] = {0xfe, 0xff};
    const size_t bytes = table->chunk_bytes;
    if (bytes >= sizeof little && (memcmp(table->chunk, little, sizeof little) == 0 ||
                                   memcmp(table->chunk, big, sizeof big) == 0)) {
        table->rows.line = 1;
        return dpt_fail(err, DPT_ECORRUPT, "the file is UTF-16; save it as UTF-8");
    }
    if (bytes >= sizeof utf8 && memcmp(table->chunk, utf8, sizeof utf8) == 0)
        table->chunk_at = sizeof utf8;
    return DPT_OK;
}

static enum dpt_status fill_chunk(struct dpt_label_table *table, struct dpt_err *err)
{
    const int64_t left = table->file->bytes - table->at;
    const size_t bytes = left < (int64_t)sizeof table->chunk ? (size_t)left : sizeof table->chunk;
    DPT_TRY(dpt_data_file_read(table->file, table->at, table->chunk, bytes, err));
    table->chunk_bytes = bytes;
    table->chunk_at = 0;
    table->at += (int64_t)bytes;
    return table->at == (int64_t)bytes ? skip_byte_order_mark(table, err) : DPT_OK;
}

static enum dpt_status next_fields(struct dpt_label_table *table, bool *ret_any,
                                   struct dpt_err *err)
{
    *ret_any = false;
    while (!*ret_any) {
        size_t taken = 0;
        if (table->chunk_at == table->chunk_bytes && table->at == table->file->bytes)
            return dpt_rows_end(&table->rows, ret_any, err);
        if (table->chunk_at == table->chunk_bytes)
            DPT_TRY(fill_chunk(table, err));
        DPT_TRY(dpt_rows_feed(&table->rows, table->chunk + table->chunk_at,
                              table->chunk_bytes - table->chunk_at, &taken, ret_any, err));
        table->chunk_at += taken;
    }
    return DPT_OK;
}

/* ---------------------------------------------------------------- columns */

static void list_column_names(const struct dpt_rows *rows, char ret[NAMES_BYTES])
{
    size_t used = 0, bytes;
    ret[0] = '\0';
    for (int i = 0; i < rows->n_fields && used < NAMES_BYTES - 2 * NAME_SHOWN; i++)
        used += (size_t)snprintf(ret + used, NAMES_BYTES - used, "%s'%.*s'", i > 0 ? ", " : "",
                                 NAME_SHOWN, dpt_rows_field(rows, i, &bytes));
}

static enum dpt_status column_by_name(const struct dpt_rows *rows, const char *key,
                                      const char *name, int *ret, struct dpt_err *err)
{
    int found = -1;
    for (int i = 0; i < rows->n_fields; i++) {
        size_t bytes;
        const char *field = dpt_rows_field(rows, i, &bytes);
        if (bytes != strlen(name) || memcmp(field, name, bytes) != 0)
            continue;
        if (found >= 0)
            return dpt_fail(err, DPT_ECORRUPT,
                            "columns %d and %d are both named '%s' (%s); rename one", found + 1,
                            i + 1, name, key);
        found = i;
    }
    if (found < 0) {
        char names[NAMES_BYTES];
        list_column_names(rows, names);
        return dpt_fail(err, DPT_ECONFIG,
                        "no column is named '%s'; set %s to one of %s, or to its number if this "
                        "row is data",
                        name, key, names);
    }
    *ret = found;
    return DPT_OK;
}

static enum dpt_status column_by_number(const struct dpt_rows *rows, const char *key,
                                        const char *number, int *ret, struct dpt_err *err)
{
    int64_t column = 0;
    if (dpt_parse_i64(number, 1, rows->n_fields, &column, NULL) != DPT_OK)
        return dpt_fail(err, DPT_ECONFIG, "%s is %s, and the row has %d column%s; set it to one",
                        key, number, rows->n_fields, rows->n_fields == 1 ? "" : "s");
    *ret = (int)column - 1;
    return DPT_OK;
}

/* Finds the columns by the first row. */
static enum dpt_status find_columns(struct dpt_label_table *table, struct dpt_err *err)
{
    const struct dpt_label_table_options *o = table->options;
    const struct dpt_rows *rows = &table->rows;
    table->columns = rows->n_fields;
    if (by_number(o)) {
        DPT_TRY(column_by_number(rows, "data.text_column", o->text_column, &table->text, err));
        return column_by_number(rows, "data.label_column", o->label_column, &table->label, err);
    }
    DPT_TRY(column_by_name(rows, "data.text_column", o->text_column, &table->text, err));
    return column_by_name(rows, "data.label_column", o->label_column, &table->label, err);
}

/* ---------------------------------------------------------------- a row */

static enum dpt_status check_columns(const struct dpt_label_table *table, struct dpt_err *err)
{
    const int n = table->rows.n_fields;
    if (n == table->columns)
        return DPT_OK;
    return dpt_fail(err, DPT_ECORRUPT, "the row has %d column%s, the first one %d; %s", n,
                    n == 1 ? "" : "s", table->columns,
                    n < table->columns                 ? "give it the others, or remove it"
                    : table->rows.form == DPT_ROWS_CSV ? "put texts that hold commas in quotes"
                                                       : "write no tabs inside a text");
}

static enum dpt_status class_of_label(const struct dpt_label_table *table, int64_t label,
                                      int32_t *ret, struct dpt_err *err)
{
    const struct dpt_label_table_options *o = table->options;
    if (label < o->first_label || label >= o->first_label + o->labels)
        return dpt_fail(err, DPT_ECONFIG,
                        "label %lld is not among %lld … %lld; correct it, or set data.first_label "
                        "(%lld) and model.labels (%d) to what the file has",
                        (long long)label, (long long)o->first_label,
                        (long long)o->first_label + o->labels - 1, (long long)o->first_label,
                        o->labels);
    *ret = (int32_t)(label - o->first_label);
    return DPT_OK;
}

static enum dpt_status read_fields(const struct dpt_label_table *table,
                                   struct dpt_label_table_row *ret, struct dpt_err *err)
{
    int64_t label = 0;
    size_t bytes;
    DPT_TRY(check_columns(table, err));
    const char *field = dpt_rows_field(&table->rows, table->label, &bytes);
    if (strlen(field) != bytes ||
        dpt_parse_i64(field, INT64_MIN, INT64_MAX, &label, NULL) != DPT_OK)
        return dpt_fail(err, DPT_ECORRUPT,
                        "label '%.*s' (column %d) is no integer; labels are the numbers of classes",
                        LABEL_SHOWN, field, table->label + 1);
    DPT_TRY(class_of_label(table, label, &ret->label, err));
    ret->text = dpt_rows_field(&table->rows, table->text, &ret->bytes);
    return DPT_OK;
}

static enum dpt_status read_json_line(struct dpt_label_table *table,
                                      struct dpt_label_table_row *ret, struct dpt_err *err)
{
    const struct dpt_label_table_options *o = table->options;
    json_error_t at;
    size_t bytes;
    const char *line = dpt_rows_field(&table->rows, 0, &bytes);
    json_decref(table->json);
    table->json = json_loadb(line, bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &at);
    const json_t *text = json_object_get(table->json, o->text_column),
                 *label = json_object_get(table->json, o->label_column);
    if (!table->json)
        return dpt_fail(err, DPT_ECORRUPT,
                        "no JSON (column %d): %s; each line is one object with a text and a label",
                        at.column, at.text);
    if (!json_is_object((json_t *)table->json))
        return dpt_fail(err, DPT_ECORRUPT,
                        "no JSON object; each line is one with a text and a label");
    if (!text || !label)
        return dpt_fail(err, DPT_ECONFIG,
                        "it has no member '%s'; give it one, or set %s to the name in the file",
                        text ? o->label_column : o->text_column,
                        text ? "data.label_column" : "data.text_column");
    if (!json_is_string(text))
        return dpt_fail(err, DPT_ECORRUPT, "'%s' is no string; put the text in quotes",
                        o->text_column);
    if (!json_is_integer(label))
        return dpt_fail(err, DPT_ECORRUPT, "'%s' is no integer; labels are the numbers of classes",
                        o->label_column);
    DPT_TRY(class_of_label(table, json_integer_value(label), &ret->label, err));
    ret->text = json_string_value(text);
    ret->bytes = json_string_length(text);
    return DPT_OK;
}

enum dpt_status dpt_label_table_next(struct dpt_label_table *table, struct dpt_label_table_row *ret,
                                     bool *ret_any, struct dpt_err *err)
{
    bool any = false;
    DPT_TRY(next_fields(table, &any, err));
    if (any && !table->jsonl && !table->started) {
        DPT_TRY(find_columns(table, err));
        if (!by_number(table->options))
            DPT_TRY(next_fields(table, &any, err));
    }
    table->started = true;
    if (any)
        DPT_TRY(table->jsonl ? read_json_line(table, ret, err) : read_fields(table, ret, err));
    *ret_any = any;
    return DPT_OK;
}
