/* The part of --help that describes the keys. */
#include "base/config_table.h"

#include <stdio.h>

static const char *const type_names[] = {[DPT_KEY_TEXT] = "text",
                                         [DPT_KEY_CHOICE] = "word",
                                         [DPT_KEY_CHOICE_TEXT] = "word",
                                         [DPT_KEY_INT] = "integer",
                                         [DPT_KEY_INT64] = "integer",
                                         [DPT_KEY_UINT64] = "integer",
                                         [DPT_KEY_DOUBLE] = "number",
                                         [DPT_KEY_DOUBLE_PAIR] = "two numbers",
                                         [DPT_KEY_STEPS] = "list of integers",
                                         [DPT_KEY_WORDS] = "words",
                                         [DPT_KEY_BOOL] = "true or false",
                                         [DPT_KEY_RANGE] = "N or \"MIN:MAX\""};

void dpt_config_key_takes(const struct dpt_key *key, char ret_text[DPT_CONFIG_TAKES_BYTES])
{
    enum { TAIL_BYTES = 16 }; /* for ", auto" or ", null" */
    const size_t bytes = DPT_CONFIG_TAKES_BYTES - TAIL_BYTES;
    size_t used = (size_t)snprintf(ret_text, bytes, "%s%s", type_names[key->type],
                                   key->type == DPT_KEY_BOOL ? "" : ": ");
    if (key->choices) { /* null is one of the choices */
        dpt_config_key_choices(key, ret_text + used, bytes - used);
        return;
    }
    if (key->type == DPT_KEY_TEXT)
        used += (size_t)snprintf(ret_text + used, bytes - used, "at most %zu bytes", key->size - 1);
    else if (key->type == DPT_KEY_UINT64)
        used += (size_t)snprintf(ret_text + used, bytes - used, "0 … %llu",
                                 (unsigned long long)UINT64_MAX);
    else if (key->type != DPT_KEY_BOOL)
        used += (size_t)snprintf(ret_text + used, bytes - used, "%s%.15g … %s%.15g",
                                 key->flags & DPT_KEY_OPEN_MIN ? "above " : "", key->min,
                                 key->flags & DPT_KEY_OPEN_MAX ? "below " : "", key->max);
    DPT_ASSERT(used < bytes);
    if (key->flags & (DPT_KEY_AUTO | DPT_KEY_NULL))
        (void)snprintf(ret_text + used, TAIL_BYTES, ", %s",
                       key->flags & DPT_KEY_AUTO ? "auto" : "null");
}

void dpt_config_help(FILE *out)
{
    (void)fprintf(
        out, "Config keys (in the file given by --config, or one by one as --set KEY=VALUE):\n");
    for (size_t i = 0; i < dpt_config_n_keys; i++) {
        const struct dpt_key *key = &dpt_config_keys[i];
        char takes[DPT_CONFIG_TAKES_BYTES];
        dpt_config_key_takes(key, takes);
        (void)fprintf(out, "  %-32s %s\n%35s%s; default %s\n", key->path, key->help, "", takes,
                      key->def);
    }
}
