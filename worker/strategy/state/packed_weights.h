/* The packed forms of a model's weights (dpt_ops.pack), for a holder of weights (a strategy, or the
 * base of adapters) from which several slots are computed: whether they pay, their memory, and
 * which of them are true.
 *
 * A form is tied to the weights that a slot is given, never to where they lie: the holder calls
 * dpt_packed_weights_use for a unit whose weights the slot has, and dpt_packed_weights_forget when
 * they change or go. All on the main thread. */
#ifndef DPT_WORKER_STRATEGY_STATE_PACKED_WEIGHTS_H
#define DPT_WORKER_STRATEGY_STATE_PACKED_WEIGHTS_H

#include "worker/model/model.h"

struct dpt_packed_weights;

/* Whether weights are packed under `mode` by a rank that computes `slots` slots of a step, when the
 * forms of all ranks of its host take `bytes` and the host has `available`. */
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

/* Prepares packing on the stream; holds no forms yet. Errors: DPT_ENOMEM and those of the stream.
 */
DPT_MUST_USE enum dpt_status
dpt_packed_weights_create(const struct dpt_packed_weights_options *options,
                          struct dpt_packed_weights **ret, struct dpt_err *err);
void dpt_packed_weights_destroy(struct dpt_packed_weights **packed);

/* Decides for a generation in which this rank computes `slots` slots of a step beside others on its
 * host, `ranks_of_host` in all. Memory is allocated when forms are used and freed when they are
 * not: a rank holds forms only in generations that use them. DPT_ENOMEM names the key; with `auto`
 * the weights are not packed then, and the log says so. */
DPT_MUST_USE enum dpt_status dpt_packed_weights_decide(struct dpt_packed_weights *packed, int slots,
                                                       int ranks_of_host, struct dpt_err *err);

/* Bytes of the forms that this generation uses; 0: none. */
int64_t dpt_packed_weights_bytes(const struct dpt_packed_weights *packed);

/* Gives the slot the forms of the parameters of `unit`. Forms that are not true are made of
 * slot->weights[unit]. Errors stick to the stream. */
void dpt_packed_weights_use(struct dpt_packed_weights *packed, int unit, struct dpt_slot *slot);

/* The weights of `unit` changed: their forms are no longer true. */
void dpt_packed_weights_forget(struct dpt_packed_weights *packed, int unit);

#endif
