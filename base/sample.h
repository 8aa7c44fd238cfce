/* What a sample is, where the data source that fills it and the model that reads it agree. Those
 * that carry samples between the two (the loader, the trainer, the accelerator, the evaluation)
 * know sizes alone. Pure. */
#ifndef DPT_BASE_SAMPLE_H
#define DPT_BASE_SAMPLE_H

#include "base/config.h"

#include <stddef.h>
#include <stdint.h>

/* With data.kind tokens or text: int32 tokens [seq_len], and int32 targets [seq_len], the token
 * that follows each. */
enum dpt_sample_part { DPT_SAMPLE_INPUT, DPT_SAMPLE_TARGET, DPT_SAMPLE_PARTS };

struct dpt_sample_form {
    size_t part_bytes[DPT_SAMPLE_PARTS]; /* of one sample */
    int64_t positions;                   /* that a model computes: tokens of a sequence */
    int64_t losses;                      /* that a model gives a sample */
};

struct dpt_sample_form dpt_sample_form(const struct dpt_config *config);

enum { DPT_BATCH_ALIGN = 64 };

/* A micro-batch, in one piece of memory: each part of all its samples, one sample behind the other.
 */
struct dpt_batch {
    void *part[DPT_SAMPLE_PARTS]; /* each at DPT_BATCH_ALIGN */
};

/* Bytes of a micro-batch of `n` samples. */
size_t dpt_batch_bytes(const struct dpt_sample_form *form, int64_t n);
/* Its parts in `memory`, which has that many bytes and is aligned to DPT_BATCH_ALIGN. */
struct dpt_batch dpt_batch_at(const struct dpt_sample_form *form, int64_t n, void *memory);

/* Part `part` of sample `i`. */
void *dpt_batch_part(const struct dpt_sample_form *form, const struct dpt_batch *batch,
                     enum dpt_sample_part part, int64_t i);

#endif
