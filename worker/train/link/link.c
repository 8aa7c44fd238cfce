/* The thread that talks to the agent. */
#include "worker/train/link/link.h"

#include "base/clock.h"
#include "base/log.h"
#include "worker/agent/rank_protocol.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

enum { SLOTS = 3 };

struct dpt_link {
    struct dpt_link_options options;
    pthread_t thread;
    int wake_fd;                   /* eventfd: there is something to send, or to stop for */
    uint8_t *frame_in, *frame_out; /* DPT_RANK_FRAME_BYTES_MAX each, of the link's thread */

    pthread_mutex_t mutex;
    pthread_cond_t cond; /* CLOCK_MONOTONIC; a frame has come, or the agent is gone */
    /* Under the mutex. */
    struct dpt_rank_report report;
    uint8_t outcome[DPT_PROTO_OUTCOME_BYTES_MAX];
    int newest; /* slot of a message not yet taken by the main thread; -1: none since */
    bool closed;
    uint64_t grant_generation;
    int64_t grant_step;                                                          /* -1: none */
    Dpt__StepRecord steps[DPT_PROTO_STEPS_MAX], *step_list[DPT_PROTO_STEPS_MAX]; /* to be told */
    size_t n_steps, n_sending; /* sending: of them, the first so many are on their way */
    bool newest_passes;        /* of the last of them: see dpt_step_record */

    int current; /* slot of the main thread's; -1: none yet. Changed by it, under the mutex */

    /* Messages are built in place, so that listening never allocates. Three: the main thread's, the
     * newest, and the one being read. */
    struct {
        void *memory; /* DPT_MESSAGE_MEMORY_BYTES(DPT_RANK_FRAME_BYTES_MAX) */
        Dpt__AgentToRank *message;
    } slots[SLOTS];

    atomic_bool stop, gone, leaving;
    _Atomic uint64_t hard_generation,
        any_generation; /* highest PREPARE seen; hard: all at EXIT and RESCUE */
    _Atomic int64_t lease_until_ms, confirmed_ms;
};

static void wake(struct dpt_link *link)
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

/* With the mutex held. */
static void fill_shards(const struct dpt_rank_report *r, Dpt__RankState *state,
                        Dpt__Shard shards[DPT_PROTO_SHARDS_MAX],
                        Dpt__Shard *list[DPT_PROTO_SHARDS_MAX])
{
    for (int i = 0; i < r->n_shards; i++) {
        dpt__shard__init(&shards[i]);
        shards[i].index = (uint32_t)r->shards[i].index;
        shards[i].of = (uint32_t)r->shards[i].of;
        shards[i].pending = r->shards[i].pending;
        list[i] = &shards[i];
    }
    state->n_shards = (size_t)r->n_shards;
    state->shards = list;
    state->gradient = r->gradient;
    state->pending_generation = r->pending_generation;
    state->ran_generation = r->ran_generation;
    state->rebuilding = r->rebuilding;
}

static void fill_summary(const struct dpt_summary *from, Dpt__RankToAgent *message,
                         Dpt__RunSummary *to)
{
    dpt__run_summary__init(to);
    to->start_step = from->start_step;
    to->steps = from->steps;
    to->loss = from->loss;
    to->val_loss = from->val_loss;
    to->val_right = from->val_right;
    to->val_samples = from->val_samples;
    to->total_ms = (int64_t)(from->total_s * 1e3);
    to->step_ms = from->step_ms;
    to->samples_per_s = from->samples_per_s;
    to->tokens_per_s = from->tokens_per_s;
    to->peak_bytes_per_rank = from->peak_bytes_per_rank;
    to->checkpoints_saved = (uint32_t)from->checkpoints_saved;
    to->saved_step = from->saved_step;
    to->recoveries = (uint32_t)from->recoveries;
    to->steps_lost = from->steps_lost;
    to->weights_hash = (char *)(uintptr_t)from->weights_hash;
    message->summary = to;
}

/* The oldest `n` of the steps that wait. With the mutex held. */
static void drop_steps(struct dpt_link *link, size_t n)
{
    link->n_steps -= n;
    link->n_sending -= n < link->n_sending ? n : link->n_sending;
    memmove(link->steps, link->steps + n, link->n_steps * sizeof link->steps[0]);
}

