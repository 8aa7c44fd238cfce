/* Texts with labels: read and encoded once, kept as tokens. */
#include "worker/data/labelled.h"

#include "base/array.h"
#include "base/cursor.h"
#include "worker/data/data_source.h"
#include "worker/data/label_table.h"

#include <stdlib.h>
#include <string.h>

void dpt_labelled_destroy(struct dpt_labelled **labelled)
{
    if (!*labelled)
        return;
    free((*labelled)->labels);
    free((*labelled)->ends);
    free((*labelled)->tokens);
    free(*labelled);
    *labelled = NULL;
}

static int64_t begin_of(const struct dpt_labelled *l, int64_t i)
{
    return i > 0 ? l->ends[i - 1] : 0;
}

int64_t dpt_labelled_tokens(const struct dpt_labelled *l)
{
    return begin_of(l, l->n);
}

static enum dpt_status reserve_text(struct dpt_labelled *l, int64_t tokens, struct dpt_err *err)
{
    const size_t n = (size_t)l->n + 1, n_tokens = (size_t)(dpt_labelled_tokens(l) + tokens);
    if (dpt_array_reserve(&l->labels, &l->labels_room, n, sizeof *l->labels) &&
        dpt_array_reserve(&l->ends, &l->ends_room, n, sizeof *l->ends) &&
        dpt_array_reserve(&l->tokens, &l->tokens_room, n_tokens, (size_t)l->width))
        return DPT_OK;
    return dpt_fail_nomem(err, "texts so far (fewer rows: data.train_samples, data.val_samples)");
}

static enum dpt_status add_labelled_text(struct dpt_labelled *l, const uint32_t *ids, int64_t n,
                                         int32_t label, struct dpt_err *err)
{
    DPT_TRY(reserve_text(l, n, err));
    const int64_t begin = dpt_labelled_tokens(l);
    for (int64_t i = 0; i < n; i++)
        if (l->width == 2)
            ((uint16_t *)l->tokens)[begin + i] = (uint16_t)ids[i];
        else
            ((uint32_t *)l->tokens)[begin + i] = ids[i];
    l->labels[l->n] = label;
    l->ends[l->n] = begin + n;
    l->n++;
    return DPT_OK;
}

struct reading {
    struct dpt_label_table table;
    struct dpt_encoder *encoder;
    struct dpt_tokens tokens; /* of the current row */
    int64_t replaced_line;    /* of the first row that is not UTF-8; 0: none so far */
};

static enum dpt_status read_row(struct reading *reading, struct dpt_labelled *l, bool *ret_any,
                                struct dpt_err *err)
{
    struct dpt_label_table_row row;
    struct dpt_tokens *tokens = &reading->tokens;
    DPT_TRY(dpt_label_table_next(&reading->table, &row, ret_any, err));
    if (!*ret_any)
        return DPT_OK;
    tokens->n = 0;
    DPT_TRY(dpt_encoder_encode(reading->encoder, row.text, row.bytes, tokens, err));
    if (reading->replaced_line == 0 && dpt_encoder_replaced(reading->encoder) > 0)
        reading->replaced_line = dpt_label_table_line(&reading->table);
    if (tokens->n == 0)
        return dpt_fail(err, DPT_ECORRUPT, "its text is empty; remove the row, or give it one");
    const int64_t n = (int64_t)tokens->n;
    return add_labelled_text(l, tokens->ids, n < l->seq_len ? n : l->seq_len, row.label, err);
}

static enum dpt_status read_rows(struct reading *reading, int64_t samples, struct dpt_labelled *l,
                                 struct dpt_err *err)
{
    bool any = true;
    while (any && (samples == 0 || l->n < samples)) {
        const enum dpt_status status = read_row(reading, l, &any, err);
        if (status != DPT_OK)
            return dpt_wrap(err, status, "%s:%lld", reading->table.options->path,
                            (long long)dpt_label_table_line(&reading->table));
    }
    return DPT_OK;
}

