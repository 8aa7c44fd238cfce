/* The thread that talks to the agent. */
#include "worker/train/link/link.h"
#include "worker/train/link/stacks.h"

#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

enum { SLOTS = 3 };

struct dpt_link {
    struct dpt_link_options options;
    pthread_t thread;
    int wake_fd;                   /* eventfd: send the report now, or stop */
    uint8_t *frame_in, *frame_out; /* DPT_RANK_FRAME_BYTES_MAX each; for the link's thread */

    pthread_mutex_t mutex;
    pthread_cond_t cond; /* CLOCK_MONOTONIC; a frame was received, or the agent has ended */
    /* The mutex guards the following. */
    struct dpt_report report; /* the steps in it wait to be sent */
    /* Slot of the newest message that the main thread has not read; -1: none. */
    int newest;
    bool closed;
    uint64_t grant_generation;
    int64_t grant_step; /* -1: none */
    size_t n_sending;   /* number of the oldest waiting steps in the frame being sent */
    bool newest_passes; /* `passes` of the newest waiting step (dpt_link_tell_step) */

    /* Slot of the message that the main thread uses; -1: none. Only the main thread changes it,
     * under the mutex. */
    int current;

    /* Messages are decoded in place, so that receiving never allocates memory. The three slots hold
     * the main thread's message, the newest one, and the one being decoded. */
    struct {
        void *memory; /* DPT_MESSAGE_MEMORY_BYTES(DPT_RANK_FRAME_BYTES_MAX) */
        Dpt__AgentToRank *message;
    } slots[SLOTS];

    atomic_bool stop, gone, leaving;
    /* Highest generation of a hard PREPARE, or UINT64_MAX after EXIT and RESCUE; highest generation
     * of any PREPARE. */
    _Atomic uint64_t hard_generation, any_generation;
    _Atomic int64_t lease_until_ms, confirmed_ms, save_from;
};

static void wake_link_thread(struct dpt_link *link)
{
    uint64_t one = 1;
    /* EAGAIN: the counter is full, so the thread is awake already. */
    if (write(link->wake_fd, &one, sizeof one) < 0)
        DPT_ASSERT(errno == EAGAIN);
}

static void raise_to(_Atomic uint64_t *target, uint64_t value)
{
    uint64_t old = atomic_load(target);
    while (old < value && !atomic_compare_exchange_weak(target, &old, value)) {
    }
}

/* Drops the oldest `n` waiting steps. Called with the mutex held. */
static void drop_steps(struct dpt_link *link, size_t n)
{
    struct dpt_report *report = &link->report;
    size_t *n_steps = &report->message.n_steps;
    *n_steps -= n;
    link->n_sending -= n < link->n_sending ? n : link->n_sending;
    memmove(report->steps, report->steps + n, *n_steps * sizeof report->steps[0]);
}

/* Sends the report. A full queue drops the frame: the next heartbeat sends a newer report. False:
 * the agent has ended. */
static bool send_report(struct dpt_link *link)
{
    struct dpt_report *report = &link->report;
    struct dpt_err err;
    size_t bytes = 0;
    (void)pthread_mutex_lock(&link->mutex);
    report->state.soft_stop_seen = atomic_load(&link->any_generation) > report->state.generation;
    if (link->options.activity)
        dpt_report_set_activity(report, link->options.activity);
    enum dpt_status status = dpt_message_encode(&report->message.base, link->frame_out,
                                                DPT_RANK_FRAME_BYTES_MAX, &bytes, &err);
    link->n_sending = report->message.n_steps;
    (void)pthread_mutex_unlock(&link->mutex);
    /* Every part of a report is limited, so the report fits into a frame. */
    DPT_ASSERT(status == DPT_OK);
    status = dpt_rank_link_send(link->options.fd, link->frame_out, bytes, &err);
    (void)pthread_mutex_lock(&link->mutex);
    if (status == DPT_OK)
        drop_steps(link, link->n_sending);
    (void)pthread_mutex_unlock(&link->mutex);
    return status != DPT_EPEER;
}

void dpt_link_tell_step(struct dpt_link *link, const Dpt__StepRecord *record, bool passes)
{
    (void)pthread_mutex_lock(&link->mutex);
    Dpt__StepRecord *steps = link->report.steps;
    size_t *n = &link->report.message.n_steps;
    if (link->newest_passes && *n > link->n_sending)
        --*n; /* the new step replaces the newest waiting one */
    link->newest_passes = passes;
    while (*n > 0 && steps[*n - 1].step >= record->step)
        --*n; /* this step was lost and is computed again */
    if (link->n_sending > *n)
        link->n_sending = *n;
    if (*n == DPT_PROTO_STEPS_MAX)
        drop_steps(link, 1);
    steps[(*n)++] = *record;
    const bool many = *n >= DPT_PROTO_STEPS_MAX / 4;
    (void)pthread_mutex_unlock(&link->mutex);
    if (many)
        wake_link_thread(link);
}

