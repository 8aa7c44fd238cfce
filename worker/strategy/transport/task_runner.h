/* Carries out a step's tasks (worker/plan/step_list.h) on the communication thread, while the main
 * thread carries out the actions.
 *
 * Tasks are posted in order, each when the main thread has done the number of actions that the task
 * names, and a bounded number is under way at once. When a task has received everything, the
 * `arrived` function of its kind runs: for gradients (SCATTER, CROSS) in the order of the tasks of
 * their kind, for other kinds in the order of arrival. In a world of one the main thread carries
 * out the tasks itself. Nothing is allocated in a step.
 *
 * If the tasks' memory is a device's, each task is one NCCL operation (nccl_comm.h). The operation
 * waits on the device for the work that the main thread posted up to the actions that the task
 * names. The main thread does not wait for this work. */
#ifndef DPT_WORKER_STRATEGY_TRANSPORT_TASK_RUNNER_H
#define DPT_WORKER_STRATEGY_TRANSPORT_TASK_RUNNER_H

#include "worker/plan/step_list.h"
#include "worker/strategy/transport/comm_thread.h"
#include "worker/trace/span.h"

/* The transfers of a task: `in` has room for xfers_max (of the task runner's spec) transfers of
 * kind RECV and LEND, `out` for xfers_max of kind SEND. In a device's memory `buf` is the first
 * byte of each transfer; for LEND it is the staging memory. */
struct dpt_task_transfers {
    struct dpt_comm_xfer *in, *out;
    int n_in, n_out;
    /* Number of tasks of this kind before it. Two tasks with the same turn modulo the spec's
     * `turns` are never under way together, and may use the same staging. */
    int turn;
};

/* The functions of a kind of task. */
struct dpt_task_handler {
    /* Fills in the transfers, which are empty before. */
    void (*post)(void *ctx, const struct dpt_task *task, struct dpt_task_transfers *transfers);
    /* Called when all of `in` has arrived; lent memory is given back afterwards. NULL: nothing to
     * do. */
    enum dpt_status (*arrived)(void *ctx, const struct dpt_task *task,
                               const struct dpt_task_transfers *transfers, struct dpt_err *err);
    /* Bytes that the task sends from this rank to the rank at another position. NULL: an ordinary
     * step has no tasks of this kind, and their bytes are not counted. */
    int64_t (*bytes_to)(const void *ctx, const struct dpt_task *task, int position);
};

/* A kind of task in traces: the collective, its ranks, and the elements that it moves. */
struct dpt_task_label {
    enum dpt_trace_collective collective;
    const char *dtype; /* PyTorch's name */
    size_t width;      /* bytes of an element */
    struct dpt_trace_group group;
    int group_size;
};

struct dpt_task_runner_spec {
    struct dpt_comm_thread *thread;
    int world_size;
    int xfers_max; /* most transfers of a task in one direction */
    /* The device that has the memory, and its streams of the main and the communication thread;
     * NULL: the host has it, or there are no tasks. With tasks, `stream` is then the main thread's
     * stream on the host. */
    struct dpt_device *device;
    struct dpt_stream *stream, *comm_stream;
    const struct dpt_task_handler *const *handlers; /* [DPT_TASK_COUNT] */
    int turns[DPT_TASK_COUNT];                      /* 0: no bound */
    int group[DPT_TASK_COUNT];                      /* NCCL group of the transfers; 0: the world */
    struct dpt_task_label label[DPT_TASK_COUNT];
    void *ctx;
    /* Work of the same step that follows the tasks on the communication thread; NULL: none. */
    dpt_comm_job then;
    void *then_ctx;
};

struct dpt_task_runner;

/* Made for one generation, before its communicator is opened. A list has at most n_tasks_max
 * tasks. */
DPT_MUST_USE enum dpt_status dpt_task_runner_create(const struct dpt_task_runner_spec *spec,
                                                    int n_tasks_max, struct dpt_task_runner **ret,
                                                    struct dpt_err *err);
/* After the communicator was closed. */
void dpt_task_runner_destroy(struct dpt_task_runner **runner);

/* The main thread calls this function and those below. Begins a list, which is borrowed until
 * dpt_task_runner_end. `then`: do the work that follows the tasks. skip_gathers: leave out the
 * tasks of kind GATHER; all ranks must pass the same value. */
void dpt_task_runner_begin(struct dpt_task_runner *runner, const struct dpt_step_list *list,
                           bool skip_gathers, bool then);

/* From the next list on, tasks of kind COPY are carried out for units [first, end) only; before the
 * first call for none. All ranks must set the same units. */
void dpt_task_runner_copy(struct dpt_task_runner *runner, int first, int end);

/* Tells that the main thread has done this number of actions. If the list has tasks and the host
 * has their memory, first waits for the main thread's stream. Does nothing without tasks. */
DPT_MUST_USE enum dpt_status dpt_task_runner_advance(struct dpt_task_runner *runner, int actions,
                                                     struct dpt_err *err);

/* Waits until tasks [first, first + n) have arrived. With `done` waits until they are over, so that
 * the memory that they send may be overwritten. Errors are the communicator's. */
DPT_MUST_USE enum dpt_status dpt_task_runner_await(struct dpt_task_runner *runner, int first, int n,
                                                   bool done, struct dpt_err *err);

/* Waits until all tasks, and the work that follows them, are over. */
DPT_MUST_USE enum dpt_status dpt_task_runner_end(struct dpt_task_runner *runner,
                                                 struct dpt_err *err);

#endif
