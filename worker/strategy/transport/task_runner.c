/* The task runner (task_runner.h). */
#include "worker/strategy/transport/task_runner.h"

#include "base/clock.h"
#include "worker/comm/nccl_comm.h"
#include "worker/trace/present_work.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
    WINDOW_MAX = 32,      /* tasks under way; each has two operations */
    TRANSFERS_MAX = 8192, /* of all tasks under way, within the communicator's limit */
    /* The main thread sets them in turn; it is never this many actions ahead. */
    EVENTS = 64
};
_Static_assert(2 * WINDOW_MAX < DPT_COMM_OPS_MAX, "the window fits into a communicator");
_Static_assert((int)WINDOW_MAX < (int)DPT_NCCL_QUEUE_MAX, "and into one of NCCL's");

enum state { WAITING, ARRIVED, DONE };

/* A task under way. */
struct running {
    struct dpt_task_transfers xfers;
    struct dpt_comm_op *in, *out; /* NULL: no operation, or it has ended */
    struct dpt_nccl_piece *pieces;
    uint64_t ticket; /* of the NCCL operation; 0: none */
    bool arrived;
    int64_t began_ns; /* of its trace; 0: none */
    struct dpt_trace_span span;
};

struct dpt_task_runner {
    struct dpt_task_runner_spec spec;
    int window, n_tasks_max;
    struct running running[WINDOW_MAX]; /* task i uses entry i mod window */
    struct dpt_comm_xfer *xfers;        /* of all entries */
    struct dpt_nccl_piece *pieces;
    /* Event k: set after a number of actions that is k modulo EVENTS. */
    struct dpt_event *events[EVENTS];
    atomic_int set_at[EVENTS]; /* that number of actions; -1: not set in this list */

    /* The step. */
    const struct dpt_step_list *list;
    struct dpt_comm *comm;      /* the host's communicator; NULL at world size 1 */
    struct dpt_nccl_comm *nccl; /* not NULL: NCCL carries out the transfers */
    bool skip_gathers, then;
    int copy_first, copy_end; /* units */
    bool posted;              /* the job is posted, and the main thread has not waited for it */
    int next;                 /* task to post */
    int oldest;               /* all tasks before it are over */
    int turn[DPT_TASK_COUNT]; /* tasks posted */
    int n_arrived[DPT_TASK_COUNT]; /* tasks that arrived */
    atomic_int actions;

    pthread_mutex_t mutex;
    pthread_cond_t cond;
    /* Under the mutex. */
    uint8_t *state; /* [n_tasks_max] enum state */
    bool awaited;   /* the main thread waits for a task */
    bool ended;     /* the job has ended: no state changes any more */
};

static bool by_nccl(const struct dpt_task_runner_spec *spec)
{
    return spec->device && spec->world_size > 1;
}

static enum dpt_status make_runner_room(struct dpt_task_runner *w, struct dpt_err *err)
{
    const struct dpt_task_runner_spec *spec = &w->spec;
    const size_t peers = (size_t)spec->xfers_max + 1; /* one more than the peers */
    const size_t transfers = (size_t)w->window * 2 * peers;
    w->xfers = calloc(transfers, sizeof *w->xfers);
    w->pieces = by_nccl(spec) ? calloc(transfers, sizeof *w->pieces) : NULL;
    w->state = calloc((size_t)w->n_tasks_max + 1, sizeof *w->state);
    if (!w->xfers || !w->state || (by_nccl(spec) && !w->pieces))
        return dpt_fail_nomem(err, "tasks of a step");
    for (int i = 0; i < w->window; i++) {
        w->running[i].xfers.in = w->xfers + (size_t)i * 2 * peers;
        w->running[i].xfers.out = w->running[i].xfers.in + peers;
        w->running[i].pieces = w->pieces ? w->pieces + (size_t)i * 2 * peers : NULL;
    }
    for (int i = 0; by_nccl(spec) && i < EVENTS; i++)
        DPT_TRY(dpt_event_create(spec->device, &w->events[i], err));
    return DPT_OK;
}

