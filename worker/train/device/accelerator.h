/* The model on a device whose memory is not the host's.
 *
 * State on the host (strategy.offload: optimizer): strategies make weights and add gradients in
 * memory of the host, as on the CPU. Each unit's weights are copied to the device once a step,
 * before their first use. Gradients are copied back unit by unit during backward, and are written
 * or added as the slot says, with the bits of the ops' contract (old + contribution). So every
 * strategy, order of addition and recovery works with a device, and one kind of device has one
 * trajectory.
 *
 * State on the device (dpt_strategy_env.resident): a slot's weights and gradients are there, and
 * only samples and losses are copied.
 *
 * Samples of different lengths are padded to the largest length, so that all slots have the
 * prepared shape: a library's kernel that first runs in a step may wait for transfers that wait for
 * it, and a graph has one shape.
 *
 * Memory of the device: the weights in the compute dtype, a slot's gradients (f32), activations and
 * scratch of one micro-batch. Of the host, page-locked: a stager (kernels/stager.h), a micro-batch
 * and the largest unit's gradients. With a resident state there are no copies of weights and
 * gradients.
 *
 * Only the thread that computes uses it. Calls that return a status sync the device's stream and
 * return its errors. */
#ifndef DPT_WORKER_TRAIN_DEVICE_ACCELERATOR_H
#define DPT_WORKER_TRAIN_DEVICE_ACCELERATOR_H

#include "kernels/stager.h"
#include "worker/model/model.h"

struct dpt_accelerator;

struct dpt_accelerator_options {
    struct dpt_device *device; /* taken, also if create fails */
    const struct dpt_model *model;
    struct dpt_stream *host_stream;     /* of the main thread; its workers copy; borrowed */
    struct dpt_account *host;           /* counts page-locked memory; borrowed */
    const struct dpt_sample_form *form; /* of the samples; borrowed */
    int64_t b;                          /* samples of a micro-batch */
    bool evaluates;
    bool graphs;   /* units are launched as graphs (unit_graphs.h) */
    bool resident; /* slots have their weights and gradients on the device */
};

/* Allocates all memory, counted into the device's account, and prepares the ops. */
DPT_MUST_USE enum dpt_status dpt_accelerator_create(const struct dpt_accelerator_options *options,
                                                    struct dpt_accelerator **ret,
                                                    struct dpt_err *err);
void dpt_accelerator_destroy(struct dpt_accelerator **a);

/* For a state on the device. The stream is the accelerator's: work posted to it runs in order with
 * the model. */
struct dpt_device *dpt_accelerator_device(const struct dpt_accelerator *a);
struct dpt_stream *dpt_accelerator_stream(const struct dpt_accelerator *a);
/* The accelerator's stager, between its stream and host_stream. */
struct dpt_stager *dpt_accelerator_stager(const struct dpt_accelerator *a);

/* Before a generation: waits for the last step and drops the captured graphs. */
DPT_MUST_USE enum dpt_status dpt_accelerator_begin_generation(struct dpt_accelerator *a,
                                                              struct dpt_err *err);

/* The weights on the host have changed: before each step, and before an evaluation. */
void dpt_accelerator_forget_weights(struct dpt_accelerator *a);

/* A slot as for dpt_model_forward, in memory of the host, except weights and gradients of a
 * resident state; saved, scratch and packed are not read. begin_slot copies the batch, which is as
 * dpt_batch_at lays it out. A unit's first forward since forget_weights copies its weights;
 * backward copies none.
 */
void dpt_accelerator_begin_slot(struct dpt_accelerator *a, const struct dpt_slot *slot);
void dpt_accelerator_forward(struct dpt_accelerator *a, int unit, const struct dpt_slot *slot);
/* Writes the unit's gradients to the host with `ops` on `stream` (the host's) and announces them.
 * With a resident state each is announced when it is posted or, with graphs, when all are posted.
 */
DPT_MUST_USE enum dpt_status dpt_accelerator_backward(struct dpt_accelerator *a,
                                                      const struct dpt_ops *ops,
                                                      struct dpt_stream *stream, int unit,
                                                      const struct dpt_slot *slot,
                                                      struct dpt_err *err);
/* Copies the losses to slot->losses and waits for them; fastest if slot->losses is page-locked
 * (dpt_device_alloc_host of the device). */
DPT_MUST_USE enum dpt_status dpt_accelerator_end_slot(struct dpt_accelerator *a,
                                                      const struct dpt_slot *slot,
                                                      struct dpt_err *err);

#endif
