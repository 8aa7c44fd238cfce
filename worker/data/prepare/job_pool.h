/* The threads that encode blocks, and the ring that keeps the blocks in order. */
#ifndef DPT_WORKER_DATA_PREPARE_JOB_POOL_H
#define DPT_WORKER_DATA_PREPARE_JOB_POOL_H

#include "worker/data/prepare/encode.h"

/* A block on its way: read, then encoded, then written. */
struct dpt_job {
    struct dpt_block block;
    struct dpt_tokens tokens[DPT_SPLIT_COUNT];
    int64_t documents[DPT_SPLIT_COUNT];
    int64_t replaced;
    enum dpt_status status; /* of encoding it */
    struct dpt_err err;
};

struct dpt_job_pool;

/* Borrows all but `threads` until destroyed. */
struct dpt_job_pool_options {
    const struct dpt_vocab *vocab;
    const struct dpt_cutter *cutter; /* for dpt_cutter_split */
    const char *text_key;
    int threads;
};
DPT_MUST_USE enum dpt_status dpt_job_pool_create(const struct dpt_job_pool_options *options,
                                                 struct dpt_job_pool **ret, struct dpt_err *err);
/* Waits for the threads; jobs not yet taken are dropped. */
void dpt_job_pool_destroy(struct dpt_job_pool **pool);

/* An empty job to read into; NULL while all are on their way. */
struct dpt_job *dpt_job_pool_empty(struct dpt_job_pool *pool);
/* Hands the job that dpt_job_pool_empty gave to the threads. */
void dpt_job_pool_submit(struct dpt_job_pool *pool);

/* Waits for the oldest job to be encoded; NULL when there is none on its way. */
struct dpt_job *dpt_job_pool_oldest(struct dpt_job_pool *pool);
/* The oldest is written: it may be used again. */
void dpt_job_pool_release(struct dpt_job_pool *pool);

#endif
