/* The form of a sample, shared by the data source that fills it and the model that reads it. The
 * code between the two (loader, trainer, accelerator, evaluation) uses only its sizes. Pure. */
#ifndef DPT_BASE_SAMPLE_H
#define DPT_BASE_SAMPLE_H

#include "base/config.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* With data.kind tokens or text: int32 tokens [seq_len], and int32 targets [seq_len], the token
 * that follows each. With classification: int32 tokens [seq_len], of which LENGTH, one int32 of
 * 1 … seq_len, are the text's, and one int32 target, the class in [0, model.labels). With images:
 * fp32 pixels [image_size, image_size, 3] (rows, columns; red, green, blue), normalised, and one
 * int32 target, the class. */
enum dpt_sample_part { DPT_SAMPLE_INPUT, DPT_SAMPLE_TARGET, DPT_SAMPLE_LENGTH, DPT_SAMPLE_PARTS };

enum { DPT_SAMPLE_CHANNELS = 3 }; /* of a pixel */

struct dpt_sample_form {
    size_t part_bytes[DPT_SAMPLE_PARTS]; /* of one sample; 0: the part does not exist */
    int64_t positions; /* most that a model computes: tokens of a sequence; 1 for an image */
    int64_t losses;    /* of the model for one sample */
    bool ragged;       /* samples have different lengths */
};

struct dpt_sample_form dpt_sample_form(const struct dpt_config *config);

enum { DPT_BATCH_ALIGN = 64 };

/* A micro-batch in one piece of memory: part by part, and in a part sample by sample. */
struct dpt_batch {
    void *part[DPT_SAMPLE_PARTS]; /* each at DPT_BATCH_ALIGN */
    int64_t positions; /* of a sample that the model computes: form->positions until the micro-batch
                          is closed, then the length of the longest sample */
};

/* Bytes of a micro-batch of `n` samples. */
size_t dpt_batch_bytes(const struct dpt_sample_form *form, int64_t n);
/* Its parts in `memory`, which has dpt_batch_bytes bytes and is aligned to DPT_BATCH_ALIGN. */
struct dpt_batch dpt_batch_at(const struct dpt_sample_form *form, int64_t n, void *memory);

/* Part `part` of sample `i`, to fill the micro-batch. Not for INPUT of ragged samples after the
 * micro-batch is closed. */
void *dpt_batch_part(const struct dpt_sample_form *form, const struct dpt_batch *batch,
                     enum dpt_sample_part part, int64_t i);

/* To be called when all `n` samples are filled. Ragged samples: sets batch->positions to the length
 * of the longest and moves the rows of INPUT together, from (n, form->positions) to
 * (n, batch->positions) tokens; tokens after a sample's length become 0. No effect on other
 * samples. The memory may be filled again afterwards. */
void dpt_batch_close(const struct dpt_sample_form *form, struct dpt_batch *batch, int64_t n);

#endif
