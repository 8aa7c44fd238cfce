/* Reading one option of the command line (option.h). */
#include "base/option.h"

#include "base/parse.h"

#include <string.h>

static const struct dpt_option *option_named(const struct dpt_option *table, size_t n,
                                             const char *word, size_t bytes)
{
    for (size_t i = 0; i < n; i++)
        if (strlen(table[i].name) == bytes && strncmp(table[i].name, word, bytes) == 0)
            return &table[i];
    return NULL;
}

static enum dpt_status option_set(const struct dpt_option *option, const char *value,
                                  struct dpt_err *err)
{
    if (option->flag)
        *option->flag = true;
    else if (option->text)
        *option->text = value;
    else if (option->number)
        return dpt_parse_i64(value, option->min, option->max, option->number, err);
    else
        return option->set(option->ctx, value, err);
    return DPT_OK;
}

enum dpt_status dpt_option_read(const struct dpt_option *table, size_t n, int argc,
                                char *const *argv, int *at, struct dpt_err *err)
{
    const char *word = argv[*at], *equals = strchr(word, '=');
    const size_t bytes = equals ? (size_t)(equals - word) : strlen(word);
    const struct dpt_option *option = option_named(table, n, word, bytes);
    const char *value = equals ? equals + 1 : NULL;
    if (!option)
        return dpt_fail(err, DPT_EINVAL, "unknown option '%.*s'", bytes < 80 ? (int)bytes : 80,
                        word);
    if (!option->value && value)
        return dpt_fail(err, DPT_EINVAL, "%s takes no value", option->name);
    if (option->value && !value && *at + 1 < argc)
        value = argv[++*at];
    if (option->value && !value)
        return dpt_fail(err, DPT_EINVAL, "%s needs a value: %s %s", option->name, option->name,
                        option->value);
    return dpt_wrap(err, option_set(option, value, err), "%s", option->name);
}