/* What was on its way has been taken. */
static void forget_steps(struct dpt_link *link)
{
    (void)pthread_mutex_lock(&link->mutex);
    drop_steps(link, link->n_sending);
    (void)pthread_mutex_unlock(&link->mutex);
}

/* Sends the rank's state; false: the agent is gone. A full queue drops the frame: the next
 * heartbeat says it again. */
static bool send_state(struct dpt_link *link)
{
    Dpt__RankState state = DPT__RANK_STATE__INIT;
    Dpt__RankToAgent message = DPT__RANK_TO_AGENT__INIT;
    Dpt__Shard shards[DPT_PROTO_SHARDS_MAX], *shard_list[DPT_PROTO_SHARDS_MAX];
    Dpt__RunSummary summary;
    struct dpt_err err;
    size_t bytes = 0;
    (void)pthread_mutex_lock(&link->mutex);
    struct dpt_rank_report *r = &link->report;
    state.local_rank = r->local_rank;
    state.spawn = r->spawn;
    state.phase = r->phase;
    state.generation = r->generation;
    state.shm_addr = r->shm_addr;
    state.tcp_addr = r->tcp_addr;
    state.step_applied = r->step_applied;
    state.outcome_step = r->outcome_step;
    state.outcome.data = link->outcome;
    state.outcome.len = r->outcome_bytes;
    fill_shards(r, &state, shards, shard_list);
    state.checkpoint_step = r->checkpoint_step;
    state.rescued_step = r->rescued_step;
    state.rescue_failed = r->rescue_failed;
    state.failed_generation = r->failed_generation;
    state.suspect = r->suspect;
    state.text = r->text;
    state.grant_step = r->grant_step;
    state.loss = r->loss;
    state.weights_hash = r->weights_hash;
    state.busy = r->busy;
    state.work_done = r->work_done;
    state.soft_stop_seen = atomic_load(&link->any_generation) > r->generation;
    message.state = &state;
    message.fatal = r->fatal;
    message.sound = r->sound;
    message.broken = r->broken;
    message.exit_code = r->exit_code;
    message.tokens_per_s = r->tokens_per_s;
    message.step_ms_median = r->step_ms_median;
    message.val_step = r->val_step;
    message.val_loss = r->val_loss;
    message.val_right = r->val_right;
    message.val_samples = r->val_samples;
    message.saved_step = r->saved_step;
    message.steps = link->step_list;
    message.n_steps = link->n_steps;
    if (r->has_summary)
        fill_summary(&r->summary, &message, &summary);
    enum dpt_status status =
        dpt_message_encode(&message.base, link->frame_out, DPT_RANK_FRAME_BYTES_MAX, &bytes, &err);
    link->n_sending = link->n_steps;
    (void)pthread_mutex_unlock(&link->mutex);
    DPT_ASSERT(status == DPT_OK); /* every part of a report is bounded below the frame */
    status = dpt_rank_link_send(link->options.fd, link->frame_out, bytes, &err);
    if (status == DPT_OK)
        forget_steps(link);
    return status != DPT_EPEER;
}

void dpt_link_tell_step(struct dpt_link *link, const struct dpt_step_record *record)
{
    (void)pthread_mutex_lock(&link->mutex);
    if (link->newest_passes && link->n_steps > link->n_sending)
        link->n_steps--; /* this one is told in its place */
    link->newest_passes = record->passes;
    while (link->n_steps > 0 && link->steps[link->n_steps - 1].step >= record->step)
        link->n_steps--; /* lost, and made again */
    if (link->n_sending > link->n_steps)
        link->n_sending = link->n_steps;
    if (link->n_steps == DPT_PROTO_STEPS_MAX)
        drop_steps(link, 1);
    Dpt__StepRecord *to = &link->steps[link->n_steps];
    dpt__step_record__init(to);
    to->step = record->step;
    to->loss = record->loss;
    to->lr = record->lr;
    to->grad_norm = record->grad_norm;
    to->tokens_per_s = record->tokens_per_s;
    to->world_size = (uint32_t)record->world_size;
    to->epoch = record->epoch.number;
    to->epoch_first_step = record->epoch.first_step;
    to->epoch_avg_loss = record->epoch.avg_loss;
    to->epoch_seconds = record->epoch.seconds;
    to->epoch_samples_per_s = record->epoch.samples_per_s;
    link->step_list[link->n_steps++] = to;
    const bool many = link->n_steps >= DPT_PROTO_STEPS_MAX / 4;
    (void)pthread_mutex_unlock(&link->mutex);
    if (many)
        wake(link);
}

