/* The thread that owns a rank's communicator: a job slot under one mutex. */
#include "worker/strategy/transport/comm_thread.h"

#include "base/clock.h"
#include "worker/comm/nccl_comm.h"
#include "worker/trace/present_work.h"
#include "worker/trace/recorder.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define DEAD_PEER_NS (100LL * 1000 * 1000)

struct dpt_comm_thread {
    pthread_t thread;
    struct dpt_trace_recorder *recorder; /* borrowed; NULL: nothing is traced */
    struct dpt_present_work *activity;   /* borrowed; NULL: nothing is noted */
    struct dpt_comm_listener *listener;
    int abort_fd; /* eventfd, readable from an abort until the next arm; ends creation */

    /* A GPU, or NULL; and NCCL, if it sends the gradients. Only this thread uses NCCL's
     * communicator. */
    struct dpt_device *device;
    dpt_comm_load_nccl load_nccl;
    void *load_ctx;
    int nccl_timeout_ms;
    struct dpt_nccl_split_of places[DPT_NCCL_SPLITS_MAX];
    int n_places;
    struct dpt_nccl_comm *nccl;

    pthread_mutex_t mutex;
    pthread_cond_t cond;
    /* Under the mutex. */
    dpt_comm_job job; /* posted, not yet taken */
    void *ctx;
    bool pending; /* posted and not yet waited for */
    bool done;
    bool awaited; /* the main thread waits, so the job may use its core */
    bool stop;
    bool aborted; /* since the last arm */
    struct dpt_comm *comm;
    enum dpt_status status;
    struct dpt_err err;
    int suspect;

    atomic_bool failed; /* the pending job ended with an error */

    /* Bytes that `comm` and `nccl` had sent after the last job; bytes sent while opening do not
     * count. Only the communication thread uses these two. */
    uint64_t bytes_of_last;
    uint64_t nccl_bytes_of_last;
    struct dpt_comm_account account;
};

/* Called by the communication thread, which holds the mutex. */
static void count_bytes(struct dpt_comm_thread *t)
{
    const uint64_t bytes = t->comm ? dpt_comm_bytes_sent(t->comm) : 0;
    t->account.bytes_sent += t->comm ? bytes - t->bytes_of_last : 0;
    t->bytes_of_last = bytes;
    const uint64_t nccl_bytes = t->nccl ? dpt_nccl_comm_bytes_sent(t->nccl) : 0;
    t->account.bytes_sent += nccl_bytes - t->nccl_bytes_of_last;
    t->nccl_bytes_of_last = nccl_bytes;
}

/* NCCL says that a peer is gone, but not which. The control's connection to a process that died
 * ends within milliseconds, and then the control names the rank. Without this second sign the
 * server would wait for the lease of a dead node. An abort ends the wait. */
static void find_dead_peer(struct dpt_comm_thread *t)
{
    const int64_t end_ns = dpt_now_ns() + DEAD_PEER_NS;
    struct dpt_err err;
    for (int64_t left_ns = DEAD_PEER_NS; left_ns > 0 && dpt_comm_suspect(t->comm) < 0;
         left_ns = end_ns - dpt_now_ns())
        if (dpt_comm_poll_woken(t->comm, left_ns, &err) != DPT_INPROGRESS)
            return;
}

/* Waits for a job, or for the end. Where ranks relay, it relays meanwhile, until an abort or a
 * failure, which the next job finds. The caller holds the mutex. */
static void await_job(struct dpt_comm_thread *t)
{
    bool relays = true;
    while (!t->job && !t->stop) {
        struct dpt_comm *comm = t->comm; /* only this thread destroys it */
        if (!relays || !comm || !dpt_comm_relays(comm)) {
            (void)pthread_cond_wait(&t->cond, &t->mutex);
            continue;
        }
        (void)pthread_mutex_unlock(&t->mutex);
        relays = dpt_comm_relay(comm) == DPT_INPROGRESS;
        (void)pthread_mutex_lock(&t->mutex);
    }
}

