/* The packed forms of a model's weights (dpt_ops.pack). The owner of weights with which several
 * slots are computed (a strategy, or the base model of adapters) decides with this module whether
 * to pack, keeps the memory of the forms, and packs again when weights have changed. All on the
 * main thread. */
#ifndef DPT_WORKER_STRATEGY_STATE_PACKED_WEIGHTS_H
#define DPT_WORKER_STRATEGY_STATE_PACKED_WEIGHTS_H

#include "worker/model/model.h"

struct dpt_packed_weights;

/* Whether a rank that computes `slots` slots of a step packs its weights under `mode`, where the
 * forms of all ranks of its host need `bytes` and the host has `available`. */
bool dpt_packing_pays(enum dpt_pack_weights mode, int slots, int64_t bytes, int64_t available);

/* model, device and stream are borrowed for the life of the packed weights; the config and the
 * options themselves are only read. */
struct dpt_packed_weights_options {
    const struct dpt_config *config;
    const struct dpt_model *model;
    struct dpt_device *device;
    struct dpt_stream *stream; /* of the device */
    int without;               /* parameter to leave unpacked; -1: none */
};

/* Prepares packing on the stream; allocates no forms. Errors: DPT_ENOMEM and the stream's. */
DPT_MUST_USE enum dpt_status
dpt_packed_weights_create(const struct dpt_packed_weights_options *options,
                          struct dpt_packed_weights **ret, struct dpt_err *err);
void dpt_packed_weights_destroy(struct dpt_packed_weights **packed);

/* Decides whether a generation uses packed forms, in which this rank computes `slots` slots of a
 * step and its host has `ranks_of_host` ranks. Allocates the forms' memory if they are used, else
 * frees it. DPT_ENOMEM names the config's key; under `auto` the weights stay unpacked instead, with
 * a line in the log. */
DPT_MUST_USE enum dpt_status dpt_packed_weights_decide(struct dpt_packed_weights *packed, int slots,
                                                       int ranks_of_host, struct dpt_err *err);

/* Bytes of the forms that this generation uses; 0: none. */
int64_t dpt_packed_weights_bytes(const struct dpt_packed_weights *packed);

/* True: `memory` is the address of the forms' memory, and the parameter has a form: `*ret_bytes`
 * bytes at byte `*ret_at` of it. */
DPT_MUST_USE bool dpt_packed_weights_form(const struct dpt_packed_weights *packed, int param,
                                          const void *memory, size_t *ret_at, size_t *ret_bytes);

/* Gives the slot the forms of all parameters. Forms that are not packed since the last
 * dpt_packed_weights_forget are packed from slot->weights. Errors stick to the stream. */
void dpt_packed_weights_use(struct dpt_packed_weights *packed, struct dpt_slot *slot);

/* Call it when the values of the weights changed or the weights are freed: no form is current from
 * then on. A form does not depend on the address of the weights. */
void dpt_packed_weights_forget(struct dpt_packed_weights *packed);

#endif
