/* Sizes and places of samples (sample.h). */
#include "base/sample.h"

#include "base/err.h"

#include <string.h>

static size_t image_bytes(const struct dpt_config *config)
{
    const size_t size = (size_t)config->data.image_size;
    return size * size * DPT_SAMPLE_CHANNELS * sizeof(float);
}

struct dpt_sample_form dpt_sample_form(const struct dpt_config *config)
{
    const int64_t t = config->train.seq_len;
    const size_t bytes = (size_t)t * sizeof(int32_t);
    const bool images = dpt_config_reads_images(config), labels = dpt_config_reads_labels(config);
    struct dpt_sample_form form = {.positions = images ? 1 : t,
                                   .losses = labels ? 1 : t,
                                   .ragged = config->data.kind == DPT_DATA_CLASSIFICATION};
    form.part_bytes[DPT_SAMPLE_INPUT] = images ? image_bytes(config) : bytes;
    form.part_bytes[DPT_SAMPLE_TARGET] = labels ? sizeof(int32_t) : bytes;
    form.part_bytes[DPT_SAMPLE_LENGTH] = form.ragged ? sizeof(int32_t) : 0;
    return form;
}

static size_t bytes_of_part(const struct dpt_sample_form *form, int part, int64_t n)
{
    return ((size_t)n * form->part_bytes[part] + DPT_BATCH_ALIGN - 1) / DPT_BATCH_ALIGN *
           DPT_BATCH_ALIGN;
}

size_t dpt_batch_bytes(const struct dpt_sample_form *form, int64_t n)
{
    size_t bytes = 0;
    for (int part = 0; part < DPT_SAMPLE_PARTS; part++)
        bytes += bytes_of_part(form, part, n);
    return bytes;
}

struct dpt_batch dpt_batch_at(const struct dpt_sample_form *form, int64_t n, void *memory)
{
    struct dpt_batch batch = {.positions = form->positions};
    char *at = memory;
    for (int part = 0; part < DPT_SAMPLE_PARTS; part++) {
        batch.part[part] = at;
        at += bytes_of_part(form, part, n);
    }
    return batch;
}

void *dpt_batch_part(const struct dpt_sample_form *form, const struct dpt_batch *batch,
                     enum dpt_sample_part part, int64_t i)
{
    return (char *)batch->part[part] + (size_t)i * form->part_bytes[part];
}

void dpt_batch_close(const struct dpt_sample_form *form, struct dpt_batch *batch, int64_t n)
{
    if (!form->ragged)
        return;
    const int32_t *lengths = batch->part[DPT_SAMPLE_LENGTH];
    int32_t *tokens = batch->part[DPT_SAMPLE_INPUT];
    int64_t positions = 0;
    for (int64_t i = 0; i < n; i++) {
        DPT_ASSERT(lengths[i] >= 1 && lengths[i] <= form->positions);
        positions = lengths[i] > positions ? lengths[i] : positions;
    }
    for (int64_t i = 0; i < n; i++) {
        int32_t *row = tokens + i * positions;
        const size_t length = (size_t)lengths[i];
        memmove(row, tokens + i * form->positions, length * sizeof *row);
        memset(row + length, 0, ((size_t)positions - length) * sizeof *row);
    }
    batch->positions = positions;
}
