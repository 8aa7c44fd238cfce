/* A rank's memory, streams and kernels: those of the host and, with cluster.device: cuda, those of
 * the device that computes the model. Main thread. */
#ifndef DPT_WORKER_TRAIN_DEVICE_RANK_DEVICE_H
#define DPT_WORKER_TRAIN_DEVICE_RANK_DEVICE_H

#include "base/memory_log.h"
#include "kernels/op_times.h"
#include "worker/train/device/device_model.h"
#include "worker/train/device/frozen_base.h"
#include "worker/train/state/rooms.h"

#include <jansson.h>

struct rank_device {
    struct dpt_account memory; /* all large allocations on the host */
    struct dpt_account device_memory;
    /* Memory of the process before these allocations. */
    int64_t memory_at_start;
    int64_t memory_first; /* bytes of `memory` after the first step */
    struct dpt_device *host;
    const struct dpt_ops *ops;      /* ops of the host */
    struct dpt_stream *stream;      /* stream of the main thread on the host */
    struct dpt_stream *comm_stream; /* the communication thread's on the host */
    /* The communication thread's stream on the GPU; NULL: no NCCL. */
    struct dpt_stream *device_comm_stream;
    struct dpt_device_model *device_model; /* NULL: the host computes the model */
    struct dpt_frozen_base *base;          /* frozen weights under adapters; NULL: no adapters */
    char fingerprint[DPT_FINGERPRINT_BYTES];
    int threads; /* threads of `stream` in this generation */
    /* Most threads of `stream`, and the number of threads whose memory is prepared. */
    int threads_max, threads_prepared;
    int threads_told;                       /* number of threads logged last; 0: none */
    int64_t unit_offset[DPT_UNITS_MAX + 1]; /* the offsets of r->grid */
    void *saved, *scratch; /* activations of a micro-batch; NULL when the device has them */
    size_t saved_bytes, scratch_bytes;
    float *losses; /* [micro_batch * form.losses] of a micro-batch */
    float *right;  /* [micro_batch] of a micro-batch of an evaluation with labels; else NULL */
    struct {
        bool begun;
        int64_t steps;                    /* steps after the first, repeated ones included */
        struct dpt_op_times host, device; /* times at the end of the first step */
    } op_times;
};

/* rank_device.c. Called in this order. rank_open_host opens the host's device and streams and makes
 * the model and its grid; DPT_ENOMEM as for rank_check_memory. */
DPT_MUST_USE enum dpt_status rank_open_host(struct dpt_rank *r, struct dpt_err *err);
/* Opens the device that computes, its communication, and the frozen base of adapters. */
DPT_MUST_USE enum dpt_status rank_open_device(struct dpt_rank *r, struct dpt_err *err);
DPT_MUST_USE enum dpt_status rank_create_strategy(struct dpt_rank *r, struct dpt_err *err);
/* Allocates the memory of a micro-batch. */
DPT_MUST_USE enum dpt_status rank_make_buffers(struct dpt_rank *r, struct dpt_err *err);
/* Called after the strategy was destroyed. */
void rank_close_device(struct dpt_rank *r);

/* compute.c. Makes a slot with the memory and the frozen base of this rank. */
struct dpt_slot rank_slot(const struct dpt_rank *r, enum dpt_mode mode);
/* Copies the slot's batch to the device that computes. */
void rank_begin_slot(struct dpt_rank *r, const struct dpt_slot *slot);
void rank_forward(struct dpt_rank *r, int unit, const struct dpt_slot *slot);
DPT_MUST_USE enum dpt_status rank_backward(struct dpt_rank *r, int unit,
                                           const struct dpt_slot *slot, struct dpt_err *err);
/* Waits until a micro-batch is finished and its losses are here. */
DPT_MUST_USE enum dpt_status rank_end_slot(struct dpt_rank *r, const struct dpt_slot *slot,
                                           struct dpt_err *err);
/* Called when the weights have changed: before each step and each evaluation. */
void rank_forget_weights(struct dpt_rank *r);
/* Reserves the host memory for one micro-batch, so that steps allocate nothing. */
DPT_MUST_USE enum dpt_status rank_prepare_ops(struct dpt_rank *r, struct dpt_err *err);

/* traced_host.c. rank_trace_host: if this rank has a recorder, its host passes ops, allocations and
 * releases to it from here on; called before the host's first stream. rank_sample_memory: records
 * the bytes of each kind of memory, in a window. */
void rank_trace_host(struct dpt_rank *r);
void rank_sample_memory(const struct dpt_rank *r);

/* share_cores.c. Makes the main thread's stream on the host. */
DPT_MUST_USE enum dpt_status rank_open_stream(struct dpt_rank *r, struct dpt_err *err);
/* All ranks of the generation call this together. Exchanges the cores of the ranks. From here on
 * each rank computes with its share, and knows the demand of all ranks of the host. */
DPT_MUST_USE enum dpt_status rank_share_cores(struct dpt_rank *r, struct dpt_err *err);

/* memory_check.c. rank_check_memory: DPT_ENOMEM if a rank does not fit into this machine in any
 * world of this run; the text has the need, the available memory and the keys that lower the need.
 * rank_explain_memory adds such a text to a failed allocation (`status` DPT_ENOMEM). */
DPT_MUST_USE enum dpt_status rank_check_memory(const struct dpt_rank *r, struct dpt_err *err);
void rank_explain_memory(enum dpt_status status, struct dpt_err *err);

/* numa_bind.c. Binds the calling thread, and the threads that it starts, to the cores of a NUMA
 * node, and logs this. The node is that of the rank's GPU or, for a rank without a GPU, the rank's
 * share of the machine's nodes (cluster.numa). No rank of this machine is bound if the NUMA nodes
 * are unknown, if there is only one, if a CPU quota is below the machine's cores, or if a rank
 * would have fewer cores than without binding. `sys`: DPT_NUMA_SYS. Called before the rank starts
 * threads. */
void dpt_rank_bind_numa(const struct dpt_rank_start *start, const struct dpt_config *config,
                        const char *sys);

/* record_file.c. Writes the object to node-NODE/rank-LOCAL.KIND.json in log.dir. Takes the object.
 * An error is logged. */
void rank_write_record(const struct dpt_rank *r, const char *kind, json_t *object);

/* rank_memory.c. rank_open_memory is called before the first allocation; it makes the logs of
 * allocations that a snapshot (log.memory_snapshot) needs. rank_close_memory: after the last
 * release. rank_note_memory and rank_write_memory are called by rank_records.c: after a step, and
 * at the end of the run. */
DPT_MUST_USE enum dpt_status rank_open_memory(struct dpt_rank *r, struct dpt_err *err);
void rank_close_memory(struct dpt_rank *r);
void rank_note_memory(struct dpt_rank *r);
void rank_write_memory(struct dpt_rank *r);

/* rank_records.c. rank_note_step is called after each step of this process. rank_write_records
 * writes the files of this rank at the end of the run. An error is logged, and the run continues.
 */
void rank_note_step(struct dpt_rank *r);
void rank_write_records(struct dpt_rank *r);

#endif
