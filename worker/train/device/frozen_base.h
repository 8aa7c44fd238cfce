/* The frozen weights under the adapters of train.lora. They are read from model.init_from once,
 * whole, rounded to the compute dtype, and held in the memory of the device that computes. They
 * never change. */
#ifndef DPT_WORKER_TRAIN_DEVICE_FROZEN_BASE_H
#define DPT_WORKER_TRAIN_DEVICE_FROZEN_BASE_H

#include "worker/model/model.h"

struct dpt_base;

/* All are borrowed: model, device and stream for the life of the base, the others for its creation.
 */
struct dpt_base_options {
    const struct dpt_config *config;
    const struct dpt_model *model;  /* of adapters */
    const struct dpt_ops *host_ops; /* round the weights on host_stream */
    struct dpt_stream *host_stream;
    struct dpt_device *device; /* computes the model on `stream`; the host's own or another */
    struct dpt_stream *stream;
    int ranks; /* ranks of this machine; each holds a base */
};

/* Reads the folder once. On a host the weights are packed, too, if cluster.pack_weights and the
 * available memory allow it. DPT_ECORRUPT: the hash of the weights is not train.lora.base_hash, if
 * the config has one. Other errors are those of dpt_published_open, about model.init_from. */
DPT_MUST_USE enum dpt_status dpt_base_create(const struct dpt_base_options *options,
                                             struct dpt_base **ret, struct dpt_err *err);
void dpt_base_destroy(struct dpt_base **base);

/* Members base and base_packed of dpt_slot. NULL if `base` is NULL; packed also if the weights are
 * not packed. */
const void *const *dpt_base_weights(const struct dpt_base *base);
const void *const *dpt_base_packed(const struct dpt_base *base);

#endif
