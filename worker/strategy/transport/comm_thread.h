/* The thread that owns a rank's communicator.
 *
 * The main thread hands it one job at a time (build the communicator, heal a joiner, reduce a step,
 * gather the outcome) and goes on computing; the job is the only code that touches the
 * communicator, so the thread that owns it is always the one that aborts and frees it.
 * dpt_comm_thread_abort works from every thread and in every state, creation included. */
#ifndef DPT_WORKER_STRATEGY_TRANSPORT_COMM_THREAD_H
#define DPT_WORKER_STRATEGY_TRANSPORT_COMM_THREAD_H

#include "kernels/device.h"
#include "worker/comm/comm.h"
#include "worker/comm/nccl_form.h"

#include <stdbool.h>

struct dpt_comm_thread;
struct dpt_nccl_comm;

typedef enum dpt_status (*dpt_comm_job)(struct dpt_comm_thread *thread, void *ctx,
                                        struct dpt_err *err);

/* Starts the thread; `listener` is borrowed for its life. */
DPT_MUST_USE enum dpt_status dpt_comm_thread_create(struct dpt_comm_listener *listener,
                                                    struct dpt_comm_thread **ret,
                                                    struct dpt_err *err);

/* Where NCCL's calls come from; the last argument is their context. */
typedef enum dpt_status (*dpt_comm_load_nccl)(void *ctx, const struct dpt_nccl_calls **ret,
                                              void **ret_ctx, struct dpt_err *err);

/* For ranks that compute on GPUs, before the first arm. With `load` the communicators of each
 * generation are two from here on: NCCL's, of the GPU `device`, opens and ends with the one that
 * there is anyway (nccl_comm.h). It is asked for the calls in the first generation of several
 * ranks; what it fails with is that generation's failure. NULL: gradients go through the hosts. A
 * generation whose ranks differ in that, those without a GPU included, is DPT_ECONFIG. All borrowed
 * for the thread's life. timeout_ms: of NCCL's creation, and of its end. */
void dpt_comm_thread_set_gpu(struct dpt_comm_thread *thread, dpt_comm_load_nccl load, void *ctx,
                             struct dpt_device *device, int timeout_ms);

/* The groups of NCCL's beside the world that the generations to come have, which are equally many
 * on every rank: this rank's places (nccl_form.h). At first there are none. By the main thread,
 * while nothing is open. */
void dpt_comm_thread_set_groups(struct dpt_comm_thread *thread,
                                const struct dpt_nccl_split_of *places, int n);

/* Frees the communicator if there is one, joins. Aborts a job that still runs. */
void dpt_comm_thread_destroy(struct dpt_comm_thread **thread);

/* Forgets the abort of the last generation; there must be no communicator (dpt_comm_thread_close).
 * What aborts after this call hits the generation to come: arm, look whether that generation is
 * still wanted, then open. By the main thread. */
void dpt_comm_thread_arm(struct dpt_comm_thread *thread);

/* Builds the communicator of a generation, after arm. Blocks the caller until built, failed or
 * aborted (bounded by spec->timeout_ms). With world_size 1 there is none, and dpt_comm_thread_comm
 * is NULL. By the main thread. */
DPT_MUST_USE enum dpt_status dpt_comm_thread_open(struct dpt_comm_thread *thread,
                                                  const struct dpt_comm_spec *spec,
                                                  struct dpt_err *err);

/* Ends a running job by abort, frees the communicator. When nothing is wrong the goodbye is
 * orderly: it waits until the peers have received what was sent to them, they die, or an abort
 * comes. By the main thread; no effect when there is none. */
void dpt_comm_thread_close(struct dpt_comm_thread *thread);

/* Posts a job (the former one must have been waited for) / waits for it and returns its status and
 * error. By the main thread. */
void dpt_comm_thread_post(struct dpt_comm_thread *thread, dpt_comm_job job, void *ctx);
DPT_MUST_USE enum dpt_status dpt_comm_thread_wait(struct dpt_comm_thread *thread,
                                                  struct dpt_err *err);

/* Post and wait. */
DPT_MUST_USE enum dpt_status dpt_comm_thread_run(struct dpt_comm_thread *thread, dpt_comm_job job,
                                                 void *ctx, struct dpt_err *err);

/* True when the posted job has ended with an error, so that computing for it is in vain. Any
 * thread. */
bool dpt_comm_thread_failed(struct dpt_comm_thread *thread);

/* Aborts the communicator, or its creation; what is posted ends with DPT_EABORTED. Holds until the
 * next open. Any thread. */
void dpt_comm_thread_abort(struct dpt_comm_thread *thread);

/* What communication has cost since the thread was made: for a step's share take differences
 * (after its commit, by which all of the step's jobs have ended). */
struct dpt_comm_account {
    int64_t waited_ns;   /* the main thread, for jobs and parts of them */
    uint64_t bytes_sent; /* as dpt_comm_bytes_sent counts, over all communicators, NCCL's too, by
                            the jobs that have ended; opening is not counted */
};
void dpt_comm_thread_account(struct dpt_comm_thread *thread, struct dpt_comm_account *ret);
/* Adds a wait for a part of a job, which the job's maker waits for by its own means. */
void dpt_comm_thread_add_wait(struct dpt_comm_thread *thread, int64_t ns);

/* Wakes a job that waits in dpt_comm_poll: there is more to do. Any thread. */
void dpt_comm_thread_wake(struct dpt_comm_thread *thread);

/* Inside a job: the communicator (NULL at world size 1), and NCCL's, where it is used. */
struct dpt_comm *dpt_comm_thread_comm(struct dpt_comm_thread *thread);
struct dpt_nccl_comm *dpt_comm_thread_nccl(struct dpt_comm_thread *thread);

/* The rank suspected of the last failure; -1: unknown. By the main thread after a failed open or
 * wait. */
int dpt_comm_thread_suspect(const struct dpt_comm_thread *thread);

#endif