/* A grant is for the generation in force: with a soft PREPARE that is the one which ends. With the
 * mutex held. */
static uint64_t granted_generation(const struct dpt_link *link, const Dpt__AgentToRank *m)
{
    if (m->command != DPT__RANK_COMMAND__COMMAND_PREPARE_SOFT)
        return m->generation;
    return link->report.generation;
}

/* Whatever a generation below this one is doing ends. */
static void interrupt(struct dpt_link *link, uint64_t generation)
{
    raise_to(&link->hard_generation, generation);
    link->options.on_interrupt(link->options.ctx, generation);
}

static void take_frame(struct dpt_link *link, int slot)
{
    const Dpt__AgentToRank *m = link->slots[slot].message;
    atomic_store(&link->lease_until_ms, m->lease_until_ms);
    atomic_store(&link->confirmed_ms, m->confirmed_ms);
    atomic_store(&link->leaving, m->leaving != 0);
    if (m->command == DPT__RANK_COMMAND__COMMAND_PREPARE ||
        m->command == DPT__RANK_COMMAND__COMMAND_PREPARE_SOFT)
        raise_to(&link->any_generation, m->generation);
    if (m->command == DPT__RANK_COMMAND__COMMAND_PREPARE)
        interrupt(link, m->generation);
    if (m->command == DPT__RANK_COMMAND__COMMAND_EXIT ||
        m->command == DPT__RANK_COMMAND__COMMAND_RESCUE)
        interrupt(link, UINT64_MAX);
    (void)pthread_mutex_lock(&link->mutex);
    link->grant_generation = granted_generation(link, m);
    link->grant_step = m->grant_step;
    link->newest = slot;
    (void)pthread_cond_broadcast(&link->cond);
    (void)pthread_mutex_unlock(&link->mutex);
}

/* A slot in which the main thread has no message and will find none. */
static int free_slot(struct dpt_link *link)
{
    (void)pthread_mutex_lock(&link->mutex);
    int slot = 0;
    while (slot == link->current || slot == link->newest)
        slot++;
    (void)pthread_mutex_unlock(&link->mutex);
    return slot;
}

/* Reads all frames that have come; false: the agent is gone. */
static bool receive(struct dpt_link *link)
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
        take_frame(link, slot);
    }
}

