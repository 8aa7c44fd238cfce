/* Text continued by a model, token after token.
 *
 * A token costs one position: keys and values of the tokens before are kept. When the model's
 * context is full its last half is taken for a new beginning and computed again, so that text may
 * go on for ever; a prompt longer than the context is treated likewise, as if it had been fed token
 * by token. The tokens are a function of weights, prompt, settings and seed: not of the number of
 * threads. */
#ifndef DPT_WORKER_GENERATE_GENERATOR_H
#define DPT_WORKER_GENERATE_GENERATOR_H

#include "worker/generate/sample.h"
#include "worker/model/model.h"

struct dpt_generator;

/* All borrowed for its life. */
struct dpt_generator_options {
    const struct dpt_model *model; /* of compute dtype f32 */
    struct dpt_device *device;
    struct dpt_stream *stream;
    const float *flat; /* the model's weights, (flat_numel) */
    int tokens;        /* only tokens below are drawn: of the tokenizer; at most the vocabulary */
    struct dpt_sampling sampling;
};

DPT_MUST_USE enum dpt_status dpt_generator_create(const struct dpt_generator_options *options,
                                                  struct dpt_generator **ret, struct dpt_err *err);
void dpt_generator_destroy(struct dpt_generator **generator);

/* Appends a token of the text so far, in [0, V). */
void dpt_generator_feed(struct dpt_generator *g, int32_t token);

/* Draws the token that follows and appends it. There is one token at least. */
DPT_MUST_USE enum dpt_status dpt_generator_next(struct dpt_generator *g, int32_t *ret_token,
                                                struct dpt_err *err);

/* How many of the tokens so far the model sees at its next one. */
int64_t dpt_generator_seen(const struct dpt_generator *g);

/* The logits that the last token was drawn from, (V); overwritten by the next draw. */
const float *dpt_generator_logits(const struct dpt_generator *g);

#endif
