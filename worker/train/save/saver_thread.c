/* The checkpoint writer's thread. */
#include "worker/train/save/saver_thread.h"

#include "base/claim.h"
#include "base/clock.h"
#include "base/log.h"
#include "worker/trace/recorder.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

struct dpt_saver {
    struct dpt_saver_options options;
    struct dpt_trace_recorder *recorder; /* borrowed; NULL: nothing is traced */
    pthread_t thread;
    atomic_bool cancel;
    /* DPT_EREFUSED: in this attempt another run was found to have the folder. Only the saver's
     * thread uses it while an attempt runs. */
    struct dpt_err lost;

    pthread_mutex_t mutex;
    pthread_cond_t cond;
    /* The mutex guards the following. */
    struct dpt_checkpoint_spec spec;
    bool begun, busy, written, stop;
    enum dpt_status status;
    struct dpt_err err;
    struct dpt_saved saved;
};

static bool save_cancelled(void *ctx)
{
    struct dpt_saver *s = ctx;
    return atomic_load(&s->cancel) || dpt_link_interrupted(s->options.link, s->spec.generation);
}

static void set_written(void *ctx)
{
    struct dpt_saver *s = ctx;
    (void)pthread_mutex_lock(&s->mutex);
    s->written = true;
    (void)pthread_cond_broadcast(&s->cond);
    (void)pthread_mutex_unlock(&s->mutex);
}

/* Waits for the fence. It is asked before the first write and before the last one: a process that
 * was suspended in between has lost its generation's grant. */
static enum dpt_status await_fence(struct dpt_saver *s, struct dpt_err *err)
{
    if (dpt_link_await_write(s->options.link, save_cancelled, s))
        return DPT_OK;
    return dpt_fail(err, DPT_EABORTED, "this rank may have been replaced and writes no checkpoint");
}

/* If the claim cannot be read, the folder counts as owned: the rename would fail too. */
bool dpt_saver_owns_folder(const struct dpt_saver *s, const char *dir, struct dpt_err *err)
{
    return s->options.claim_number == 0 ||
           dpt_claim_check(dir, s->options.claim_number, s->options.claim_token, err) !=
               DPT_EREFUSED;
}

/* Whether the checkpoint may get its final name. Asked immediately before the rename, for three
 * reasons. The lease may have ended while parts were joined and the manifest was synced. A hard
 * PREPARE withdraws the grant. After a suspension longer than the claim's lease a new start of the
 * run may have taken the folder. */
static bool may_rename(void *ctx)
{
    struct dpt_saver *s = ctx;
    return dpt_link_await_write(s->options.link, save_cancelled, s) &&
           dpt_link_granted(s->options.link, s->spec.generation, s->spec.state.step) &&
           dpt_saver_owns_folder(s, s->spec.dir, &s->lost);
}

static void note_committed(struct dpt_saver *s)
{
    (void)pthread_mutex_lock(&s->mutex);
    s->saved.committed_step = s->spec.state.step;
    (void)pthread_mutex_unlock(&s->mutex);
    dpt_link_publish_saved(s->options.link, s->spec.state.step);
}

static enum dpt_status commit_checkpoint(struct dpt_saver *s, struct dpt_err *err)
{
    const struct dpt_checkpoint_spec *spec = &s->spec;
    DPT_TRY(dpt_checkpoint_collect(spec, s->options.collect_timeout_ms, err));
    dpt_link_publish_grant_wanted(s->options.link, spec->state.step);
    enum dpt_status status = dpt_link_await_grant(s->options.link, spec->generation,
                                                  spec->state.step, save_cancelled, s, err);
    if (status == DPT_OK)
        status = await_fence(s, err);
    if (status == DPT_OK)
        status = dpt_checkpoint_commit(spec, err);
    if (status == DPT_OK)
        note_committed(s);
    dpt_link_publish_grant_wanted(s->options.link, -1);
    return status;
}

static enum dpt_status attempt_save(struct dpt_saver *s, struct dpt_err *err)
{
    const struct dpt_checkpoint_spec *spec = &s->spec;
    int64_t start = dpt_now_ms();
    enum dpt_status status = await_fence(s, err);
    const int64_t write_ns = dpt_trace_begin();
    if (status == DPT_OK)
        status = dpt_checkpoint_write_part(spec, err);
    dpt_trace_end_named(write_ns, "write checkpoint");
    /* Set after a failure too: the weights are no longer read. */
    set_written(s);
    const int64_t commit_ns = dpt_trace_begin();
    if (status == DPT_OK && spec->writer == 0)
        status = commit_checkpoint(s, err);
    dpt_trace_end_named(commit_ns, "commit checkpoint");
    if (status == DPT_OK && spec->writer == 0)
        dpt_log(DPT_LOG_INFO, "checkpoint of step %lld is complete after %lld ms in '%s'",
                (long long)spec->state.step, (long long)(dpt_now_ms() - start), spec->dir);
    if (status != DPT_OK && spec->writer == 0)
        dpt_checkpoint_abandon(spec);
    if (status != DPT_OK && s->lost.status == DPT_EREFUSED)
        return dpt_fail(err, DPT_EREFUSED, "checkpoint of step %lld is given up: %s",
                        (long long)spec->state.step, s->lost.text);
    return status;
}