static void *run(void *arg)
{
    struct dpt_link *link = arg;
    int64_t next_ms = 0;
    while (!atomic_load(&link->stop)) {
        int64_t now = dpt_now_ms();
        if (now >= next_ms) {
            if (!send_state(link))
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
        if (n > 0 && fds[0].revents && !receive(link))
            break;
    }
    bool stopped = atomic_load(&link->stop);
    atomic_store(&link->gone, true);
    if (stopped)
        (void)send_state(
            link); /* the last words, e.g. a fatal error; an agent that is gone misses nothing */
    else
        link->options.on_closed(link->options.ctx);
    (void)pthread_mutex_lock(&link->mutex);
    link->closed = true;
    (void)pthread_cond_broadcast(&link->cond);
    (void)pthread_mutex_unlock(&link->mutex);
    return NULL;
}

static void free_memory(struct dpt_link *link)
{
    for (int i = 0; i < SLOTS; i++)
        free(link->slots[i].memory);
    free(link->frame_in);
    free(link->frame_out);
    free(link);
}

enum dpt_status dpt_link_create(const struct dpt_link_options *options,
                                const struct dpt_rank_report *first, struct dpt_link **ret,
                                struct dpt_err *err)
{
    struct dpt_link *link = calloc(1, sizeof *link);
    if (!link)
        return dpt_fail(err, DPT_ENOMEM, "link to the agent: out of memory");
    link->options = *options;
    link->report = *first;
    link->report.outcome_bytes = 0;
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
        int rc = pthread_create(&link->thread, NULL, run, link);
        if (rc != 0)
            status = dpt_fail_errno(err, rc, "start the link's thread");
    }
    if (status != DPT_OK) {
        if (link->wake_fd >= 0)
            (void)close(link->wake_fd);
        free_memory(link);
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
    wake(link);
    (void)pthread_join(link->thread, NULL);
    (void)close(link->wake_fd);
    (void)close(link->options.fd);
    (void)pthread_mutex_destroy(&link->mutex);
    (void)pthread_cond_destroy(&link->cond);
    free_memory(link);
    *link_p = NULL;
}

void dpt_link_publish(struct dpt_link *link, const struct dpt_rank_report *report, bool now)
{
    DPT_ASSERT(report->outcome_bytes <= sizeof link->outcome);
    (void)pthread_mutex_lock(&link->mutex);
    link->report = *report;
    if (report->outcome_bytes > 0)
        memcpy(link->outcome, report->outcome, report->outcome_bytes);
    link->report.outcome = NULL;
    (void)pthread_mutex_unlock(&link->mutex);
    if (now)
        wake(link);
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
            status = dpt_fail(err, DPT_EPEER, "the agent of this rank is gone");
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

bool dpt_link_may_write(const struct dpt_link *link)
{
    return !atomic_load(&link->gone) && dpt_now_ms() < atomic_load(&link->lease_until_ms);
}

int64_t dpt_link_confirmed_ms(const struct dpt_link *link)
{
    return atomic_load(&link->confirmed_ms);
}

static bool is_confirmed(const struct dpt_link *link, int64_t since_ms, int64_t grace_ms)
{
    const int64_t confirmed_ms = dpt_link_confirmed_ms(link);
    return grace_ms < 0 || confirmed_ms >= since_ms || dpt_now_ms() < confirmed_ms + grace_ms;
}

/* grace_ms -1: the fence alone. */
static bool await_leave(struct dpt_link *link, int64_t grace_ms, bool (*cancelled)(void *ctx),
                        void *ctx)
{
    const int64_t began_ms = dpt_now_ms();
    (void)pthread_mutex_lock(&link->mutex);
    bool may;
    while (!(may = dpt_link_may_write(link) && is_confirmed(link, began_ms, grace_ms)) &&
           !link->closed && !cancelled(ctx)) {
        struct timespec next = deadline_after((int)link->options.heartbeat_ms);
        (void)pthread_cond_timedwait(&link->cond, &link->mutex, &next);
    }
    (void)pthread_mutex_unlock(&link->mutex);
    return may;
}

bool dpt_link_await_write(struct dpt_link *link, bool (*cancelled)(void *ctx), void *ctx)
{
    return await_leave(link, -1, cancelled, ctx);
}

bool dpt_link_await_confirmed(struct dpt_link *link, int64_t grace_ms, bool (*cancelled)(void *ctx),
                              void *ctx)
{
    return await_leave(link, grace_ms, cancelled, ctx);
}

static bool granted(const struct dpt_link *link, uint64_t generation, int64_t step)
{
    return link->grant_generation == generation && link->grant_step == step;
}

bool dpt_link_granted(struct dpt_link *link, uint64_t generation, int64_t step)
{
    (void)pthread_mutex_lock(&link->mutex);
    const bool is = granted(link, generation, step);
    (void)pthread_mutex_unlock(&link->mutex);
    return is;
}

enum dpt_status dpt_link_await_grant(struct dpt_link *link, uint64_t generation, int64_t step,
                                     bool (*cancelled)(void *ctx), void *ctx, struct dpt_err *err)
{
    enum dpt_status status = DPT_OK;
    (void)pthread_mutex_lock(&link->mutex);
    while (!granted(link, generation, step)) {
        if (link->closed || cancelled(ctx)) {
            status = dpt_fail(err, DPT_EABORTED,
                              "no grant for the checkpoint of step %lld in generation %llu",
                              (long long)step, (unsigned long long)generation);
            break;
        }
        /* A cancellation wakes nobody: it is seen within a heartbeat, also from an agent that is
         * silent. */
        struct timespec next = deadline_after((int)link->options.heartbeat_ms);
        (void)pthread_cond_timedwait(&link->cond, &link->mutex, &next);
    }
    (void)pthread_mutex_unlock(&link->mutex);
    return status;
}
