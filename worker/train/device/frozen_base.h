/* The frozen weights under the adapters of train.lora. They are read completely from
 * model.init_from once, rounded to the compute dtype, and held in the memory of the device that
 * computes. They never change. */
#ifndef DPT_WORKER_TRAIN_DEVICE_FROZEN_BASE_H
#define DPT_WORKER_TRAIN_DEVICE_FROZEN_BASE_H

#include "worker/model/model.h"

struct dpt_frozen_base;

/* All pointers are borrowed: model, device and stream for the life of the base, the others during
 * the creation. */
struct dpt_frozen_base_options {
    const struct dpt_config *config;
    const struct dpt_model *model;  /* the model of adapters */
    const struct dpt_ops *host_ops; /* they round the weights on host_stream */
    struct dpt_stream *host_stream;
    /* The device that computes the model, on `stream`: the host's device or another one. */
    struct dpt_device *device;
    struct dpt_stream *stream;
    int ranks; /* ranks of this machine, each of which holds a base */
};

/* Reads the folder once. On a host it also packs the weights, if cluster.pack_weights and the
 * available memory allow this. DPT_ECORRUPT: the config has train.lora.base_hash, and the hash of
 * the weights differs. Other errors are those of dpt_published_open, about model.init_from. */
DPT_MUST_USE enum dpt_status dpt_frozen_base_create(const struct dpt_frozen_base_options *options,
                                                    struct dpt_frozen_base **ret,
                                                    struct dpt_err *err);
void dpt_frozen_base_destroy(struct dpt_frozen_base **base);

/* The members base and base_packed of dpt_slot. NULL if `base` is NULL; dpt_frozen_base_packed also
 * returns NULL if the weights are not packed. */
const void *const *dpt_frozen_base_weights(const struct dpt_frozen_base *base);
const void *const *dpt_frozen_base_packed(const struct dpt_frozen_base *base);

#endif
