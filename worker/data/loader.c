/* The loader: one thread that reads this rank's micro-batches ahead into a ring.
 *
 * The ring's buffers in order: at most one that the consumer holds, ready ones, the one that the
 * reader fills, free ones.
 *
 *        held    ready     ready    filling   free
 *      ┌───────┬─────────┬─────────┬─────────┬──────┐
 *      │ head  │ head+1  │   …     │         │      │
 *      └───────┴─────────┴─────────┴─────────┴──────┘
 *
 * The reader fills its buffer without the lock. A restart in that time changes `serial`, and the
 * reader drops the micro-batch that it has read for the earlier start. */
#include "worker/data/data.h"

#include "worker/plan/sampler.h"
#include "worker/trace/recorder.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* A slot of a step. */
struct position {
    int64_t step;
    int slot;
};

struct buffer {
    struct position at;
    struct dpt_batch batch;
};

struct dpt_loader {
    const struct dpt_data *data; /* borrowed */
    uint64_t seed;
    int64_t global_batch, epoch_steps;
    int slots, micro_batch;
    void *memory;
    struct dpt_trace_recorder *recorder; /* borrowed; NULL: nothing is traced */

    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t wake_reader, wake_consumer;
    /* Under the mutex from here on. */
    struct buffer ring[DPT_BATCHES_AHEAD];
    int head, n_held, n_ready;
    int first_slot, end_slot, stride; /* first_slot >= end_slot: idle */
    struct position next;             /* to be read next */
    uint64_t serial;                  /* grows with each start */
    bool stop, failed;
    /* The reader's error if `failed`. Micro-batches that are ready stay valid. */
    struct dpt_err error;
};

static bool has_room(const struct dpt_loader *loader)
{
    return loader->n_held + loader->n_ready < DPT_BATCHES_AHEAD;
}

static enum dpt_status read_batch(const struct dpt_loader *loader, struct buffer *buffer,
                                  struct dpt_err *err)
{
    const int64_t samples = dpt_data_samples(loader->data);
    const int64_t in_step = (int64_t)buffer->at.slot * loader->micro_batch;
    const int64_t first = dpt_sampler_number(samples, loader->epoch_steps, loader->global_batch,
                                             buffer->at.step, in_step);
    for (int j = 0; j < loader->micro_batch; j++) {
        const int64_t index = dpt_sampler_index(loader->seed, samples, first + j);
        DPT_TRY(dpt_data_read(loader->data, index, first + j, &buffer->batch, j, err));
    }
    dpt_batch_close(dpt_data_form(loader->data), &buffer->batch, loader->micro_batch);
    return DPT_OK;
}

/* Makes the buffer ready that was read for start `serial`. Drops it if there was another start
 * since. */
static void finish_read(struct dpt_loader *loader, uint64_t serial, enum dpt_status status,
                        const struct dpt_err *err)
{
    if (serial != loader->serial)
        return;
    if (status != DPT_OK) {
        loader->failed = true;
        loader->error = *err;
    } else {
        loader->n_ready++;
        loader->next.slot += loader->stride;
        if (loader->next.slot >= loader->end_slot) {
            loader->next.slot = loader->first_slot;
            loader->next.step++;
        }
    }
    (void)pthread_cond_signal(&loader->wake_consumer);
}

static void *read_ahead(void *ctx)
{
    struct dpt_loader *loader = ctx;
    struct dpt_err err;
    dpt_trace_attach(loader->recorder, DPT_TRACE_DATA);
    (void)pthread_mutex_lock(&loader->mutex);
    while (!loader->stop) {
        if (loader->first_slot >= loader->end_slot || loader->failed || !has_room(loader)) {
            (void)pthread_cond_wait(&loader->wake_reader, &loader->mutex);
            continue;
        }
        const uint64_t serial = loader->serial;
        struct buffer *buffer =
            &loader->ring[(loader->head + loader->n_held + loader->n_ready) % DPT_BATCHES_AHEAD];
        buffer->at = loader->next;
        (void)pthread_mutex_unlock(&loader->mutex);
        const int64_t began_ns = dpt_trace_begin();
        enum dpt_status status = read_batch(loader, buffer, &err);
        dpt_trace_end(began_ns,
                      &(struct dpt_trace_span){.name = "read micro-batch",
                                               .key = {"step", "slot"},
                                               .value = {buffer->at.step + 1, buffer->at.slot}});
        (void)pthread_mutex_lock(&loader->mutex);
        finish_read(loader, serial, status, &err);
    }
    (void)pthread_mutex_unlock(&loader->mutex);
    return NULL;
}

/* Starts the thread with all signals blocked, so that the main thread gets them. */
static int start_thread(struct dpt_loader *loader)
{
    sigset_t all, before;
    (void)sigfillset(&all);
    int failed = pthread_sigmask(SIG_SETMASK, &all, &before);
    if (failed)
        return failed;
    failed = pthread_create(&loader->thread, NULL, read_ahead, loader);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed;
}