/* Reports the result to the server, for an operator who waits for the checkpoint. An attempt that
 * was given up is made again by the next generation. */
static void report_result(struct dpt_saver *s, enum dpt_status status, const char *why)
{
    const struct dpt_checkpoint_spec *spec = &s->spec;
    if (status == DPT_OK)
        dpt_link_publish_unsaved(s->options.link, 0, 0, "");
    else if (status != DPT_EABORTED)
        dpt_link_publish_unsaved(s->options.link, spec->generation, spec->state.step, why);
}

static void *saver_thread(void *arg)
{
    struct dpt_saver *s = arg;
    dpt_trace_attach(s->recorder, DPT_TRACE_SAVE);
    (void)pthread_mutex_lock(&s->mutex);
    for (;;) {
        while (!s->begun && !s->stop)
            (void)pthread_cond_wait(&s->cond, &s->mutex);
        if (!s->begun)
            break;
        s->begun = false;
        (void)pthread_mutex_unlock(&s->mutex);
        struct dpt_err err = {.status = DPT_OK};
        enum dpt_status status = attempt_save(s, &err);
        report_result(s, status, err.text);
        (void)pthread_mutex_lock(&s->mutex);
        s->status = status;
        s->err = err;
        s->busy = false;
        if (status == DPT_OK) {
            s->saved.generation = s->spec.generation;
            s->saved.step = s->spec.state.step;
            s->saved.n++;
        }
        (void)pthread_cond_broadcast(&s->cond);
    }
    (void)pthread_mutex_unlock(&s->mutex);
    return NULL;
}

enum dpt_status dpt_saver_create(const struct dpt_saver_options *options, struct dpt_saver **ret,
                                 struct dpt_err *err)
{
    struct dpt_saver *s = calloc(1, sizeof *s);
    if (!s)
        return dpt_fail_nomem(err, "checkpoint writer");
    s->options = *options;
    s->recorder = dpt_trace_recorder_here();
    s->saved.committed_step = -1;
    (void)pthread_mutex_init(&s->mutex, NULL);
    (void)pthread_cond_init(&s->cond, NULL);
    int rc = pthread_create(&s->thread, NULL, saver_thread, s);
    if (rc != 0) {
        free(s);
        return dpt_fail_errno(err, rc, "start the checkpoint writer");
    }
    *ret = s;
    return DPT_OK;
}

void dpt_saver_destroy(struct dpt_saver **saver)
{
    struct dpt_saver *s = *saver;
    if (!s)
        return;
    dpt_saver_cancel(s);
    (void)pthread_mutex_lock(&s->mutex);
    s->stop = true;
    (void)pthread_cond_broadcast(&s->cond);
    (void)pthread_mutex_unlock(&s->mutex);
    (void)pthread_join(s->thread, NULL);
    (void)pthread_mutex_destroy(&s->mutex);
    (void)pthread_cond_destroy(&s->cond);
    free(s);
    *saver = NULL;
}

void dpt_saver_begin(struct dpt_saver *s, const struct dpt_checkpoint_spec *spec)
{
    (void)pthread_mutex_lock(&s->mutex);
    DPT_ASSERT(!s->busy);
    atomic_store(&s->cancel, false);
    s->spec = *spec;
    s->spec.cancelled = save_cancelled;
    s->spec.taken = set_written;
    s->spec.may_rename = may_rename;
    s->spec.ctx = s;
    s->status = s->lost.status = DPT_OK;
    s->begun = s->busy = true;
    s->written = false;
    (void)pthread_cond_broadcast(&s->cond);
    (void)pthread_mutex_unlock(&s->mutex);
}

bool dpt_saver_busy(struct dpt_saver *s)
{
    (void)pthread_mutex_lock(&s->mutex);
    bool busy = s->busy;
    (void)pthread_mutex_unlock(&s->mutex);
    return busy;
}

void dpt_saver_wait_written(struct dpt_saver *s)
{
    (void)pthread_mutex_lock(&s->mutex);
    while (s->busy && !s->written)
        (void)pthread_cond_wait(&s->cond, &s->mutex);
    (void)pthread_mutex_unlock(&s->mutex);
}

enum dpt_status dpt_saver_wait(struct dpt_saver *s, struct dpt_err *err)
{
    (void)pthread_mutex_lock(&s->mutex);
    while (s->busy)
        (void)pthread_cond_wait(&s->cond, &s->mutex);
    enum dpt_status status = s->status;
    if (status != DPT_OK && err)
        *err = s->err;
    s->status = DPT_OK; /* the status is reported once */
    (void)pthread_mutex_unlock(&s->mutex);
    return status;
}

void dpt_saver_cancel(struct dpt_saver *s)
{
    atomic_store(&s->cancel, true);
}

struct dpt_saved dpt_saver_saved(struct dpt_saver *s)
{
    (void)pthread_mutex_lock(&s->mutex);
    const struct dpt_saved saved = s->saved;
    (void)pthread_mutex_unlock(&s->mutex);
    return saved;
}
