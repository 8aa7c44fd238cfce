/* Reading one option (option.h). */
#include "worker/ckpt/option.h"

#include <stddef.h>
#include <string.h>

static const struct dpt_ckpt_option *find(const struct dpt_ckpt_option *table, int n,
                                          const char *name, size_t bytes)
{
    for (int i = 0; i < n; i++)
        if (strlen(table[i].name) == bytes && strncmp(table[i].name, name, bytes) == 0)
            return &table[i];
    return NULL;
}

enum dpt_status dpt_ckpt_option_read(const struct dpt_ckpt_option *table, int n, int argc,
                                     char *const *argv, int *at,
                                     const struct dpt_ckpt_option **ret_option,
                                     const char **ret_value, struct dpt_err *err)
{
    const char *word = argv[*at], *equals = strchr(word, '=');
    const size_t bytes = equals ? (size_t)(equals - word) : strlen(word);
    const struct dpt_ckpt_option *option = find(table, n, word, bytes);
    const char *value = equals ? equals + 1 : NULL;
    if (!option)
        return dpt_fail(err, DPT_EINVAL, "unknown option '%.*s'; see dpt-ckpt --help",
                        bytes < 80 ? (int)bytes : 80, word);
    if (!option->value && value)
        return dpt_fail(err, DPT_EINVAL, "%s takes no value", option->name);
    if (option->value && !value && *at + 1 < argc)
        value = argv[++*at];
    if (option->value && !value)
        return dpt_fail(err, DPT_EINVAL, "%s needs a value: %s %s", option->name, option->name,
                        option->value);
    *ret_option = option;
    *ret_value = value;
    return DPT_OK;
}