enum dpt_status dpt_task_runner_create(const struct dpt_task_runner_spec *spec, int n_tasks_max,
                                       struct dpt_task_runner **ret, struct dpt_err *err)
{
    if (by_nccl(spec) && 2 * spec->xfers_max > DPT_NCCL_PIECES_MAX)
        return dpt_fail(err, DPT_EOVERFLOW,
                        "%d transfers of a rank at once between %d GPUs, and NCCL is given %d at "
                        "most: choose train.lanes so that nodes divide it, or fewer ranks",
                        2 * spec->xfers_max, spec->world_size, DPT_NCCL_PIECES_MAX);
    struct dpt_task_runner *w = calloc(1, sizeof *w);
    if (!w)
        return dpt_fail_nomem(err, "tasks of a step");
    w->spec = *spec;
    w->n_tasks_max = n_tasks_max;
    w->window = TRANSFERS_MAX / (2 * (spec->xfers_max + 1));
    if (w->window > WINDOW_MAX)
        w->window = WINDOW_MAX;
    if (w->window < 1)
        w->window = 1;
    (void)pthread_mutex_init(&w->mutex, NULL);
    (void)pthread_cond_init(&w->cond, NULL);
    const enum dpt_status status = make_runner_room(w, err);
    if (status != DPT_OK)
        dpt_task_runner_destroy(&w);
    else
        *ret = w;
    return status;
}

void dpt_task_runner_destroy(struct dpt_task_runner **runner)
{
    struct dpt_task_runner *w = *runner;
    if (!w)
        return;
    (void)pthread_mutex_destroy(&w->mutex);
    (void)pthread_cond_destroy(&w->cond);
    for (int i = 0; i < EVENTS; i++)
        dpt_event_destroy(&w->events[i]);
    free(w->xfers);
    free(w->pieces);
    free(w->state);
    free(w);
    *runner = NULL;
}

static void set_state(struct dpt_task_runner *w, int task, enum state state)
{
    (void)pthread_mutex_lock(&w->mutex);
    w->state[task] = (uint8_t)state;
    if (w->awaited)
        (void)pthread_cond_broadcast(&w->cond);
    (void)pthread_mutex_unlock(&w->mutex);
}

static bool left_out(const struct dpt_task_runner *w, const struct dpt_task *task)
{
    if (task->kind == DPT_TASK_COPY)
        return task->unit < w->copy_first || task->unit >= w->copy_end;
    return w->skip_gathers && task->kind == DPT_TASK_GATHER;
}

static bool is_ready(const struct dpt_task_runner *w, const struct dpt_task *task)
{
    if (atomic_load_explicit(&w->actions, memory_order_acquire) < task->actions ||
        w->n_arrived[DPT_TASK_SCATTER] < task->scatters ||
        w->n_arrived[DPT_TASK_CROSS] < task->crosses)
        return false;
    const int turns = w->spec.turns[task->kind];
    return turns == 0 || w->turn[task->kind] - w->n_arrived[task->kind] < turns;
}

static int add_pieces(struct dpt_nccl_piece *pieces, struct dpt_comm_xfer *xfers, int n_xfers)
{
    for (int i = 0; i < n_xfers; i++) {
        struct dpt_comm_xfer *x = &xfers[i];
        pieces[i] = (struct dpt_nccl_piece){.peer = x->peer, .count = x->bytes};
        if (x->dir == DPT_COMM_SEND) {
            pieces[i].kind = DPT_NCCL_SEND;
            pieces[i].from = x->buf;
        } else {
            pieces[i].kind = DPT_NCCL_RECV;
            pieces[i].to = x->buf;
            x->lent = x->buf;
        }
    }
    return n_xfers;
}

/* The event that was set after the number of actions that the task waits for. If there is no such
 * event, or the main thread has set it again, the newest event, which waits for more work than
 * needed. */
static struct dpt_event *event_of(struct dpt_task_runner *w, const struct dpt_task *task)
{
    const int exact = task->actions % EVENTS;
    if (atomic_load_explicit(&w->set_at[exact], memory_order_relaxed) == task->actions)
        return w->events[exact];
    return w->events[atomic_load_explicit(&w->actions, memory_order_acquire) % EVENTS];
}

static int64_t sum_bytes(const struct dpt_comm_xfer *xfers, int n)
{
    int64_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += (int64_t)xfers[i].bytes;
    return sum;
}

/* The span of a task. Elements are counted as PyTorch counts them: an all-gather's input is this
 * rank's piece, and its output are the pieces of all ranks; of a reduce-scatter it is the other way
 * round. */
