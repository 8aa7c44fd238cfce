/* Encoding one block: its documents, in the splits they belong to. */
#ifndef DPT_WORKER_DATA_PREPARE_JOB_H
#define DPT_WORKER_DATA_PREPARE_JOB_H

#include "worker/data/prepare/job_pool.h"

/* One thread's; the encoder is made with the first block. */
struct dpt_job_encoder {
    const struct dpt_vocab *vocab;
    const struct dpt_cutter *cutter;
    const char *text_key;
    struct dpt_encoder *encoder;
};
void dpt_job_encoder_fini(struct dpt_job_encoder *encoder);

/* Fills everything of the job but its block. Each document begins with <|endoftext|>, where the
 * vocabulary has it, as in the shards of llm.c; a text in stretches has one wherever it goes on
 * after a stretch of the other split. Documents without text leave nothing. */
void dpt_job_encode(struct dpt_job_encoder *encoder, struct dpt_job *job);

#endif
