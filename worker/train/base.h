/* The weights that adapters go with (train.lora): read from model.init_from once, whole, rounded to
 * the compute dtype, in the memory of the device that computes. Nobody changes them. */
#ifndef DPT_WORKER_TRAIN_BASE_H
#define DPT_WORKER_TRAIN_BASE_H

#include "worker/model/model.h"

struct dpt_base;

/* All borrowed, for the life of the base but for config and the host's. */
struct dpt_base_options {
    const struct dpt_config *config;
    const struct dpt_model *model;  /* of adapters */
    const struct dpt_ops *host_ops; /* round the weights, on */
    struct dpt_stream *host_stream;
    struct dpt_device *device; /* that computes the model, on `stream`; the host's own or another */
    struct dpt_stream *stream;
    int ranks; /* of this machine, that each hold a base */
};

/* Reads the weights. On a host they are packed, too, by cluster.pack_weights and the memory there
 * is. DPT_ECORRUPT: they are not those of train.lora.base_hash, where that is known; others as
 * dpt_published_open, about model.init_from. Reads the folder once. */
DPT_MUST_USE enum dpt_status dpt_base_create(const struct dpt_base_options *options,
                                             struct dpt_base **ret, struct dpt_err *err);
void dpt_base_destroy(struct dpt_base **base);

/* Of dpt_slot: base and base_packed. NULL of a base of NULL, and of one that is not packed. */
const void *const *dpt_base_weights(const struct dpt_base *base);
const void *const *dpt_base_packed(const struct dpt_base *base);

#endif