enum dpt_status dpt_loader_create(const struct dpt_config *config, const struct dpt_data *data,
                                  struct dpt_loader **ret, struct dpt_err *err)
{
    const int64_t epoch_steps = config->train.epoch_steps;
    if (epoch_steps > 0 && epoch_steps > dpt_data_samples(data) / config->train.global_batch)
        return dpt_fail(err, DPT_ECONFIG,
                        "data.train has %lld samples, not the %lld steps of %d that an epoch has "
                        "by the config",
                        (long long)dpt_data_samples(data), (long long)epoch_steps,
                        config->train.global_batch);
    const struct dpt_sample_form *form = dpt_data_form(data);
    const size_t bytes = dpt_batch_bytes(form, config->train.micro_batch);
    struct dpt_loader *loader = calloc(1, sizeof *loader);
    void *memory = aligned_alloc(DPT_BATCH_ALIGN, bytes * DPT_BATCHES_AHEAD);
    if (!loader || !memory) {
        free(loader);
        free(memory);
        return dpt_fail_nomem(err, "loader: %d micro-batches of %zu bytes", DPT_BATCHES_AHEAD,
                              bytes);
    }
    /* Writes every page now, so that no step waits for the kernel to find memory. */
    memset(memory, 0, bytes * DPT_BATCHES_AHEAD);
    loader->data = data;
    loader->seed = config->seed;
    loader->slots = dpt_config_slots(config);
    loader->global_batch = config->train.global_batch;
    loader->epoch_steps = epoch_steps;
    loader->micro_batch = config->train.micro_batch;
    loader->memory = memory;
    loader->recorder = dpt_trace_recorder_here();
    for (size_t i = 0; i < DPT_BATCHES_AHEAD; i++)
        loader->ring[i].batch =
            dpt_batch_at(form, config->train.micro_batch, (char *)memory + i * bytes);
    (void)pthread_mutex_init(&loader->mutex, NULL);
    (void)pthread_cond_init(&loader->wake_reader, NULL);
    (void)pthread_cond_init(&loader->wake_consumer, NULL);
    int failed = start_thread(loader);
    if (failed) {
        free(memory);
        free(loader);
        return dpt_fail_errno(err, failed, "loader: start its thread");
    }
    *ret = loader;
    return DPT_OK;
}

void dpt_loader_destroy(struct dpt_loader **loader)
{
    struct dpt_loader *l = *loader;
    if (!l)
        return;
    (void)pthread_mutex_lock(&l->mutex);
    l->stop = true;
    (void)pthread_cond_signal(&l->wake_reader);
    (void)pthread_mutex_unlock(&l->mutex);
    (void)pthread_join(l->thread, NULL);
    (void)pthread_cond_destroy(&l->wake_consumer);
    (void)pthread_cond_destroy(&l->wake_reader);
    (void)pthread_mutex_destroy(&l->mutex);
    free(l->memory);
    free(l);
    *loader = NULL;
}

size_t dpt_loader_bytes(const struct dpt_loader *loader)
{
    return dpt_batch_bytes(dpt_data_form(loader->data), loader->micro_batch) * DPT_BATCHES_AHEAD;
}

void dpt_loader_start(struct dpt_loader *loader, int64_t step, int first_slot, int end_slot,
                      int stride)
{
    DPT_ASSERT(step >= 0 && first_slot >= 0 && end_slot <= loader->slots && stride >= 1);
    (void)pthread_mutex_lock(&loader->mutex);
    loader->serial++;
    loader->n_ready = 0;
    loader->failed = false;
    loader->first_slot = first_slot;
    loader->end_slot = end_slot;
    loader->stride = stride;
    loader->next = (struct position){.step = step, .slot = first_slot};
    (void)pthread_cond_signal(&loader->wake_reader);
    (void)pthread_mutex_unlock(&loader->mutex);
}

enum dpt_status dpt_loader_next(struct dpt_loader *loader, int64_t step, int slot,
                                struct dpt_batch *ret, struct dpt_err *err)
{
    enum dpt_status status = DPT_OK;
    (void)pthread_mutex_lock(&loader->mutex);
    const bool idle = loader->first_slot >= loader->end_slot;
    loader->head = (loader->head + loader->n_held) % DPT_BATCHES_AHEAD;
    loader->n_held = 0;
    (void)pthread_cond_signal(&loader->wake_reader);
    while (!idle && loader->n_ready == 0 && !loader->failed)
        (void)pthread_cond_wait(&loader->wake_consumer, &loader->mutex);
    const struct buffer *next = &loader->ring[loader->head];
    if (idle) {
        status = dpt_fail(err, DPT_EINVAL, "the loader idles: it was started with no slots");
    } else if (loader->n_ready == 0) {
        status = dpt_pass(err, &loader->error);
    } else if (next->at.step != step || next->at.slot != slot) {
        status = dpt_fail(err, DPT_EINVAL,
                          "the loader stands at step %lld slot %d, not at step %lld slot %d",
                          (long long)next->at.step, next->at.slot, (long long)step, slot);
    } else {
        *ret = next->batch;
        loader->n_ready--;
        loader->n_held = 1;
    }
    (void)pthread_mutex_unlock(&loader->mutex);
    return status;
}