static struct dpt_trace_span span_of(const struct dpt_task_runner *w, const struct dpt_task *task,
                                     const struct running *run)
{
    const struct dpt_task_label *label = &w->spec.label[task->kind];
    const struct dpt_task_transfers *x = &run->xfers;
    const int64_t sent = sum_bytes(x->out, x->n_out), received = sum_bytes(x->in, x->n_in),
                  width = (int64_t)label->width;
    int64_t input = sent, output = received;
    if (label->collective == DPT_TRACE_ALL_GATHER) {
        input = x->n_out > 0 ? (int64_t)x->out[0].bytes : 0;
        output = input + received;
    } else if (label->collective == DPT_TRACE_REDUCE_SCATTER) {
        output = x->n_in > 0 ? (int64_t)x->in[0].bytes : 0;
        input = sent + output;
    }
    return (struct dpt_trace_span){
        .kind = w->nccl ? DPT_TRACE_DEVICE_COLLECTIVE : DPT_TRACE_COLLECTIVE,
        .collective = label->collective,
        .group = label->group,
        .dtype = label->dtype,
        .key = {DPT_TRACE_COLLECTIVE_KEYS, "unit", "bytes sent"},
        .value = {input / width, output / width, label->group_size, task->unit, sent}};
}

/* Starts a task by NCCL. A task without transfers on this rank needs no operation: the stream only
 * waits for the device's earlier work. */
static enum dpt_status start_by_nccl(struct dpt_task_runner *w, const struct dpt_task *task,
                                     struct running *run, struct dpt_err *err)
{
    struct dpt_event *event = event_of(w, task);
    int n = add_pieces(run->pieces, run->xfers.in, run->xfers.n_in);
    n += add_pieces(run->pieces + n, run->xfers.out, run->xfers.n_out);
    if (n == 0) {
        dpt_event_await(event, w->spec.comm_stream);
        return DPT_OK;
    }
    if (run->began_ns != 0)
        run->span = span_of(w, task, run);
    return dpt_nccl_comm_post_traced(w->nccl, w->spec.group[task->kind],
                                     &(struct dpt_nccl_op){run->pieces, n, dpt_event_native(event)},
                                     run->began_ns != 0 ? &run->span : NULL, &run->ticket, err);
}

static enum dpt_status start_task(struct dpt_task_runner *w, struct dpt_err *err)
{
    const struct dpt_task *task = &w->list->tasks[w->next];
    struct running *run = &w->running[w->next % w->window];
    run->xfers.n_in = run->xfers.n_out = 0;
    run->ticket = 0;
    run->arrived = false;
    run->began_ns = dpt_trace_begin();
    run->xfers.turn = w->turn[task->kind]++;
    w->next++;
    if (left_out(w, task))
        return DPT_OK;
    w->spec.handlers[task->kind]->post(w->spec.ctx, task, &run->xfers);
    DPT_ASSERT(run->xfers.n_in <= w->spec.xfers_max && run->xfers.n_out <= w->spec.xfers_max);
    if (w->nccl)
        return start_by_nccl(w, task, run, err);
    if (run->xfers.n_in > 0)
        DPT_TRY(dpt_comm_exchange(w->comm, run->xfers.in, run->xfers.n_in, &run->in, err));
    if (run->xfers.n_out > 0)
        DPT_TRY(dpt_comm_exchange(w->comm, run->xfers.out, run->xfers.n_out, &run->out, err));
    return DPT_OK;
}

static bool has_received(const struct dpt_task_runner *w, int index)
{
    const struct running *run = &w->running[index % w->window];
    if (run->ticket > 0)
        return dpt_nccl_comm_done(w->nccl, w->spec.group[w->list->tasks[index].kind], run->ticket);
    return !run->in || dpt_comm_op_received(run->in);
}

/* Traces a task from its start until its arrival was handled. NCCL's queue traces its own
 * operations. */
static void trace_task(const struct dpt_task_runner *w, const struct dpt_task *task,
                       const struct running *run)
{
    if (run->began_ns == 0 || w->nccl || run->xfers.n_in + run->xfers.n_out == 0)
        return;
    const struct dpt_trace_span span = span_of(w, task, run);
    dpt_trace_end(run->began_ns, &span);
}

