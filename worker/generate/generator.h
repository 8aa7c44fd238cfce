/* A model continues a text, token after token.
 *
 * The keys and values of earlier tokens are kept, so a new token costs the computation of one
 * position. When the context is full, its last half becomes the new context and is computed again.
 * So the length of a text has no limit. A prompt that is longer than the context is handled in the
 * same way. The tokens depend on weights, prompt, settings and seed, but not on the number of
 * threads. */
#ifndef DPT_WORKER_GENERATE_GENERATOR_H
#define DPT_WORKER_GENERATE_GENERATOR_H

#include "worker/generate/token_choice.h"
#include "worker/model/model.h"

struct dpt_generator;

/* All pointers are borrowed for the generator's life. */
struct dpt_generator_options {
    const struct dpt_model *model; /* with compute dtype f32 */
    struct dpt_device *device;
    struct dpt_stream *stream;
    const float *flat; /* the model's weights, (flat_numel) */
    /* Number of tokens of the tokenizer, at most the vocabulary: only lower ids are drawn. */
    int tokens;
    struct dpt_token_choice_settings sampling;
};

DPT_MUST_USE enum dpt_status dpt_generator_create(const struct dpt_generator_options *options,
                                                  struct dpt_generator **ret, struct dpt_err *err);
void dpt_generator_destroy(struct dpt_generator **generator);

/* Appends a token of the given text, in [0, V). */
void dpt_generator_feed(struct dpt_generator *g, int32_t token);

/* Draws the next token and appends it. At least one token must have been fed. */
DPT_MUST_USE enum dpt_status dpt_generator_next(struct dpt_generator *g, int32_t *ret_token,
                                                struct dpt_err *err);

/* The number of earlier tokens on which the next draw depends. */
int64_t dpt_generator_seen(const struct dpt_generator *g);

/* The logits (V) from which the last token was drawn. The next draw overwrites them. */
const float *dpt_generator_logits(const struct dpt_generator *g);

#endif