/* The generation for which a message's grant counts: with a soft PREPARE it is the generation that
 * ends. Called with the mutex held. */
static uint64_t granted_generation(const struct dpt_link *link, const Dpt__AgentToRank *m)
{
    if (m->command != DPT__RANK_COMMAND__COMMAND_PREPARE_SOFT)
        return m->generation;
    return link->report.state.generation;
}

/* Interrupts the work of every generation below this one. */
static void interrupt_generation(struct dpt_link *link, uint64_t generation)
{
    raise_to(&link->hard_generation, generation);
    link->options.on_interrupt(link->options.ctx, generation);
}

/* Reports the stacks of this process's threads, once for each number. It takes at most a heartbeat,
 * in which this thread neither sends nor receives. */
static void answer_dump(struct dpt_link *link, uint64_t dump)
{
    char stacks[DPT_PROTO_STACKS_BYTES] = "";
    if (link->report.state.stacks_of == dump) /* only this thread changes it */
        return;
    if (dump != 0)
        dpt_stacks_print(stacks, sizeof stacks, DPT_STACKS_ANSWER_MS, link->options.heartbeat_ms);
    (void)pthread_mutex_lock(&link->mutex);
    link->report.state.stacks_of = dump;
    memcpy(link->report.stacks, stacks, sizeof stacks);
    (void)pthread_mutex_unlock(&link->mutex);
    wake_link_thread(link);
}

static void handle_message(struct dpt_link *link, int slot)
{
    const Dpt__AgentToRank *m = link->slots[slot].message;
    atomic_store(&link->lease_until_ms, m->lease_until_ms);
    atomic_store(&link->confirmed_ms, m->confirmed_ms);
    atomic_store(&link->leaving, m->leaving != 0);
    atomic_store(&link->save_from, m->save_from);
    if (m->command == DPT__RANK_COMMAND__COMMAND_PREPARE ||
        m->command == DPT__RANK_COMMAND__COMMAND_PREPARE_SOFT)
        raise_to(&link->any_generation, m->generation);
    if (m->command == DPT__RANK_COMMAND__COMMAND_PREPARE)
        interrupt_generation(link, m->generation);
    if (m->command == DPT__RANK_COMMAND__COMMAND_EXIT ||
        m->command == DPT__RANK_COMMAND__COMMAND_RESCUE)
        interrupt_generation(link, UINT64_MAX);
    (void)pthread_mutex_lock(&link->mutex);
    link->grant_generation = granted_generation(link, m);
    link->grant_step = m->grant_step;
    link->newest = slot;
    (void)pthread_cond_broadcast(&link->cond);
    (void)pthread_mutex_unlock(&link->mutex);
    answer_dump(link, m->dump); /* last: it takes time */
}

/* A slot that holds neither the main thread's message nor the newest one. */
static int free_slot(struct dpt_link *link)
{
    (void)pthread_mutex_lock(&link->mutex);
    int slot = 0;
    while (slot == link->current || slot == link->newest)
        slot++;
    (void)pthread_mutex_unlock(&link->mutex);
    return slot;
}

/* Reads all received frames. False: the agent has ended. */
static bool receive_frames(struct dpt_link *link)
{
    for (;;) {
        struct dpt_err err;
        size_t bytes = 0;
        enum dpt_status status =
            dpt_rank_link_recv(link->options.fd, 0, link->frame_in, &bytes, &err);
        if (status == DPT_INPROGRESS)
            return true;
        if (status == DPT_EPEER)
            return false;
        int slot = free_slot(link);
        if (status == DPT_OK)
            status = dpt_message_decode_agent_to_rank_in(
                link->slots[slot].memory, DPT_MESSAGE_MEMORY_BYTES(DPT_RANK_FRAME_BYTES_MAX),
                link->frame_in, bytes, &link->slots[slot].message, &err);
        if (status != DPT_OK) {
            dpt_log(DPT_LOG_ERROR, "a message of the agent is dropped: %s", err.text);
            continue;
        }
        handle_message(link, slot);
    }
}

