/* Sizes and places of samples (sample.h). */
#include "base/sample.h"

struct dpt_sample_form dpt_sample_form(const struct dpt_config *config)
{
    const int64_t t = config->train.seq_len;
    const size_t bytes = (size_t)t * sizeof(int32_t);
    return (struct dpt_sample_form){
        .part_bytes = {[DPT_SAMPLE_INPUT] = bytes, [DPT_SAMPLE_TARGET] = bytes},
        .positions = t,
        .losses = t};
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
    struct dpt_batch batch;
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
