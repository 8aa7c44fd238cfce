/* The ring of jobs. In order: jobs that are encoded or that a thread encodes, jobs that wait for a
 * thread, empty jobs.
 *
 *      oldest            to take           to fill
 *      ┌───────┬─────────┬───────┬────────┬───────┐
 *      │ done  │ encoding│ waits │ waits  │ empty │
 *      └───────┴─────────┴───────┴────────┴───────┘
 */
#include "worker/data/prepare/job_pool.h"

#include "worker/data/prepare/encode.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

struct slot {
    struct dpt_job job;
    bool done;
};

struct dpt_job_pool {
    struct dpt_job_options options;
    struct slot *slots; /* (n_slots) */
    int n_slots;
    pthread_t threads[DPT_ENCODE_THREADS_MAX];
    int n_threads;
    pthread_mutex_t mutex;
    pthread_cond_t wake_threads, wake_owner;
    /* Numbers of jobs since the start, under the mutex: released <= taken <= submitted. */
    int64_t released, taken, submitted;
    bool stop;
};

static struct slot *slot_of(struct dpt_job_pool *pool, int64_t job)
{
    return &pool->slots[job % pool->n_slots];
}

static void *encode_jobs(void *ctx)
{
    struct dpt_job_pool *pool = ctx;
    struct dpt_encoder *encoder = NULL;
    (void)pthread_mutex_lock(&pool->mutex);
    while (!pool->stop) {
        if (pool->taken == pool->submitted) {
            (void)pthread_cond_wait(&pool->wake_threads, &pool->mutex);
            continue;
        }
        struct slot *slot = slot_of(pool, pool->taken++);
        (void)pthread_mutex_unlock(&pool->mutex);
        dpt_job_encode(&pool->options, &encoder, &slot->job);
        (void)pthread_mutex_lock(&pool->mutex);
        slot->done = true;
        (void)pthread_cond_signal(&pool->wake_owner);
    }
    (void)pthread_mutex_unlock(&pool->mutex);
    dpt_encoder_destroy(&encoder);
    return NULL;
}

/* Starts the threads with all signals blocked, so that the main thread gets them. */
static enum dpt_status start_threads(struct dpt_job_pool *pool, int n, struct dpt_err *err)
{
    sigset_t all, before;
    (void)sigfillset(&all);
    int failed = pthread_sigmask(SIG_SETMASK, &all, &before);
    for (; !failed && pool->n_threads < n; pool->n_threads++) {
        failed = pthread_create(&pool->threads[pool->n_threads], NULL, encode_jobs, pool);
        if (failed)
            break;
    }
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed ? dpt_fail_errno(err, failed, "encode: start thread %d", pool->n_threads + 1)
                  : DPT_OK;
}

enum dpt_status dpt_job_pool_create(const struct dpt_job_options *options, int threads,
                                    struct dpt_job_pool **ret, struct dpt_err *err)
{
    DPT_ASSERT(threads >= 1 && threads <= DPT_ENCODE_THREADS_MAX);
    struct dpt_job_pool *pool = calloc(1, sizeof *pool);
    const int n_slots = 2 * threads + 2;
    struct slot *slots = calloc((size_t)n_slots, sizeof *slots);
    if (!pool || !slots) {
        free(pool);
        free(slots);
        return dpt_fail_nomem(err, "encode");
    }
    pool->options = *options;
    pool->slots = slots;
    pool->n_slots = n_slots;
    (void)pthread_mutex_init(&pool->mutex, NULL);
    (void)pthread_cond_init(&pool->wake_threads, NULL);
    (void)pthread_cond_init(&pool->wake_owner, NULL);
    enum dpt_status status = start_threads(pool, threads, err);
    if (status != DPT_OK)
        dpt_job_pool_destroy(&pool);
    else
        *ret = pool;
    return status;
}

void dpt_job_pool_destroy(struct dpt_job_pool **pool_p)
{
    struct dpt_job_pool *pool = *pool_p;
    if (!pool)
        return;
    (void)pthread_mutex_lock(&pool->mutex);
    pool->stop = true;
    (void)pthread_cond_broadcast(&pool->wake_threads);
    (void)pthread_mutex_unlock(&pool->mutex);
    for (int i = 0; i < pool->n_threads; i++)
        (void)pthread_join(pool->threads[i], NULL);
    (void)pthread_cond_destroy(&pool->wake_owner);
    (void)pthread_cond_destroy(&pool->wake_threads);
    (void)pthread_mutex_destroy(&pool->mutex);
    for (int i = 0; i < pool->n_slots; i++) {
        free(pool->slots[i].job.block.text);
        for (int s = 0; s < DPT_SPLIT_COUNT; s++)
            dpt_tokens_fini(&pool->slots[i].job.tokens[s]);
    }
    free(pool->slots);
    free(pool);
    *pool_p = NULL;
}

struct dpt_job *dpt_job_pool_empty(struct dpt_job_pool *pool)
{
    /* Only the calling thread, the pool's owner, changes the two counts. */
    return pool->submitted - pool->released < pool->n_slots ? &slot_of(pool, pool->submitted)->job
                                                            : NULL;
}

void dpt_job_pool_submit(struct dpt_job_pool *pool)
{
    (void)pthread_mutex_lock(&pool->mutex);
    slot_of(pool, pool->submitted)->done = false;
    pool->submitted++;
    (void)pthread_cond_signal(&pool->wake_threads);
    (void)pthread_mutex_unlock(&pool->mutex);
}

struct dpt_job *dpt_job_pool_oldest(struct dpt_job_pool *pool)
{
    struct slot *slot = slot_of(pool, pool->released);
    (void)pthread_mutex_lock(&pool->mutex);
    const bool any = pool->released < pool->submitted;
    while (any && !slot->done)
        (void)pthread_cond_wait(&pool->wake_owner, &pool->mutex);
    (void)pthread_mutex_unlock(&pool->mutex);
    return any ? &slot->job : NULL;
}

void dpt_job_pool_release(struct dpt_job_pool *pool)
{
    (void)pthread_mutex_lock(&pool->mutex);
    pool->released++;
    (void)pthread_mutex_unlock(&pool->mutex);
}
