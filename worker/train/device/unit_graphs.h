/* A model's units as graphs of a device (CUDA graphs): the ops of a unit's forward or backward are
 * captured once and then launched as one graph, slot after slot.
 *
 * A graph has its arguments in it, so there is one for each set of them: which unit and direction,
 * where its weights and gradients lie, whether it adds, and, of the head, the loss's factor, which
 * changes with train.loss_scale's adjustments. All else that a unit looks at is the same for all
 * slots, but for what dropout draws: with dropout there are no graphs.
 * A set is met for the first time without one, so that what comes once is not made into one. Places
 * change with the generation, and graphs go with it.
 *
 * An error in making a graph is told once and costs speed only: no graphs are made after it.
 * All by the thread that computes. */
#ifndef DPT_WORKER_TRAIN_DEVICE_UNIT_GRAPHS_H
#define DPT_WORKER_TRAIN_DEVICE_UNIT_GRAPHS_H

#include "worker/model/model.h"

struct dpt_unit_graphs;

/* Whether graphs serve this model on this device. */
bool dpt_unit_graphs_serve(const struct dpt_config *config, const struct dpt_device *device);

/* All borrowed. */
DPT_MUST_USE enum dpt_status dpt_unit_graphs_create(const struct dpt_model *model,
                                                    struct dpt_device *device,
                                                    struct dpt_stream *stream,
                                                    struct dpt_unit_graphs **ret,
                                                    struct dpt_err *err);
void dpt_unit_graphs_destroy(struct dpt_unit_graphs **graphs);

/* Drops all graphs. With nothing in the stream. */
void dpt_unit_graphs_forget(struct dpt_unit_graphs *graphs);

/* Parameters that a backward announced, which does so in descending order. */
struct dpt_announced {
    int first, last; /* first > last: none */
};
/* An announce of dpt_slot with a struct dpt_announced as its context. */
void dpt_announced_note(void *announced, int param);

/* dpt_model_forward; dpt_model_backward, which announces nothing: *ret are the parameters that are
 * complete when what was posted is done, for the caller to announce. Every slot has the same batch,
 * saved, scratch, losses, b and t. */
void dpt_unit_graphs_forward(struct dpt_unit_graphs *graphs, int unit, const struct dpt_slot *slot);
void dpt_unit_graphs_backward(struct dpt_unit_graphs *graphs, int unit, const struct dpt_slot *slot,
                              struct dpt_announced *ret);

#endif
