/* The table of ddp and its teaching variants (ddp_policy.h). */
#include "worker/strategy/ddp_policy.h"

#include <stdlib.h>
#include <string.h>

/* The first is what strategies beyond the family do. */
static const struct dpt_ddp_policy policies[] = {
    {.name = "ddp", .small_first = true, .announced = true},
    {.name = "simple", .tensors = true, .waits = true, .each_slot = true},
    {.name = "simple_ga", .tensors = true, .waits = true},
    {.name = "hook", .tensors = true, .announced = true, .waits = true},
    {.name = "async", .tensors = true, .announced = true},
    {.name = "bucket_async", .announced = true},
};

const struct dpt_ddp_policy *dpt_ddp_policy_find(const char *name)
{
    for (size_t i = 0; i < sizeof policies / sizeof policies[0]; i++)
        if (strcmp(policies[i].name, name) == 0)
            return &policies[i];
    return NULL;
}

struct dpt_ddp_policy dpt_ddp_policy_of(const struct dpt_config *config)
{
    const struct dpt_ddp_policy *found = dpt_ddp_policy_find(config->strategy.name);
    struct dpt_ddp_policy policy = found ? *found : policies[0];
    policy.announced = policy.announced && config->strategy.overlap;
    return policy;
}

enum dpt_status dpt_ddp_policy_buckets(const struct dpt_ddp_policy *policy,
                                       const struct dpt_config *config,
                                       const struct dpt_model *model,
                                       struct dpt_bucket *ret_buckets, int *ret_n,
                                       struct dpt_err *err)
{
    const double mib = 1024.0 * 1024.0;
    const int64_t bytes = policy->tensors ? 0 : (int64_t)(config->strategy.bucket_mib * mib);
    const int64_t first_bytes =
        policy->small_first ? (int64_t)(config->strategy.first_bucket_mib * mib) : bytes;
    const int n = dpt_model_n_params(model);
    int64_t *offset = calloc((size_t)n, sizeof *offset);
    if (!offset)
        return dpt_fail(err, DPT_ENOMEM, "buckets: out of memory");
    for (int i = 0; i < n; i++)
        offset[i] = dpt_model_param(model, i)->offset;
    *ret_n =
        dpt_buckets_make(offset, n, dpt_model_flat_numel(model), first_bytes, bytes, ret_buckets);
    free(offset);
    return DPT_OK;
}
