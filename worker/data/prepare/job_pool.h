/* The threads that encode blocks, and the ring that keeps the blocks in order. */
#ifndef DPT_WORKER_DATA_PREPARE_JOB_POOL_H
#define DPT_WORKER_DATA_PREPARE_JOB_POOL_H

#include "worker/data/prepare/job.h"

struct dpt_job_pool;

/* `threads`: 1 … DPT_ENCODE_THREADS_MAX. */
DPT_MUST_USE enum dpt_status dpt_job_pool_create(const struct dpt_job_options *options, int threads,
                                                 struct dpt_job_pool **ret, struct dpt_err *err);
/* Waits for the threads. Drops jobs that wait for a thread. */
void dpt_job_pool_destroy(struct dpt_job_pool **pool);

/* An empty job to read a block into; NULL: no job is empty. */
struct dpt_job *dpt_job_pool_empty(struct dpt_job_pool *pool);
/* Gives the job of dpt_job_pool_empty to the threads. */
void dpt_job_pool_submit(struct dpt_job_pool *pool);

/* Waits until the oldest submitted job is encoded; NULL: no job is submitted. */
struct dpt_job *dpt_job_pool_oldest(struct dpt_job_pool *pool);
/* Empties the oldest job after it was written. */
void dpt_job_pool_release(struct dpt_job_pool *pool);

#endif