static void *comm_thread_main(void *arg)
{
    struct dpt_comm_thread *t = arg;
    dpt_trace_attach(t->recorder, DPT_TRACE_COMM);
    dpt_present_work_attach(t->activity, DPT_PRESENT_WORK_COMM);
    (void)pthread_mutex_lock(&t->mutex);
    for (;;) {
        await_job(t);
        if (!t->job)
            break;
        dpt_comm_job job = t->job;
        void *ctx = t->ctx;
        t->job = NULL;
        (void)pthread_mutex_unlock(&t->mutex);

        struct dpt_err err = {.status = DPT_OK};
        enum dpt_status status = job(t, ctx, &err);
        dpt_present_work_note(DPT_WORK_NONE, -1, -1);
        /* Ends NCCL at once: a kernel that waits for a dead peer may block other work of the
         * device, and nothing waits any more for the operations under way. */
        if (status != DPT_OK && t->nccl)
            dpt_nccl_comm_quit(t->nccl);
        if (status == DPT_EPEER && t->nccl && t->comm)
            find_dead_peer(t);

        (void)pthread_mutex_lock(&t->mutex);
        t->status = status;
        t->err = err;
        if (status != DPT_OK && t->comm)
            t->suspect = dpt_comm_suspect(t->comm);
        atomic_store(&t->failed, status != DPT_OK);
        count_bytes(t);
        t->done = true;
        (void)pthread_cond_broadcast(&t->cond);
    }
    (void)pthread_mutex_unlock(&t->mutex);
    dpt_nccl_comm_destroy(&t->nccl);
    return NULL;
}

enum dpt_status dpt_comm_thread_create(struct dpt_comm_listener *listener,
                                       struct dpt_comm_thread **ret, struct dpt_err *err)
{
    struct dpt_comm_thread *t = calloc(1, sizeof *t);
    if (!t)
        return dpt_fail_nomem(err, "communication thread");
    t->listener = listener;
    t->recorder = dpt_trace_recorder_here();
    t->activity = dpt_present_work_here();
    t->suspect = -1;
    t->abort_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (t->abort_fd < 0) {
        int saved = errno;
        free(t);
        return dpt_fail_errno(err, saved, "communication thread: eventfd");
    }
    (void)pthread_mutex_init(&t->mutex, NULL);
    (void)pthread_cond_init(&t->cond, NULL);
    int rc = pthread_create(&t->thread, NULL, comm_thread_main, t);
    if (rc != 0) {
        (void)pthread_cond_destroy(&t->cond);
        (void)pthread_mutex_destroy(&t->mutex);
        (void)close(t->abort_fd);
        free(t);
        return dpt_fail_errno(err, rc, "start the communication thread");
    }
    *ret = t;
    return DPT_OK;
}

void dpt_comm_thread_set_device(struct dpt_comm_thread *t, dpt_comm_load_nccl load, void *ctx,
                                struct dpt_device *device, int timeout_ms)
{
    t->load_nccl = load;
    t->load_ctx = ctx;
    t->device = device;
    t->nccl_timeout_ms = timeout_ms;
}

void dpt_comm_thread_set_groups(struct dpt_comm_thread *t, const struct dpt_nccl_split_of *places,
                                int n)
{
    DPT_ASSERT(!t->comm && n <= DPT_NCCL_SPLITS_MAX);
    memcpy(t->places, places, (size_t)n * sizeof *places);
    t->n_places = n;
}

static enum dpt_status job_close(struct dpt_comm_thread *t, void *ctx, struct dpt_err *err)
{
    (void)ctx;
    /* This rank has used everything that it received. But a peer may still read data that this rank
     * sent, and would take a close for a failure. An abort, or the peer's death, ends the wait. */
    enum dpt_status status = DPT_OK;
    if (t->comm)
        do
            status = dpt_comm_poll(t->comm, NULL, -1, err);
        while (status == DPT_INPROGRESS);
    (void)pthread_mutex_lock(&t->mutex);
    count_bytes(t); /* the closing messages of both communicators belong to no step */
    (void)pthread_mutex_unlock(&t->mutex);
    if (t->nccl && status != DPT_OK)
        dpt_nccl_comm_quit(t->nccl);
    else if (t->nccl)
        dpt_nccl_comm_close(t->nccl);
    (void)pthread_mutex_lock(&t->mutex);
    struct dpt_comm *comm = t->comm;
    t->comm = NULL;
    (void)pthread_mutex_unlock(&t->mutex);
    dpt_comm_destroy(&comm);
    return DPT_OK;
}

