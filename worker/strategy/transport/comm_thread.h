/* The thread that owns a rank's communicator.
 *
 * The main thread gives this thread one job at a time (build the communicator, heal a joiner,
 * reduce a step, gather the outcome) and goes on computing. Only jobs use the communicator, so the
 * thread that owns it is always the thread that ends and frees it. Any thread may call
 * dpt_comm_thread_abort in any state, also while the communicator is created. */
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

/* Loads NCCL's functions; *ret_ctx is their context. */
typedef enum dpt_status (*dpt_comm_load_nccl)(void *ctx, const struct dpt_nccl_calls **ret,
                                              void **ret_ctx, struct dpt_err *err);

/* For ranks that compute on GPUs; call it before the first arm. With `load` each generation has a
 * second communicator from here on: NCCL's, on the GPU `device` (nccl_comm.h), which opens and ends
 * together with the first. `load` is called in the first generation of several ranks; an error of
 * `load` is an error of that generation. `load` NULL: gradients are sent through the hosts. A
 * generation in which some ranks use NCCL and others do not, for example ranks without a GPU, fails
 * with DPT_ECONFIG. All pointers are borrowed for the thread's life. timeout_ms bounds the creation
 * and the end of NCCL's communicator. */
void dpt_comm_thread_set_device(struct dpt_comm_thread *thread, dpt_comm_load_nccl load, void *ctx,
                                struct dpt_device *device, int timeout_ms);

/* Sets the NCCL groups, beside the world, of the generations that follow: `places` [n] are this
 * rank's places in them (nccl_form.h). `n` is equal on all ranks. At first there are no groups.
 * Called by the main thread while no communicator is open. */
void dpt_comm_thread_set_groups(struct dpt_comm_thread *thread,
                                const struct dpt_nccl_split_of *places, int n);

/* Aborts a job that still runs, frees the communicator if there is one, and joins the thread. */
void dpt_comm_thread_destroy(struct dpt_comm_thread **thread);

/* Forgets the abort of the last generation; there must be no communicator (dpt_comm_thread_close).
 * An abort after this call ends the next generation. So the caller arms, then checks whether that
 * generation is still wanted, then opens. By the main thread. */
void dpt_comm_thread_arm(struct dpt_comm_thread *thread);

/* Builds the communicator of a generation, after arm. Blocks until it is built, failed or aborted
 * (bounded by spec->timeout_ms). With world_size 1 there is no communicator, and
 * dpt_comm_thread_comm returns NULL. By the main thread. */
DPT_MUST_USE enum dpt_status dpt_comm_thread_open(struct dpt_comm_thread *thread,
                                                  const struct dpt_comm_spec *spec,
                                                  struct dpt_err *err);

/* Aborts a running job and frees the communicator. Without an error or abort it first waits until
 * the peers have received everything that was sent to them, or a peer dies, or an abort comes. By
 * the main thread; no effect without a communicator. */
void dpt_comm_thread_close(struct dpt_comm_thread *thread);

/* dpt_comm_thread_post: gives the thread a job; the caller must have waited for the job before.
 * dpt_comm_thread_wait: waits for the job and returns its status and error. By the main thread. */
void dpt_comm_thread_post(struct dpt_comm_thread *thread, dpt_comm_job job, void *ctx);
DPT_MUST_USE enum dpt_status dpt_comm_thread_wait(struct dpt_comm_thread *thread,
                                                  struct dpt_err *err);

/* Post and wait. */
DPT_MUST_USE enum dpt_status dpt_comm_thread_run(struct dpt_comm_thread *thread, dpt_comm_job job,
                                                 void *ctx, struct dpt_err *err);

/* The status and error of the posted job if it has ended with an error: there is no use in
 * computing for it. Otherwise DPT_OK; does not wait. Any thread. */
DPT_MUST_USE enum dpt_status dpt_comm_thread_check(struct dpt_comm_thread *thread,
                                                   struct dpt_err *err);

/* Aborts the communicator, or its creation. A posted job ends with DPT_EABORTED. The abort holds
 * until the next dpt_comm_thread_arm. Any thread. */
void dpt_comm_thread_abort(struct dpt_comm_thread *thread);

/* The cost of communication since the thread was made. The cost of a step is the difference of two
 * accounts, taken after a commit, when all of the step's jobs have ended. */
struct dpt_comm_account {
    int64_t waited_ns; /* the main thread's waits for jobs and parts of jobs */
    /* As dpt_comm_bytes_sent counts, over all communicators and NCCL's, by the jobs that have
     * ended; opening does not count. */
    uint64_t bytes_sent;
};
void dpt_comm_thread_account(struct dpt_comm_thread *thread, struct dpt_comm_account *ret);
/* Adds the time of a wait for a part of a job, for callers that wait by other means than
 * dpt_comm_thread_wait. */
void dpt_comm_thread_add_wait(struct dpt_comm_thread *thread, int64_t ns);

/* Wakes a job that waits in dpt_comm_poll, because there is more to do. Any thread. */
void dpt_comm_thread_wake(struct dpt_comm_thread *thread);

/* Inside a job: the communicator (NULL at world size 1), and NCCL's communicator (NULL: not
 * used). */
struct dpt_comm *dpt_comm_thread_comm(struct dpt_comm_thread *thread);
struct dpt_nccl_comm *dpt_comm_thread_nccl(struct dpt_comm_thread *thread);

/* The rank suspected of the last failure; -1: unknown. By the main thread after a failed open or
 * wait. */
int dpt_comm_thread_suspect(const struct dpt_comm_thread *thread);

#endif
