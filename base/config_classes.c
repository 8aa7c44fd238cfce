/* Classification: its keys, and impossible combinations. */
#include "base/config_table.h"

#include <string.h>

enum { LABELS_MIN = 2 };

/* Checks that the model has classes if and only if its samples have labels. */
static enum dpt_status check_labels(const struct dpt_config_load *load, struct dpt_err *err)
{
    const struct dpt_config *c = &load->config;
    char kind[DPT_CONFIG_VALUE_BYTES];
    dpt_config_key_format(dpt_config_key("data.kind"), c, kind);
    if (!dpt_config_reads_labels(c))
        return c->model.labels == 0
                   ? DPT_OK
                   : dpt_refuse_both(
                         load, "model.labels", "data.kind", err,
                         "model.labels (%d) are classes of data.kind: classification, cifar10 or "
                         "images; set one of these, or labels to 0 (data.kind is %s)",
                         c->model.labels, kind);
    if (c->model.labels < LABELS_MIN)
        return dpt_refuse_both(load, "model.labels", "data.kind", err,
                               "data.kind: %s needs model.labels, the number of classes, which is "
                               "%d here; set it to at least %d, or data.kind: text",
                               kind, c->model.labels, LABELS_MIN);
    return DPT_OK;
}

static bool is_number(const char *column)
{
    return column[strspn(column, "0123456789")] == '\0';
}

static bool is_zero(const char *column)
{
    return column[strspn(column, "0")] == '\0';
}

/* Checks the two columns of a table, and the number of rows to read. */
static enum dpt_status check_table(const struct dpt_config_load *load, struct dpt_err *err)
{
    const struct dpt_config *c = &load->config;
    const char *text = c->data.text_column, *label = c->data.label_column;
    if (c->data.kind != DPT_DATA_CLASSIFICATION) {
        const bool train = c->data.train_samples > 0;
        const char *key = train ? "data.train_samples" : "data.val_samples";
        const int64_t samples = train ? c->data.train_samples : c->data.val_samples;
        return samples == 0 ? DPT_OK
                            : dpt_refuse_both(load, key, "data.kind", err,
                                              "%s (%lld) are rows of data.kind: classification; "
                                              "set that, or write 0 here",
                                              key, (long long)samples);
    }
    if (strcmp(text, label) == 0)
        return dpt_refuse_both(load, "data.text_column", "data.label_column", err,
                               "data.text_column and data.label_column are both '%s'; name the "
                               "column of the labels and that of the texts",
                               text);
    if (is_zero(text) || is_zero(label))
        return dpt_refuse_both(load, "data.text_column", "data.label_column", err,
                               "data.%s_column is 0, and columns are counted from 1",
                               is_zero(text) ? "text" : "label");
    if (is_number(text) != is_number(label))
        return dpt_refuse_both(
            load, "data.text_column", "data.label_column", err,
            "data.text_column is '%s' and data.label_column '%s', one by its number, for a file "
            "without names, and one by its name; give two numbers or two names",
            text, label);
    return DPT_OK;
}

enum dpt_status dpt_config_check_classes(const struct dpt_config_load *load, struct dpt_err *err)
{
    DPT_TRY(check_labels(load, err));
    return check_table(load, err);
}
