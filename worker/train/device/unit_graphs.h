/* A model's units as graphs of a device (CUDA graphs): the ops of a unit's forward or backward are
 * captured once and then launched as one graph in every slot.
 *
 * A graph contains its arguments, so each set of arguments has its own graph. The arguments are
 * unit and direction, addresses of weights and gradients, whether gradients are added, and for the
 * head the factor of the loss, which changes with the loss scale. All other arguments are equal in
 * all slots, except the random numbers of dropout: with dropout there are no graphs. A graph is
 * captured when its arguments come for the second time. Addresses change with the generation, so
 * graphs are dropped when a generation begins.
 *
 * If a graph cannot be made, the error is logged once and no further graph is made: the run is only
 * slower. Only the thread that computes calls these functions. */
#ifndef DPT_WORKER_TRAIN_DEVICE_UNIT_GRAPHS_H
#define DPT_WORKER_TRAIN_DEVICE_UNIT_GRAPHS_H

#include "worker/model/model.h"

struct dpt_unit_graphs;

/* Whether the config and the device allow graphs. */
bool dpt_unit_graphs_serve(const struct dpt_config *config, const struct dpt_device *device);

/* Borrows its arguments. */
DPT_MUST_USE enum dpt_status dpt_unit_graphs_create(const struct dpt_model *model,
                                                    struct dpt_device *device,
                                                    struct dpt_stream *stream,
                                                    struct dpt_unit_graphs **ret,
                                                    struct dpt_err *err);
void dpt_unit_graphs_destroy(struct dpt_unit_graphs **graphs);

/* Drops all graphs. The stream must be idle. */
void dpt_unit_graphs_forget(struct dpt_unit_graphs *graphs);

/* Parameters that a backward has announced. They are announced in descending order. */
struct dpt_unit_graphs_announced {
    int first, last; /* first > last: none */
};
/* The announce function of a dpt_slot whose context is a struct dpt_unit_graphs_announced. */
void dpt_unit_graphs_note_announced(void *announced, int param);

/* Do the work of dpt_model_forward and of dpt_model_backward. The backward announces nothing: the
 * caller announces *ret, the parameters that are complete when the posted work is done. Every slot
 * has the same batch, saved, scratch, losses, b and t. */
void dpt_unit_graphs_forward(struct dpt_unit_graphs *graphs, int unit, const struct dpt_slot *slot);
void dpt_unit_graphs_backward(struct dpt_unit_graphs *graphs, int unit, const struct dpt_slot *slot,
                              struct dpt_unit_graphs_announced *ret);

#endif