/* Handles a task that has received everything. */
static enum dpt_status take_arrival(struct dpt_task_runner *w, int index, struct dpt_err *err)
{
    const struct dpt_task *task = &w->list->tasks[index];
    struct running *run = &w->running[index % w->window];
    const struct dpt_task_handler *kind = w->spec.handlers[task->kind];
    if (kind->arrived && !left_out(w, task))
        DPT_TRY(kind->arrived(w->spec.ctx, task, &run->xfers, err));
    trace_task(w, task, run);
    if (run->in)
        dpt_comm_op_free(w->comm, &run->in);
    run->arrived = true;
    w->n_arrived[task->kind]++;
    set_state(w, index, ARRIVED);
    return DPT_OK;
}

/* Advances all tasks that can advance. *ret_moved: whether any did. */
static enum dpt_status move_tasks(struct dpt_task_runner *w, bool *ret_moved, struct dpt_err *err)
{
    *ret_moved = false;
    while (w->next < w->list->n_tasks && w->next - w->oldest < w->window &&
           is_ready(w, &w->list->tasks[w->next])) {
        DPT_TRY(start_task(w, err));
        *ret_moved = true;
    }
    bool waits[DPT_TASK_COUNT] = {false}; /* an earlier task of the kind has not arrived */
    for (int i = w->oldest; i < w->next; i++) {
        struct running *run = &w->running[i % w->window];
        const enum dpt_task_kind kind = w->list->tasks[i].kind;
        const bool in_order = kind == DPT_TASK_SCATTER || kind == DPT_TASK_CROSS;
        if (!run->arrived && !(in_order && waits[kind]) && has_received(w, i)) {
            DPT_TRY(take_arrival(w, i, err));
            *ret_moved = true;
        }
        waits[kind] = waits[kind] || !run->arrived;
        if (run->out && dpt_comm_op_done(run->out))
            dpt_comm_op_free(w->comm, &run->out);
    }
    for (; w->oldest < w->next; w->oldest++) {
        const struct running *run = &w->running[w->oldest % w->window];
        if (!run->arrived || run->out)
            break;
        set_state(w, w->oldest, DONE);
        *ret_moved = true;
    }
    return DPT_OK;
}

/* Notes the oldest task that has not arrived; if there is none, the wait for the main thread. */
static void note_oldest(const struct dpt_task_runner *w)
{
    static const enum dpt_work works[DPT_TASK_COUNT] = {[DPT_TASK_GATHER] = DPT_WORK_GATHER,
                                                        [DPT_TASK_SCATTER] = DPT_WORK_SCATTER,
                                                        [DPT_TASK_CROSS] = DPT_WORK_CROSS,
                                                        [DPT_TASK_SHARE] = DPT_WORK_SHARE,
                                                        [DPT_TASK_COPY] = DPT_WORK_COPY};
    int i = w->oldest;
    while (i < w->next && w->running[i % w->window].arrived)
        i++;
    const struct dpt_task *task = &w->list->tasks[i < w->next ? i : w->oldest];
    dpt_present_work_note(i < w->next || w->oldest < w->next ? works[task->kind]
                                                             : DPT_WORK_AWAIT_OWN,
                          task->unit, -1);
}

static enum dpt_status run_tasks(struct dpt_task_runner *w, struct dpt_err *err)
{
    while (w->oldest < w->list->n_tasks) {
        bool moved;
        DPT_TRY(move_tasks(w, &moved, err));
        if (moved)
            continue;
        note_oldest(w);
        const enum dpt_status status = w->nccl ? dpt_nccl_comm_poll_any(w->nccl, -1, err)
                                               : dpt_comm_poll_any(w->comm, -1, err);
        if (status != DPT_OK && status != DPT_INPROGRESS)
            return status;
    }
    return DPT_OK;
}

static enum dpt_status job_tasks(struct dpt_comm_thread *thread, void *ctx, struct dpt_err *err)
{
    struct dpt_task_runner *w = ctx;
    w->comm = dpt_comm_thread_comm(thread);
    w->nccl = w->spec.device ? dpt_comm_thread_nccl(thread) : NULL;
    enum dpt_status status = run_tasks(w, err);
    (void)pthread_mutex_lock(&w->mutex);
    w->ended = true;
    (void)pthread_cond_broadcast(&w->cond);
    (void)pthread_mutex_unlock(&w->mutex);
    return status == DPT_OK && w->then ? w->spec.then(thread, w->spec.then_ctx, err) : status;
}

