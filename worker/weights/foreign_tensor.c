/* Kinds of published tensors, and their values (foreign_tensor.h). */
#include "worker/weights/foreign_tensor.h"

#include "base/finite.h"

#include <math.h>
#include <string.h>

const char *dpt_foreign_tensor_base_name(const char *name)
{
    static const char *const fronts[] = {"transformer.", "model."};
    for (size_t i = 0; i < sizeof fronts / sizeof *fronts; i++)
        if (strncmp(name, fronts[i], strlen(fronts[i])) == 0)
            return name + strlen(fronts[i]);
    return name;
}

bool dpt_foreign_tensor_is_buffer(const char *name)
{
    static const char *const ends[] = {".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq",
                                       ".num_batches_tracked"};
    const size_t n = strlen(name);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (n >= strlen(ends[i]) && strcmp(name + n - strlen(ends[i]), ends[i]) == 0)
            return true;
    return false;
}

bool dpt_foreign_tensor_is_head(const char *name)
{
    static const char *const fronts[] = {"lm_head.", "score.", "fc."};
    for (size_t i = 0; i < sizeof fronts / sizeof *fronts; i++)
        if (strncmp(name, fronts[i], strlen(fronts[i])) == 0)
            return true;
    return false;
}

size_t dpt_foreign_tensor_part_bytes(const char *base)
{
    size_t n = strcspn(base, ".");
    while (n > 0 && base[n - 1] >= '0' && base[n - 1] <= '9')
        n--;
    return n;
}

enum dpt_status dpt_foreign_tensor_check_finite(const char *path, const char *name, int64_t first,
                                                int64_t end, const float *values,
                                                struct dpt_err *err)
{
    int64_t at = 0;
    if (dpt_all_finite(values, (size_t)(end - first)))
        return DPT_OK;
    while (isfinite(values[at]))
        at++;
    return dpt_fail(err, DPT_ECORRUPT,
                    "'%s': tensor '%s' has the value %s at element %lld: no model computes with "
                    "it; take weights of a run that has not diverged, or download the file again",
                    path, name, isnan(values[at]) ? "NaN" : "infinity", (long long)(first + at));
}
