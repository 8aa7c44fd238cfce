/* Kinds of published tensors (tensor_name.h). */
#include "worker/weights/tensor_name.h"

#include <string.h>

const char *dpt_tensor_base_name(const char *name)
{
    static const char *const fronts[] = {"transformer.", "model."};
    for (size_t i = 0; i < sizeof fronts / sizeof *fronts; i++)
        if (strncmp(name, fronts[i], strlen(fronts[i])) == 0)
            return name + strlen(fronts[i]);
    return name;
}

bool dpt_tensor_is_buffer(const char *name)
{
    static const char *const ends[] = {".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq",
                                       ".num_batches_tracked"};
    const size_t n = strlen(name);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (n >= strlen(ends[i]) && strcmp(name + n - strlen(ends[i]), ends[i]) == 0)
            return true;
    return false;
}

bool dpt_tensor_is_head(const char *name)
{
    static const char *const fronts[] = {"lm_head.", "score.", "fc."};
    for (size_t i = 0; i < sizeof fronts / sizeof *fronts; i++)
        if (strncmp(name, fronts[i], strlen(fronts[i])) == 0)
            return true;
    return false;
}

size_t dpt_tensor_part_bytes(const char *base)
{
    size_t n = strcspn(base, ".");
    while (n > 0 && base[n - 1] >= '0' && base[n - 1] <= '9')
        n--;
    return n;
}