static void *link_thread(void *arg)
{
    struct dpt_link *link = arg;
    int64_t next_ms = 0;
    while (!atomic_load(&link->stop)) {
        int64_t now = dpt_now_ms();
        if (now >= next_ms) {
            if (!send_report(link))
                break;
            next_ms = now + link->options.heartbeat_ms;
        }
        struct pollfd fds[2] = {{.fd = link->options.fd, .events = POLLIN},
                                {.fd = link->wake_fd, .events = POLLIN}};
        int n = poll(fds, 2, (int)(next_ms - now));
        if (n < 0)
            DPT_ASSERT(errno == EINTR);
        if (n > 0 && fds[1].revents) {
            uint64_t count;
            if (read(link->wake_fd, &count, sizeof count) < 0)
                DPT_ASSERT(errno == EAGAIN);
            next_ms = 0;
        }
        if (n > 0 && fds[0].revents && !receive_frames(link))
            break;
    }
    bool stopped = atomic_load(&link->stop);
    atomic_store(&link->gone, true);
    if (stopped)
        (void)send_report(link); /* the last report, perhaps with a fatal error */
    else
        link->options.on_closed(link->options.ctx);
    (void)pthread_mutex_lock(&link->mutex);
    link->closed = true;
    (void)pthread_cond_broadcast(&link->cond);
    (void)pthread_mutex_unlock(&link->mutex);
    return NULL;
}

static void free_link(struct dpt_link *link)
{
    for (int i = 0; i < SLOTS; i++)
        free(link->slots[i].memory);
    free(link->frame_in);
    free(link->frame_out);
    free(link);
}

static void init_first_report(struct dpt_report *report, const struct dpt_link_options *options)
{
    dpt_report_init(report);
    report->state.local_rank = options->local_rank;
    report->state.spawn = options->spawn;
    (void)snprintf(report->shm_addr, sizeof report->shm_addr, "%s", options->shm_addr);
    (void)snprintf(report->tcp_addr, sizeof report->tcp_addr, "%s", options->tcp_addr);
}

enum dpt_status dpt_link_create(const struct dpt_link_options *options, struct dpt_link **ret,
                                struct dpt_err *err)
{
    struct dpt_link *link = calloc(1, sizeof *link);
    if (!link)
        return dpt_fail_nomem(err, "link to the agent");
    link->options = *options;
    init_first_report(&link->report, options);
    link->grant_step = -1;
    link->newest = link->current = -1;
    link->frame_in = malloc(DPT_RANK_FRAME_BYTES_MAX);
    bool slots_made = true;
    for (int i = 0; i < SLOTS; i++) {
        link->slots[i].memory = malloc(DPT_MESSAGE_MEMORY_BYTES(DPT_RANK_FRAME_BYTES_MAX));
        slots_made = slots_made && link->slots[i].memory;
    }
    link->frame_out = malloc(DPT_RANK_FRAME_BYTES_MAX);
    link->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    enum dpt_status status = DPT_OK;
    if (!link->frame_in || !link->frame_out || !slots_made || link->wake_fd < 0)
        status = dpt_fail(err, DPT_ENOMEM, "link to the agent: out of memory or descriptors");
    (void)pthread_mutex_init(&link->mutex, NULL);
    pthread_condattr_t attr;
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&link->cond, &attr);
    (void)pthread_condattr_destroy(&attr);
    if (status == DPT_OK) {
        int rc = pthread_create(&link->thread, NULL, link_thread, link);
        if (rc != 0)
            status = dpt_fail_errno(err, rc, "start the link's thread");
    }
    if (status != DPT_OK) {
        if (link->wake_fd >= 0)
            (void)close(link->wake_fd);
        free_link(link);
        return status;
    }
    *ret = link;
    return DPT_OK;
}

void dpt_link_destroy(struct dpt_link **link_p)
{
    struct dpt_link *link = *link_p;
    if (!link)
        return;
    atomic_store(&link->stop, true);
    wake_link_thread(link);
    (void)pthread_join(link->thread, NULL);
    (void)close(link->wake_fd);
    (void)close(link->options.fd);
    (void)pthread_mutex_destroy(&link->mutex);
    (void)pthread_cond_destroy(&link->cond);
    free_link(link);
    *link_p = NULL;
}

struct dpt_report *dpt_link_edit(struct dpt_link *link)
{
    (void)pthread_mutex_lock(&link->mutex);
    return &link->report;
}

void dpt_link_publish(struct dpt_link *link, bool now)
{
    (void)pthread_mutex_unlock(&link->mutex);
    if (now)
        wake_link_thread(link);
}

const Dpt__AgentToRank *dpt_link_command(const struct dpt_link *link)
{
    return link->current < 0 ? NULL : link->slots[link->current].message;
}

static struct timespec deadline_after(int wait_ms)
{
    int64_t at = dpt_now_ns() + (int64_t)wait_ms * 1000000;
    return (struct timespec){.tv_sec = (time_t)(at / 1000000000),
                             .tv_nsec = (long)(at % 1000000000)};
}

