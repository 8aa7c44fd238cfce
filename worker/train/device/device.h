/* The room of a rank's memory, streams and kernels: the host, and the device that computes the
 * model with cluster.device: cuda. Main thread. */
#ifndef DPT_WORKER_TRAIN_DEVICE_DEVICE_H
#define DPT_WORKER_TRAIN_DEVICE_DEVICE_H

#include "kernels/op_times.h"
#include "worker/train/device/accelerator.h"
#include "worker/train/device/frozen_base.h"
#include "worker/train/state/rooms.h"

struct rank_device {
    struct dpt_account memory; /* all large allocations on the host */
    struct dpt_account accelerator_memory;
    int64_t memory_at_start; /* of the process, before them */
    int64_t memory_first;    /* of `memory`, after the first step */
    struct dpt_device *host;
    const struct dpt_ops *ops;           /* of the host */
    struct dpt_stream *stream;           /* of the main thread on the host */
    struct dpt_stream *comm_stream;      /* of the communication thread on the host */
    struct dpt_stream *gpu_comm_stream;  /* of the communication thread on the GPU; NULL: no NCCL */
    struct dpt_accelerator *accelerator; /* computes the model; NULL: the host does */
    struct dpt_base *base;               /* frozen weights under adapters; NULL: no adapters */
    char fingerprint[DPT_FINGERPRINT_BYTES];
    int threads;                            /* of `stream` in this generation */
    int threads_max, threads_prepared;      /* most of `stream`; those whose memory is prepared */
    int threads_told;                       /* number that was logged last; 0: none */
    int64_t unit_offset[DPT_UNITS_MAX + 1]; /* memory of r->grid */
    void *saved, *scratch; /* activations of a micro-batch; NULL when the accelerator has them */
    size_t saved_bytes, scratch_bytes;
    float *losses; /* [micro_batch * form.losses] of a micro-batch */
    float *right;  /* [micro_batch] of a micro-batch of an evaluation with labels; else NULL */
    struct {
        bool begun;
        int64_t steps;                    /* after the first step, repeated ones included */
        struct dpt_op_times host, device; /* as of the first step */
    } op_times;
};

/* device.c, called in this order. rank_open_host opens the host's device and streams and makes the
 * model and its grid; DPT_ENOMEM as rank_check_memory. */
DPT_MUST_USE enum dpt_status rank_open_host(struct dpt_rank *r, struct dpt_err *err);
/* Opens the device that computes, its communication, and the frozen base. */
DPT_MUST_USE enum dpt_status rank_open_accelerator(struct dpt_rank *r, struct dpt_err *err);
DPT_MUST_USE enum dpt_status rank_create_strategy(struct dpt_rank *r, struct dpt_err *err);
/* Allocates the memory of a micro-batch. */
DPT_MUST_USE enum dpt_status rank_make_buffers(struct dpt_rank *r, struct dpt_err *err);
/* After the strategy was destroyed. */
void rank_close_device(struct dpt_rank *r);

/* compute.c. A slot with the memory and the frozen base of this rank. */
struct dpt_slot rank_slot(const struct dpt_rank *r, enum dpt_mode mode);
/* Copies the slot's batch to the device that computes. */
void rank_begin_slot(struct dpt_rank *r, const struct dpt_slot *slot);
void rank_forward(struct dpt_rank *r, int unit, const struct dpt_slot *slot);
DPT_MUST_USE enum dpt_status rank_backward(struct dpt_rank *r, int unit,
                                           const struct dpt_slot *slot, struct dpt_err *err);
/* Waits for the end of a micro-batch and its losses. */
DPT_MUST_USE enum dpt_status rank_end_slot(struct dpt_rank *r, const struct dpt_slot *slot,
                                           struct dpt_err *err);
/* The weights have changed: before each step and each evaluation. */
void rank_forget_weights(struct dpt_rank *r);
/* Reserves the host memory of one micro-batch, so that steps do not allocate. */
DPT_MUST_USE enum dpt_status rank_prepare_ops(struct dpt_rank *r, struct dpt_err *err);

/* threads.c. Makes the main thread's stream on the host. */
DPT_MUST_USE enum dpt_status rank_open_stream(struct dpt_rank *r, struct dpt_err *err);
/* With all ranks of the generation: exchanges the ranks' cores. Each rank computes with its share
 * from here on, and notes the demand of all ranks of the host. */
DPT_MUST_USE enum dpt_status rank_share_cores(struct dpt_rank *r, struct dpt_err *err);

/* memory_check.c. DPT_ENOMEM if a rank does not fit into this machine in any world of this run; the
 * text has the need, the available memory and the keys that lower the need. rank_explain_memory
 * adds this text to a failed allocation (`status` DPT_ENOMEM). */
DPT_MUST_USE enum dpt_status rank_check_memory(const struct dpt_rank *r, struct dpt_err *err);
void rank_explain_memory(enum dpt_status status, struct dpt_err *err);

/* numa_bind.c. Binds the calling thread, and the threads that it starts, to the cores of the NUMA
 * node of the rank's GPU or, for a rank without a GPU, of the NUMA node that is its share of the
 * machine (cluster.numa), and logs it. No rank of this machine is bound if the NUMA nodes are
 * unknown, if there is one, if a CPU quota is less than the machine, or if a rank would have fewer
 * cores than unbound. `sys`: DPT_NUMA_SYS. Called before the rank starts threads. */
void dpt_rank_bind(const struct dpt_rank_start *start, const struct dpt_config *config,
                   const char *sys);

/* records.c. rank_note_step: after each step of this process. rank_write_records writes the files
 * of this rank at the end of the run; an error is logged, and the run continues. */
void rank_note_step(struct dpt_rank *r);
void rank_write_records(const struct dpt_rank *r);

#endif