void dpt_comm_thread_close(struct dpt_comm_thread *t)
{
    struct dpt_err ignored;
    if (t->pending)
        dpt_comm_thread_abort(t);
    /* The job's error is ignored here: this abort caused it, or dpt_comm_thread_wait or _check has
     * reported it. */
    if (t->pending && dpt_comm_thread_wait(t, &ignored) == DPT_OK)
        DPT_ASSERT(!t->pending);
    DPT_ASSERT(dpt_comm_thread_run(t, job_close, NULL, &ignored) == DPT_OK);
}

void dpt_comm_thread_destroy(struct dpt_comm_thread **thread)
{
    struct dpt_comm_thread *t = *thread;
    if (!t)
        return;
    dpt_comm_thread_abort(t);
    dpt_comm_thread_close(t);
    (void)pthread_mutex_lock(&t->mutex);
    t->stop = true;
    (void)pthread_cond_broadcast(&t->cond);
    (void)pthread_mutex_unlock(&t->mutex);
    (void)pthread_join(t->thread, NULL);
    (void)pthread_mutex_destroy(&t->mutex);
    (void)pthread_cond_destroy(&t->cond);
    (void)close(t->abort_fd);
    free(t);
    *thread = NULL;
}

/* Checks that all ranks send gradients in the same way: opening NCCL's communicator waits for all
 * ranks. */
static enum dpt_status agree_on_nccl(struct dpt_comm_thread *t, struct dpt_err *err)
{
    static const char *const ways[] = {"through the hosts", "by NCCL"};
    uint8_t all[DPT_COMM_WORLD_MAX];
    const uint8_t mine = t->load_nccl != NULL;
    DPT_TRY(dpt_comm_small_all_gather(t->comm, &mine, sizeof mine, all, err));
    for (int rank = 0; rank < dpt_comm_world_size(t->comm); rank++)
        if ((all[rank] != 0) != mine)
            return dpt_fail(err, DPT_ECONFIG,
                            "rank %d sends gradients %s, rank %d %s: give all nodes the same "
                            "cluster.device and strategy.offload, or, where the strategy takes it, "
                            "write cluster.backend host",
                            dpt_comm_rank(t->comm), ways[mine], rank, ways[!mine]);
    return DPT_OK;
}

static enum dpt_status create_nccl(struct dpt_comm_thread *t, struct dpt_err *err)
{
    const struct dpt_nccl_calls *calls = NULL;
    void *ctx = NULL;
    DPT_TRY(dpt_device_enter(t->device, err));
    DPT_TRY(t->load_nccl(t->load_ctx, &calls, &ctx, err));
    return dpt_nccl_comm_create(calls, ctx, t->nccl_timeout_ms, &t->nccl, err);
}

static enum dpt_status open_nccl(struct dpt_comm_thread *t, const struct dpt_comm_spec *spec,
                                 struct dpt_err *err)
{
    struct dpt_nccl_comm_spec nccl = {.control = t->comm, .generation = spec->generation};
    memcpy(nccl.nonce, spec->nonce, sizeof nccl.nonce);
    nccl.n_splits = t->n_places;
    memcpy(nccl.splits, t->places, sizeof nccl.splits);
    DPT_TRY(agree_on_nccl(t, err));
    if (!t->load_nccl)
        return DPT_OK;
    if (!t->nccl)
        DPT_TRY(create_nccl(t, err));
    return dpt_nccl_comm_open(t->nccl, &nccl, err);
}

static enum dpt_status job_open(struct dpt_comm_thread *t, void *ctx, struct dpt_err *err)
{
    struct dpt_comm *comm = NULL;
    int suspect = -1;
    enum dpt_status status = dpt_comm_create(t->listener, ctx, t->abort_fd, &comm, &suspect, err);
    (void)pthread_mutex_lock(&t->mutex);
    t->comm = comm;
    t->suspect = suspect;
    if (comm)
        dpt_comm_allow_spin(comm, t->awaited);
    if (comm && t->aborted) /* the abort came after creation had last looked at abort_fd */
        dpt_comm_abort(comm);
    (void)pthread_mutex_unlock(&t->mutex);
    if (status == DPT_OK)
        status = open_nccl(t, ctx, err);
    t->bytes_of_last = comm ? dpt_comm_bytes_sent(comm) : 0;
    return status;
}

void dpt_comm_thread_arm(struct dpt_comm_thread *t)
{
    (void)pthread_mutex_lock(&t->mutex);
    DPT_ASSERT(!t->comm && !t->pending);
    t->aborted = false;
    t->suspect = -1;
    uint64_t count;
    /* Drains the eventfd; EAGAIN when no abort was pending. */
    if (read(t->abort_fd, &count, sizeof count) < 0)
        DPT_ASSERT(errno == EAGAIN);
    (void)pthread_mutex_unlock(&t->mutex);
}

