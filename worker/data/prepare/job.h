/* Encoding one block: its documents, each in its split. */
#ifndef DPT_WORKER_DATA_PREPARE_JOB_H
#define DPT_WORKER_DATA_PREPARE_JOB_H

#include "worker/data/prepare/cutter.h"

/* A block that is read, then encoded, then written. */
struct dpt_job {
    struct dpt_block block;
    struct dpt_tokens tokens[DPT_SPLIT_COUNT];
    int64_t documents[DPT_SPLIT_COUNT];
    int64_t replaced;       /* sequences of invalid UTF-8 */
    enum dpt_status status; /* of encoding */
    struct dpt_err err;
};

/* The same for all jobs; borrowed. */
struct dpt_job_options {
    const struct dpt_vocab *vocab;
    const struct dpt_cutter *cutter; /* for dpt_cutter_split */
    const char *text_key;
};

/* Encodes the block and fills all other members of the job. `*encoder` belongs to the calling
 * thread; NULL: it is created here. Each document begins with <|endoftext|>, if the vocabulary has
 * it, as in the shards of llm.c. A text that is split in stretches has one wherever it continues
 * after a stretch of the other split. A document without text has no tokens. */
void dpt_job_encode(const struct dpt_job_options *options, struct dpt_encoder **encoder,
                    struct dpt_job *job);

#endif
