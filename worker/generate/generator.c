/* Generates text: keeps the window of tokens and lets the model decode. */
#include "worker/generate/generator.h"

#include <stdlib.h>
#include <string.h>

struct dpt_generator {
    struct dpt_generator_options options;
    const void **weights; /* [n_units] */
    int64_t context;
    int32_t *window; /* [context] the newest tokens */
    /* Number of tokens in the window, and of those whose keys and values are in the cache. */
    int64_t n, cached;
    int64_t drawn;
    void *cache, *scratch;
    size_t cache_bytes, scratch_bytes;
    float *logits;
    struct dpt_token_candidate *candidates; /* [tokens] */
};

void dpt_generator_destroy(struct dpt_generator **generator)
{
    struct dpt_generator *g = *generator;
    *generator = NULL;
    if (!g)
        return;
    dpt_device_free(g->options.device, g->cache, g->cache_bytes);
    dpt_device_free(g->options.device, g->scratch, g->scratch_bytes);
    free(g->weights);
    free(g->window);
    free(g->logits);
    free(g->candidates);
    free(g);
}

static enum dpt_status alloc_generator(struct dpt_generator *g, struct dpt_err *err)
{
    const struct dpt_model *model = g->options.model;
    g->weights = calloc((size_t)dpt_model_n_units(model), sizeof *g->weights);
    g->window = calloc((size_t)g->context, sizeof *g->window);
    g->logits = calloc((size_t)dpt_model_vocab(model), sizeof *g->logits);
    g->candidates = calloc((size_t)g->options.tokens, sizeof *g->candidates);
    if (!g->weights || !g->window || !g->logits || !g->candidates)
        return dpt_fail_nomem(err, "generate");
    for (int u = 0; u < dpt_model_n_units(model); u++)
        g->weights[u] = g->options.flat + dpt_model_unit(model, u)->offset;
    g->cache_bytes = dpt_model_cache_bytes(model);
    DPT_TRY(dpt_device_alloc(g->options.device, g->cache_bytes, &g->cache, err));
    g->scratch_bytes = dpt_model_decode_bytes(model, g->context);
    return dpt_device_alloc(g->options.device, g->scratch_bytes, &g->scratch, err);
}

enum dpt_status dpt_generator_create(const struct dpt_generator_options *options,
                                     struct dpt_generator **ret, struct dpt_err *err)
{
    DPT_ASSERT(options->tokens > 0 && options->tokens <= dpt_model_vocab(options->model));
    struct dpt_generator *g = calloc(1, sizeof *g);
    if (!g)
        return dpt_fail_nomem(err, "generate");
    g->options = *options;
    g->context = dpt_model_context(options->model);
    enum dpt_status status = alloc_generator(g, err);
    if (status != DPT_OK)
        dpt_generator_destroy(&g);
    else
        *ret = g;
    return status;
}

void dpt_generator_feed(struct dpt_generator *g, int32_t token)
{
    DPT_ASSERT(token >= 0 && token < dpt_model_vocab(g->options.model));
    /* The kept tokens change their positions, so all are computed again. */
    if (g->n == g->context) {
        const int64_t kept = g->context / 2;
        memmove(g->window, g->window + g->n - kept, (size_t)kept * sizeof *g->window);
        g->n = kept;
        g->cached = 0;
    }
    g->window[g->n++] = token;
}

enum dpt_status dpt_generator_next(struct dpt_generator *g, int32_t *ret_token, struct dpt_err *err)
{
    DPT_ASSERT(g->n > g->cached);
    const struct dpt_decode decode = {.weights = g->weights,
                                      .first = g->cached,
                                      .n = g->n - g->cached,
                                      .tokens = g->window + g->cached,
                                      .cache = g->cache,
                                      .scratch = g->scratch,
                                      .logits = g->logits};
    dpt_model_decode(g->options.model, dpt_device_ops(g->options.device), g->options.stream,
                     &decode);
    DPT_TRY(dpt_stream_sync(g->options.stream, err));
    g->cached = g->n;
    DPT_TRY(dpt_token_choice_check_logits(g->logits, g->options.tokens, err));
    *ret_token = dpt_token_choice(g->logits, g->options.tokens, &g->options.sampling, g->drawn,
                                  g->candidates);
    g->drawn++;
    dpt_generator_feed(g, *ret_token);
    return DPT_OK;
}

int64_t dpt_generator_seen(const struct dpt_generator *g)
{
    return g->n;
}

const float *dpt_generator_logits(const struct dpt_generator *g)
{
    return g->logits;
}