enum dpt_status dpt_link_wait(struct dpt_link *link, int wait_ms, struct dpt_err *err)
{
    struct timespec deadline = deadline_after(wait_ms < 0 ? 0 : wait_ms);
    enum dpt_status status = DPT_INPROGRESS;
    (void)pthread_mutex_lock(&link->mutex);
    for (;;) {
        if (link->newest >= 0) {
            const Dpt__AgentToRank *old = dpt_link_command(link);
            link->current = link->newest;
            link->newest = -1;
            const Dpt__AgentToRank *new = dpt_link_command(link);
            if (!old || old->command != new->command || old->generation != new->generation) {
                status = DPT_OK;
                break;
            }
        }
        if (link->closed) {
            status = dpt_fail(err, DPT_EPEER, "the agent of this rank has ended");
            break;
        }
        if (wait_ms < 0)
            (void)pthread_cond_wait(&link->cond, &link->mutex);
        else if (pthread_cond_timedwait(&link->cond, &link->mutex, &deadline) == ETIMEDOUT)
            break;
    }
    (void)pthread_mutex_unlock(&link->mutex);
    return status;
}

bool dpt_link_interrupted(const struct dpt_link *link, uint64_t generation)
{
    return atomic_load(&link->gone) || atomic_load(&link->hard_generation) > generation;
}

bool dpt_link_reform_wanted(const struct dpt_link *link, uint64_t generation)
{
    return atomic_load(&link->any_generation) > generation;
}

bool dpt_link_leaving(const struct dpt_link *link)
{
    return atomic_load(&link->leaving);
}

int64_t dpt_link_save_from(const struct dpt_link *link)
{
    return atomic_load(&link->save_from);
}

bool dpt_link_may_write(const struct dpt_link *link)
{
    return !atomic_load(&link->gone) && dpt_now_ms() < atomic_load(&link->lease_until_ms);
}

bool dpt_link_may_append(const struct dpt_link *link, int64_t made_ms, int64_t grace_ms)
{
    const int64_t confirmed_ms = atomic_load(&link->confirmed_ms);
    return dpt_link_may_write(link) &&
           (made_ms <= confirmed_ms || dpt_now_ms() < confirmed_ms + grace_ms);
}

/* The condition that a thread waits for. Checked with the mutex held. */
struct wait {
    enum { WAIT_WRITE, WAIT_APPEND, WAIT_GRANT } what;
    int64_t began_ms, grace_ms; /* APPEND */
    uint64_t generation;        /* GRANT */
    int64_t step;
};

static bool wait_is_over(const struct dpt_link *link, const struct wait *wait)
{
    if (wait->what == WAIT_GRANT)
        return link->grant_generation == wait->generation && link->grant_step == wait->step;
    return wait->what == WAIT_WRITE ? dpt_link_may_write(link)
                                    : dpt_link_may_append(link, wait->began_ms, wait->grace_ms);
}

/* A cancellation does not signal the condition variable. The waiting thread asks for it with every
 * heartbeat, even if the agent sends nothing. */
static bool await_permission(struct dpt_link *link, const struct wait *wait,
                             bool (*cancelled)(void *ctx), void *ctx)
{
    bool over;
    (void)pthread_mutex_lock(&link->mutex);
    while (!(over = wait_is_over(link, wait)) && !link->closed && !cancelled(ctx)) {
        struct timespec next = deadline_after((int)link->options.heartbeat_ms);
        (void)pthread_cond_timedwait(&link->cond, &link->mutex, &next);
    }
    (void)pthread_mutex_unlock(&link->mutex);
    return over;
}

bool dpt_link_await_write(struct dpt_link *link, bool (*cancelled)(void *ctx), void *ctx)
{
    return await_permission(link, &(struct wait){.what = WAIT_WRITE}, cancelled, ctx);
}

bool dpt_link_await_append(struct dpt_link *link, int64_t grace_ms, bool (*cancelled)(void *ctx),
                           void *ctx)
{
    const struct wait wait = {.what = WAIT_APPEND, .began_ms = dpt_now_ms(), .grace_ms = grace_ms};
    return await_permission(link, &wait, cancelled, ctx);
}

bool dpt_link_granted(struct dpt_link *link, uint64_t generation, int64_t step)
{
    const struct wait wait = {.what = WAIT_GRANT, .generation = generation, .step = step};
    (void)pthread_mutex_lock(&link->mutex);
    const bool granted = wait_is_over(link, &wait);
    (void)pthread_mutex_unlock(&link->mutex);
    return granted;
}

enum dpt_status dpt_link_await_grant(struct dpt_link *link, uint64_t generation, int64_t step,
                                     bool (*cancelled)(void *ctx), void *ctx, struct dpt_err *err)
{
    const struct wait wait = {.what = WAIT_GRANT, .generation = generation, .step = step};
    if (await_permission(link, &wait, cancelled, ctx))
        return DPT_OK;
    return dpt_fail(err, DPT_EABORTED,
                    "no grant for the checkpoint of step %lld in generation %llu", (long long)step,
                    (unsigned long long)generation);
}
