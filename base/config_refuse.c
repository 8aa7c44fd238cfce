/* Refusals of a config: the position of a key, and the nearest legal values. */
#include "base/config_table.h"

#include <stdio.h>
#include <string.h>

bool dpt_config_given(const struct dpt_config_load *load, const char *path)
{
    size_t i = dpt_config_key_index(path);
    DPT_ASSERT(i < dpt_config_n_keys);
    return load->origin[i].line > 0 || load->origin[i].override >= 0 || load->origin[i].sizes;
}

enum dpt_status dpt_config_wrap_origin(const struct dpt_config_load *load,
                                       const struct dpt_config_origin *origin, struct dpt_err *err)
{
    const struct dpt_config_input *from = load->input;
    if (origin->override >= 0)
        return dpt_wrap(err, DPT_ECONFIG, "--set %.*s", DPT_CONFIG_SHOWN_BYTES,
                        from->overrides[origin->override]);
    if (origin->line > 0)
        return dpt_wrap(err, DPT_ECONFIG, "%s:%d:%d", from->name, origin->line, origin->column);
    return dpt_wrap(err, DPT_ECONFIG, "%s", origin->sizes ? from->sizes->source : from->name);
}

enum dpt_status dpt_refuse_key(const struct dpt_config_load *load, const char *path,
                               struct dpt_err *err, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)dpt_vfail(err, DPT_ECONFIG, fmt, ap);
    va_end(ap);
    (void)dpt_wrap(err, DPT_ECONFIG, "%s", path);
    return dpt_config_wrap_origin(load, &load->origin[dpt_config_key_index(path)], err);
}

/* Whether `a` was written before `b`. Defaults come first, then the file, then --set. */
static bool is_written_before(const struct dpt_config_origin *a, const struct dpt_config_origin *b)
{
    if (a->override != b->override)
        return a->override < b->override;
    return a->line != b->line ? a->line < b->line : a->column < b->column;
}

enum dpt_status dpt_refuse_both(const struct dpt_config_load *load, const char *path,
                                const char *other, struct dpt_err *err, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)dpt_vfail(err, DPT_ECONFIG, fmt, ap);
    va_end(ap);
    const struct dpt_config_origin *a = &load->origin[dpt_config_key_index(path)];
    const struct dpt_config_origin *b = &load->origin[dpt_config_key_index(other)];
    return dpt_config_wrap_origin(load, is_written_before(a, b) ? b : a, err);
}

const char *dpt_config_first_changed(const struct dpt_config_load *load, const char *const *paths,
                                     size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const struct dpt_key *key = dpt_config_key(paths[i]);
        char value[DPT_CONFIG_VALUE_BYTES], usual[DPT_CONFIG_VALUE_BYTES];
        dpt_config_key_format(key, &load->config, value);
        dpt_config_key_format(key, dpt_config_table_defaults(), usual);
        if (strcmp(value, usual) != 0)
            return paths[i];
    }
    return NULL;
}

void dpt_config_nearest_multiples(int n, int of, char ret_text[DPT_CONFIG_NEAREST_BYTES])
{
    int below = n - n % of;
    if (below > 0)
        (void)snprintf(ret_text, DPT_CONFIG_NEAREST_BYTES, "%d or %d", below, below + of);
    else
        (void)snprintf(ret_text, DPT_CONFIG_NEAREST_BYTES, "%d", of);
}

void dpt_config_nearest_divisors(int n, int by, char ret_text[DPT_CONFIG_NEAREST_BYTES])
{
    int below = by < n ? by : n, above = by;
    while (n % below != 0)
        below--;
    while (above < n && n % above != 0)
        above++;
    if (above > n || above == below)
        (void)snprintf(ret_text, DPT_CONFIG_NEAREST_BYTES, "%d", below);
    else
        (void)snprintf(ret_text, DPT_CONFIG_NEAREST_BYTES, "%d or %d", below, above);
}
