/* Buckets of a model (model_buckets.h). */
#include "worker/strategy/reduce/model_buckets.h"

#include <stdlib.h>

/* One bucket a unit, the last unit first. */
static int cut_by_units(const struct dpt_model *model, struct dpt_bucket *ret)
{
    int n = 0;
    for (int u = dpt_model_n_units(model) - 1; u >= 0; u--) {
        const struct dpt_unit *unit = dpt_model_unit(model, u);
        ret[n++] = (struct dpt_bucket){.first_tensor = unit->first_param,
                                       .n_tensors = unit->n_params,
                                       .first = unit->offset,
                                       .end = unit->offset + unit->numel};
    }
    return n;
}

static int cut_by_bytes(const struct dpt_config *config, const struct dpt_bucket_traits *traits,
                        const struct dpt_model *model, int64_t *offset, struct dpt_bucket *ret)
{
    const double mib = 1024.0 * 1024.0;
    const int64_t bytes = traits->tensors ? 0 : (int64_t)(config->strategy.bucket_mib * mib);
    const int64_t first_bytes =
        traits->small_first ? (int64_t)(config->strategy.first_bucket_mib * mib) : bytes;
    const int n = dpt_model_n_params(model);
    for (int i = 0; i < n; i++)
        offset[i] = dpt_model_param(model, i)->offset;
    return dpt_buckets_make(offset, n, dpt_model_flat_numel(model), first_bytes, bytes, ret);
}

enum dpt_status dpt_model_buckets_init(struct dpt_model_buckets *b, const struct dpt_config *config,
                                       const struct dpt_model *model, struct dpt_err *err)
{
    const struct dpt_strategy_traits traits = dpt_strategy_traits(config);
    const size_t n_params = (size_t)dpt_model_n_params(model);
    *b = (struct dpt_model_buckets){.bucket = calloc(n_params, sizeof *b->bucket),
                                    .of_param = calloc(n_params, sizeof *b->of_param),
                                    .unit = calloc(n_params, sizeof *b->unit),
                                    .offset = calloc(n_params + 1, sizeof *b->offset)};
    if (!b->bucket || !b->of_param || !b->unit || !b->offset)
        return dpt_fail_nomem(err, "buckets");
    b->n = traits.state == DPT_STATE_REPLICATED && traits.route != DPT_GRADIENT_UNITS
               ? cut_by_bytes(config, &traits.buckets, model, b->offset, b->bucket)
               : cut_by_units(model, b->bucket);
    for (int i = 0; i < b->n; i++) {
        const struct dpt_bucket *bucket = &b->bucket[i];
        const int range = b->n - 1 - i;
        b->offset[range] = bucket->first;
        b->unit[range] = dpt_model_param(model, bucket->first_tensor)->unit;
        for (int t = 0; t < bucket->n_tensors; t++)
            b->of_param[bucket->first_tensor + t] = i;
    }
    b->offset[b->n] = dpt_model_flat_numel(model);
    b->ranges = (struct dpt_grid){.offset = b->offset, .n_units = b->n, .block = DPT_BLOCK};
    return DPT_OK;
}

void dpt_model_buckets_fini(struct dpt_model_buckets *b)
{
    free(b->bucket);
    free(b->of_param);
    free(b->unit);
    free(b->offset);
    *b = (struct dpt_model_buckets){.n = 0};
}