void dpt_task_runner_copy(struct dpt_task_runner *w, int first, int end)
{
    w->copy_first = first;
    w->copy_end = end;
}

/* Publishes the number of actions that are done or, on a device, posted. */
static void set_actions(struct dpt_task_runner *w, int actions)
{
    if (by_nccl(&w->spec)) {
        dpt_event_record(w->events[actions % EVENTS], w->spec.stream);
        atomic_store_explicit(&w->set_at[actions % EVENTS], actions, memory_order_relaxed);
    }
    atomic_store_explicit(&w->actions, actions, memory_order_release);
}

void dpt_task_runner_begin(struct dpt_task_runner *w, const struct dpt_step_list *list,
                           bool skip_gathers, bool then)
{
    DPT_ASSERT(list->n_tasks <= w->n_tasks_max && (!then || w->spec.then));
    w->list = list;
    w->skip_gathers = skip_gathers;
    w->then = then;
    w->next = w->oldest = 0;
    memset(w->turn, 0, sizeof w->turn);
    memset(w->n_arrived, 0, sizeof w->n_arrived);
    w->ended = false;
    memset(w->state, WAITING, (size_t)list->n_tasks);
    for (int i = 0; i < w->window; i++)
        w->running[i].in = w->running[i].out = NULL; /* an aborted step left these */
    for (int i = 0; i < EVENTS; i++)
        atomic_store_explicit(&w->set_at[i], -1, memory_order_relaxed);
    set_actions(w, 0);
    w->posted = w->spec.world_size > 1 && (list->n_tasks > 0 || then);
    if (w->posted)
        dpt_comm_thread_post(w->spec.thread, job_tasks, w);
}

enum dpt_status dpt_task_runner_advance(struct dpt_task_runner *w, int actions, struct dpt_err *err)
{
    if (w->list->n_tasks == 0)
        return DPT_OK;
    if (!w->spec.device) /* tasks on a device wait for its stream */
        DPT_TRY(dpt_stream_sync(w->spec.stream, err));
    set_actions(w, actions);
    if (w->spec.world_size > 1) {
        dpt_comm_thread_wake(w->spec.thread);
        return DPT_OK;
    }
    bool moved = true;
    while (moved)
        DPT_TRY(move_tasks(w, &moved, err));
    return DPT_OK;
}

/* The job ended before the awaited tasks: returns the job's error. */
static enum dpt_status tell_failure(struct dpt_task_runner *w, struct dpt_err *err)
{
    if (!w->posted)
        return dpt_fail(err, DPT_EINVAL, "a task of the step is awaited that no job carries out");
    w->posted = false;
    const enum dpt_status status = dpt_comm_thread_wait(w->spec.thread, err);
    DPT_ASSERT(status != DPT_OK);
    return status;
}

enum dpt_status dpt_task_runner_await(struct dpt_task_runner *w, int first, int n, bool done,
                                      struct dpt_err *err)
{
    const uint8_t enough = done ? DONE : ARRIVED;
    const int64_t from = dpt_now_ns(), began_ns = n > 0 ? dpt_trace_begin() : 0;
    bool there = true;
    if (w->spec.world_size == 1)
        DPT_TRY(dpt_task_runner_advance(w, atomic_load(&w->actions), err));
    (void)pthread_mutex_lock(&w->mutex);
    w->awaited = true;
    for (int i = first; there && i < first + n; i++) {
        while (w->state[i] < enough && !w->ended && w->posted)
            (void)pthread_cond_wait(&w->cond, &w->mutex);
        there = w->state[i] >= enough;
    }
    w->awaited = false;
    (void)pthread_mutex_unlock(&w->mutex);
    if (w->posted)
        dpt_comm_thread_add_wait(w->spec.thread, dpt_now_ns() - from);
    dpt_trace_end_named(began_ns, "wait for transfers");
    return there ? DPT_OK : tell_failure(w, err);
}

enum dpt_status dpt_task_runner_end(struct dpt_task_runner *w, struct dpt_err *err)
{
    if (!w->posted)
        return dpt_task_runner_await(w, 0, w->list->n_tasks, true, err);
    w->posted = false;
    return dpt_comm_thread_wait(w->spec.thread, err);
}