enum dpt_status dpt_comm_thread_open(struct dpt_comm_thread *t, const struct dpt_comm_spec *spec,
                                     struct dpt_err *err)
{
    if (spec->world_size == 1)
        return DPT_OK;
    return dpt_comm_thread_run(t, job_open, (void *)(uintptr_t)spec, err);
}

void dpt_comm_thread_post(struct dpt_comm_thread *t, dpt_comm_job job, void *ctx)
{
    (void)pthread_mutex_lock(&t->mutex);
    DPT_ASSERT(!t->pending);
    t->job = job;
    t->ctx = ctx;
    t->pending = true;
    t->done = false;
    atomic_store(&t->failed, false);
    (void)pthread_cond_broadcast(&t->cond);
    if (t->comm && dpt_comm_relays(t->comm))
        dpt_comm_wake(t->comm);
    (void)pthread_mutex_unlock(&t->mutex);
}

enum dpt_status dpt_comm_thread_wait(struct dpt_comm_thread *t, struct dpt_err *err)
{
    (void)pthread_mutex_lock(&t->mutex);
    DPT_ASSERT(t->pending);
    t->awaited = true;
    if (t->comm)
        dpt_comm_allow_spin(t->comm, true);
    const int64_t from = dpt_now_ns(), began_ns = dpt_trace_begin();
    while (!t->done)
        (void)pthread_cond_wait(&t->cond, &t->mutex);
    t->account.waited_ns += dpt_now_ns() - from;
    t->pending = t->awaited = false;
    if (t->comm)
        dpt_comm_allow_spin(t->comm, false);
    enum dpt_status status = t->status;
    if (status != DPT_OK && err)
        *err = t->err;
    (void)pthread_mutex_unlock(&t->mutex);
    dpt_trace_end_named(began_ns, "wait for communication");
    return status;
}

enum dpt_status dpt_comm_thread_run(struct dpt_comm_thread *t, dpt_comm_job job, void *ctx,
                                    struct dpt_err *err)
{
    dpt_comm_thread_post(t, job, ctx);
    return dpt_comm_thread_wait(t, err);
}

void dpt_comm_thread_add_wait(struct dpt_comm_thread *t, int64_t ns)
{
    (void)pthread_mutex_lock(&t->mutex);
    t->account.waited_ns += ns;
    (void)pthread_mutex_unlock(&t->mutex);
}

void dpt_comm_thread_account(struct dpt_comm_thread *t, struct dpt_comm_account *ret)
{
    (void)pthread_mutex_lock(&t->mutex);
    *ret = t->account;
    (void)pthread_mutex_unlock(&t->mutex);
}

enum dpt_status dpt_comm_thread_check(struct dpt_comm_thread *t, struct dpt_err *err)
{
    if (!atomic_load(&t->failed))
        return DPT_OK;
    (void)pthread_mutex_lock(&t->mutex);
    const enum dpt_status status = t->status;
    *err = t->err;
    (void)pthread_mutex_unlock(&t->mutex);
    return status;
}

void dpt_comm_thread_abort(struct dpt_comm_thread *t)
{
    (void)pthread_mutex_lock(&t->mutex);
    if (!t->aborted) {
        t->aborted = true;
        uint64_t one = 1;
        DPT_ASSERT(write(t->abort_fd, &one, sizeof one) == (ssize_t)sizeof one);
        if (t->comm)
            dpt_comm_abort(t->comm);
    }
    (void)pthread_mutex_unlock(&t->mutex);
}

void dpt_comm_thread_wake(struct dpt_comm_thread *t)
{
    (void)pthread_mutex_lock(&t->mutex);
    if (t->comm)
        dpt_comm_wake(t->comm);
    (void)pthread_mutex_unlock(&t->mutex);
}

struct dpt_comm *dpt_comm_thread_comm(struct dpt_comm_thread *t)
{
    /* Only jobs change and read it, so no lock is needed: jobs run on one thread. */
    return t->comm;
}

struct dpt_nccl_comm *dpt_comm_thread_nccl(struct dpt_comm_thread *t)
{
    return t->nccl;
}

int dpt_comm_thread_suspect(const struct dpt_comm_thread *t)
{
    return t->suspect;
}
