/* The form of a sample, shared by the data source that fills it and the model that reads it. The
 * code between the two (loader, trainer, device, evaluation) uses only its sizes. Pure. */
#ifndef DPT_BASE_SAMPLE_H
#define DPT_BASE_SAMPLE_H

#include "base/config.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The parts of a sample, by data.kind:
 *
 *   tokens, text    int32 tokens [seq_len], and int32 targets [seq_len]: each target is the token
 *                   that follows
 *   classification  int32 tokens [seq_len]; LENGTH, one int32 in 1 … seq_len: the number of tokens
 *                   of the text; one int32 target: the class in [0, model.labels)
 *   cifar10, images fp32 pixels [image_size, image_size, 3] (rows, columns; red, green, blue),
 *                   normalised; one int32 target: the class */
enum dpt_sample_part { DPT_SAMPLE_INPUT, DPT_SAMPLE_TARGET, DPT_SAMPLE_LENGTH, DPT_SAMPLE_PARTS };

enum { DPT_SAMPLE_CHANNELS = 3 }; /* numbers of a pixel */

struct dpt_sample_form {
    size_t part_bytes[DPT_SAMPLE_PARTS]; /* of one sample's part; 0: the part does not exist */
    int64_t positions; /* most that a model computes: tokens of a sequence; 1 for an image */
    int64_t losses;    /* number of losses that the model has for one sample */
    bool ragged;       /* samples have different lengths */
};

struct dpt_sample_form dpt_sample_form(const struct dpt_config *config);

enum {
    DPT_BATCH_ALIGN = 64,
    DPT_BATCHES_AHEAD = 8 /* micro-batches that the loader holds (worker/data/loader.c) */
};

/* A micro-batch in one piece of memory: one part after another, and in a part one sample after
 * another. */
struct dpt_batch {
    void *part[DPT_SAMPLE_PARTS]; /* each at DPT_BATCH_ALIGN */
    /* Positions of a sample that the model computes: form->positions until the micro-batch is
     * closed, then the length of the longest sample. */
    int64_t positions;
};

/* Bytes of a micro-batch of `n` samples. */
size_t dpt_batch_bytes(const struct dpt_sample_form *form, int64_t n);
/* The parts of a micro-batch in `memory`, which has dpt_batch_bytes bytes and is aligned to
 * DPT_BATCH_ALIGN. */
struct dpt_batch dpt_batch_at(const struct dpt_sample_form *form, int64_t n, void *memory);

/* Part `part` of sample `i`, to fill the micro-batch. Not for INPUT of ragged samples after the
 * micro-batch is closed. */
void *dpt_batch_part(const struct dpt_sample_form *form, const struct dpt_batch *batch,
                     enum dpt_sample_part part, int64_t i);

/* To be called when all `n` samples are filled. If samples are ragged: sets batch->positions to the
 * length of the longest sample, and moves the rows of INPUT together, from (n, form->positions) to
 * (n, batch->positions) tokens. Tokens after a sample's length become 0. No effect if samples are
 * not ragged. Afterwards the memory may be filled again. */
void dpt_batch_close(const struct dpt_sample_form *form, struct dpt_batch *batch, int64_t n);

#endif
