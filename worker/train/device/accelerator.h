/* The model on a device whose memory is not the host's.
 *
 * For a rank that keeps its state on the host (strategy.offload: optimizer) strategies see nothing
 * of it: they make weights and fold gradients in memory of the host, as on the CPU. Here each
 * unit's weights go to the device once a step, before its first use, and stay there; gradients come
 * back unit by unit as backward goes, and are written, or added, where the slot says, with the bits
 * of the ops' contract (old + contribution). So every strategy, order of addition and way to
 * recover works with a device, and its runs have one trajectory for one kind of device.
 *
 * For a rank whose strategy keeps the state on the device (dpt_strategy_env.resident) a slot's
 * weights and gradients are there already, and only samples and losses come and go.
 *
 * Samples that have lengths of their own are padded to the longest that may come, so that all slots
 * have the shape that was prepared: a library's kernel that first runs in a step may wait for
 * transfers that wait for it, and a graph has one shape.
 *
 * Memory of the device: the weights in the compute dtype, a slot's gradients (f32), activations and
 * scratch of one micro-batch. Of the host, page-locked: a stager (kernels/stager.h), a micro-batch
 * and the largest unit's gradients. With a resident state: activations and scratch alone, and of
 * the host no gradients.
 *
 * One thread uses it at a time, the one that computes. Calls that return a status sync the device's
 * stream; its errors come out of them. */
#ifndef DPT_WORKER_TRAIN_DEVICE_ACCELERATOR_H
#define DPT_WORKER_TRAIN_DEVICE_ACCELERATOR_H

#include "kernels/stager.h"
#include "worker/model/model.h"

struct dpt_accelerator;

struct dpt_accelerator_options {
    struct dpt_device *device; /* owned by the accelerator from here on, also when create fails */
    const struct dpt_model *model;
    struct dpt_stream *host_stream;     /* whose workers copy; the main thread's, borrowed */
    struct dpt_account *host;           /* counts page-locked memory; borrowed; NULL: not counted */
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

/* For a state that is kept there. The stream is the accelerator's own: what is posted to it runs in
 * turn with the model. */
struct dpt_device *dpt_accelerator_device(const struct dpt_accelerator *a);
struct dpt_stream *dpt_accelerator_stream(const struct dpt_accelerator *a);
/* Its own, between that stream and host_stream. */
struct dpt_stager *dpt_accelerator_stager(const struct dpt_accelerator *a);

/* Before a generation: what was captured of the last one goes, when its last step is through. */
DPT_MUST_USE enum dpt_status dpt_accelerator_begin_generation(struct dpt_accelerator *a,
                                                              struct dpt_err *err);

/* The weights on the host are others now: before each step, and before an evaluation. */
void dpt_accelerator_forget_weights(struct dpt_accelerator *a);

/* A slot as for dpt_model_forward, all of it memory of the host, but for weights and gradients with
 * a resident state; saved, scratch and packed are not read. The batch, as dpt_batch_at lays it, is
 * taken by begin_slot, weights of a unit by its first forward since forget_weights, so they must be
 * there then; backward takes none. */
void dpt_accelerator_begin_slot(struct dpt_accelerator *a, const struct dpt_slot *slot);
void dpt_accelerator_forward(struct dpt_accelerator *a, int unit, const struct dpt_slot *slot);
/* Writes the unit's gradients to the host with `ops` on `stream` (the host's) and announces them;
 * with a resident state they are announced as they are posted, or, as a graph, when all are. */
DPT_MUST_USE enum dpt_status dpt_accelerator_backward(struct dpt_accelerator *a,
                                                      const struct dpt_ops *ops,
                                                      struct dpt_stream *stream, int unit,
                                                      const struct dpt_slot *slot,
                                                      struct dpt_err *err);
/* The losses are in slot->losses when it returns; they come quickest where that is page-locked
 * (dpt_device_alloc_host of the device). */
DPT_MUST_USE enum dpt_status dpt_accelerator_end_slot(struct dpt_accelerator *a,
                                                      const struct dpt_slot *slot,
                                                      struct dpt_err *err);

#endif