static enum dpt_status check_count(const struct dpt_labelled_source *source, int64_t n,
                                   struct dpt_err *err)
{
    if (n == 0)
        return dpt_fail(err, DPT_ECONFIG, "'%s' has no row of data; name another file",
                        source->file->path);
    if (n < source->samples)
        return dpt_fail(err, DPT_ECONFIG,
                        "'%s' has %lld rows of data, and %s is %lld; set it to at most that, or 0 "
                        "for all",
                        source->file->path, (long long)n, source->key, (long long)source->samples);
    return DPT_OK;
}

/* `reading` must be zeroed; it is too large for the stack. */
static enum dpt_status read_table(struct reading *reading,
                                  const struct dpt_label_table_options *options,
                                  const struct dpt_labelled_source *source,
                                  const struct dpt_vocab *vocab, struct dpt_labelled *l,
                                  struct dpt_err *err)
{
    DPT_TRY(dpt_label_table_init(&reading->table, options, source->file, err));
    DPT_TRY(dpt_encoder_create(vocab, &reading->encoder, err));
    DPT_TRY(read_rows(reading, source->samples, l, err));
    DPT_TRY(check_count(source, l->n, err));
    dpt_data_source_warn_of_replaced(source->file->path, reading->replaced_line,
                                     dpt_encoder_replaced(reading->encoder));
    return DPT_OK;
}

enum dpt_status dpt_labelled_create(const struct dpt_config *config,
                                    const struct dpt_labelled_source *source,
                                    const struct dpt_vocab *vocab, struct dpt_labelled **ret,
                                    struct dpt_err *err)
{
    const struct dpt_label_table_options options = {.path = source->file->path,
                                                    .text_column = config->data.text_column,
                                                    .label_column = config->data.label_column,
                                                    .first_label = config->data.first_label,
                                                    .labels = config->model.labels};
    struct reading *reading = calloc(1, sizeof *reading);
    struct dpt_labelled *l = calloc(1, sizeof *l);
    if (!reading || !l) {
        free(reading);
        free(l);
        return dpt_fail_nomem(err, "read '%s'", options.path);
    }
    l->seq_len = config->train.seq_len;
    l->width = dpt_vocab_token_bytes(vocab);
    const enum dpt_status status = read_table(reading, &options, source, vocab, l, err);
    dpt_label_table_fini(&reading->table);
    dpt_tokens_fini(&reading->tokens);
    dpt_encoder_destroy(&reading->encoder);
    free(reading);
    if (status != DPT_OK)
        dpt_labelled_destroy(&l);
    else
        *ret = l;
    return status;
}

static uint32_t token_at(const struct dpt_labelled *l, int64_t at)
{
    return l->width == 2 ? ((const uint16_t *)l->tokens)[at] : ((const uint32_t *)l->tokens)[at];
}

void dpt_labelled_get(const struct dpt_labelled *l, int64_t i, int32_t *ret_tokens,
                      int32_t *ret_length, int32_t *ret_label)
{
    const int64_t begin = begin_of(l, i), n = l->ends[i] - begin;
    for (int64_t j = 0; j < n; j++)
        ret_tokens[j] = (int32_t)token_at(l, begin + j);
    *ret_length = (int32_t)n;
    *ret_label = l->labels[i];
}

enum dpt_status dpt_labelled_hash(const struct dpt_labelled *l, struct dpt_hash128 *ret,
                                  struct dpt_err *err)
{
    /* The hash so far, the label, the length, the tokens. */
    const size_t room = (4 + 2 + (size_t)l->seq_len) * sizeof(uint32_t);
    struct dpt_hash128 h = {0, 0};
    uint8_t *text = malloc(room);
    if (!text)
        return dpt_fail_nomem(err, "hash the data");
    for (int64_t i = 0; i < l->n; i++) {
        struct dpt_writer writer;
        dpt_writer_init(&writer, text, room);
        dpt_writer_u64(&writer, h.hi);
        dpt_writer_u64(&writer, h.lo);
        dpt_writer_u32(&writer, (uint32_t)l->labels[i]);
        dpt_writer_u32(&writer, (uint32_t)(l->ends[i] - begin_of(l, i)));
        for (int64_t at = begin_of(l, i); at < l->ends[i]; at++)
            dpt_writer_u32(&writer, token_at(l, at));
        h = dpt_hash128(text, writer.at);
    }
    free(text);
    *ret = h;
    return DPT_OK;
}
