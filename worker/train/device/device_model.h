/* Computes the model on a device whose memory is not the host's.
 *
 * State on the host (strategy.offload: optimizer): strategies make weights and add gradients in the
 * host's memory, as on the CPU. The weights of each unit are copied to the device once a step,
 * before their first use. The gradients are copied back unit by unit during backward. On the
 * host they are written or added as the slot says, with the bits of the ops' contract (old +
 * contribution). So every strategy, order of addition and recovery works with a device, and one
 * kind of device has one trajectory.
 *
 * State on the device (dpt_strategy_env.state_device): a slot's weights and gradients are there,
 * and only samples and losses are copied.
 *
 * Samples of different lengths are padded to the largest length, so that all slots have the shape
 * for which the ops were prepared. There are two reasons: a library's kernel that first runs in a
 * step may wait for transfers that wait for this kernel, and a graph has one shape.
 *
 * Memory of the device: the weights in the compute dtype, a slot's gradients (f32), and activations
 * and scratch of one micro-batch. Page-locked memory of the host: a stager (kernels/stager.h), a
 * micro-batch and the gradients of the largest unit. With the state on the device there are no
 * copies of weights and gradients.
 *
 * Only the thread that computes uses the device model. Calls that return a status sync the device's
 * stream and return its errors. */
#ifndef DPT_WORKER_TRAIN_DEVICE_DEVICE_MODEL_H
#define DPT_WORKER_TRAIN_DEVICE_DEVICE_MODEL_H

#include "kernels/stager.h"
#include "worker/model/model.h"

struct dpt_device_model;

struct dpt_device_model_options {
    struct dpt_device *device; /* taken, even if create fails */
    const struct dpt_model *model;
    /* The main thread's stream, whose workers copy; borrowed. */
    struct dpt_stream *host_stream;
    struct dpt_account *host;           /* counts page-locked memory; borrowed */
    const struct dpt_sample_form *form; /* form of the samples; borrowed */
    int64_t b;                          /* number of samples of a micro-batch */
    bool evaluates;
    bool graphs;          /* units are launched as graphs (unit_graphs.h) */
    bool state_on_device; /* the weights and gradients of slots are on the device */
};

/* Allocates all memory, counted into the device's account, and prepares the ops. */
DPT_MUST_USE enum dpt_status dpt_device_model_create(const struct dpt_device_model_options *options,
                                                     struct dpt_device_model **ret,
                                                     struct dpt_err *err);
void dpt_device_model_destroy(struct dpt_device_model **a);

/* For a state on the device. Work posted to the device model's stream runs in order with the
 * model. */
struct dpt_device *dpt_device_model_device(const struct dpt_device_model *a);
struct dpt_stream *dpt_device_model_stream(const struct dpt_device_model *a);
/* The device model's stager, between its stream and host_stream. */
struct dpt_stager *dpt_device_model_stager(const struct dpt_device_model *a);

/* Before a generation: waits for the last step and drops the captured graphs. */
DPT_MUST_USE enum dpt_status dpt_device_model_begin_generation(struct dpt_device_model *a,
                                                               struct dpt_err *err);

/* Drops the captured graphs; later slots capture them again. The device model's stream is idle. */
void dpt_device_model_drop_graphs(struct dpt_device_model *a);

/* Marks the weights on the device as old. Called when the weights on the host have changed: before
 * each step, and before an evaluation. */
void dpt_device_model_forget_weights(struct dpt_device_model *a);

/* `slot` is a slot of dpt_model_forward, in the host's memory, except the weights and gradients of
 * a state on the device. Its saved, scratch and packed are not read. begin_slot copies the batch,
 * whose layout is that of dpt_batch_at. The first forward of a unit since forget_weights copies the
 * unit's weights; backward copies none. */
void dpt_device_model_begin_slot(struct dpt_device_model *a, const struct dpt_slot *slot);
void dpt_device_model_forward(struct dpt_device_model *a, int unit, const struct dpt_slot *slot);
/* Writes the unit's gradients to the host with `ops` on `stream` (both the host's) and announces
 * them. With the state on the device, each gradient is announced when its work is posted or, with
 * graphs, when all work is posted. */
DPT_MUST_USE enum dpt_status dpt_device_model_backward(struct dpt_device_model *a,
                                                       const struct dpt_ops *ops,
                                                       struct dpt_stream *stream, int unit,
                                                       const struct dpt_slot *slot,
                                                       struct dpt_err *err);
/* Copies the losses to slot->losses and waits for them. The copy is fastest if slot->losses is
 * page-locked (dpt_device_alloc_host of the device). */
DPT_MUST_USE enum dpt_status dpt_device_model_end_slot(struct dpt_device_model *a,
                                                       const struct dpt_slot *slot,
                                                       struct dpt_err *err);

#endif
