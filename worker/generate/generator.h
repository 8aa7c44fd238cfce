/* Text continued by a model, token after token.
 *
 * The keys and values of earlier tokens are kept, so a token costs the computation of one position.
 * When the context is full, its last half becomes the new context and is computed again, so a text
 * has no limit; the same happens with a prompt that is longer than the context. The tokens are a
 * function of weights, prompt, settings and seed, and not of the number of threads. */
#ifndef DPT_WORKER_GENERATE_GENERATOR_H
#define DPT_WORKER_GENERATE_GENERATOR_H

#include "worker/generate/sample.h"
#include "worker/model/model.h"

struct dpt_generator;

/* All pointers are borrowed for the generator's life. */
struct dpt_generator_options {
    const struct dpt_model *model; /* of compute dtype f32 */
    struct dpt_device *device;
    struct dpt_stream *stream;
    const float *flat; /* the model's weights, (flat_numel) */
    int tokens;        /* of the tokenizer: only lower ids are drawn; at most the vocabulary */
    struct dpt_sampling sampling;
};

DPT_MUST_USE enum dpt_status dpt_generator_create(const struct dpt_generator_options *options,
                                                  struct dpt_generator **ret, struct dpt_err *err);
void dpt_generator_destroy(struct dpt_generator **generator);

/* Appends a token of the text so far, in [0, V). */
void dpt_generator_feed(struct dpt_generator *g, int32_t token);

/* Draws the next token and appends it. At least one token must have been fed. */
DPT_MUST_USE enum dpt_status dpt_generator_next(struct dpt_generator *g, int32_t *ret_token,
                                                struct dpt_err *err);

/* The number of earlier tokens that the next draw depends on. */
int64_t dpt_generator_seen(const struct dpt_generator *g);

/* The logits that the last token was drawn from, (V); overwritten by the next draw. */
const float *dpt_generator_logits(const struct dpt_generator *g);

#endif
