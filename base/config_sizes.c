/* Sizes of a model from another file (config.h). A size that the config does not give is set as if
 * the config gave it. */
#include "base/config_table.h"

#include <string.h>

static enum dpt_status parse_size(const struct dpt_config_sizes *sizes,
                                  const struct dpt_config_size *size, struct dpt_config *config,
                                  struct dpt_err *err)
{
    const enum dpt_status status = dpt_config_key_parse_text(dpt_config_key(size->key), size->value,
                                                             sizes->source, config, err);
    return dpt_wrap(err, status == DPT_OK ? DPT_OK : DPT_ECONFIG, "%s: %s", sizes->source,
                    size->name);
}

/* Compares a size with the config's value of the same key. */
static enum dpt_status compare_size(const struct dpt_config_load *load,
                                    const struct dpt_config_size *size, struct dpt_err *err)
{
    const struct dpt_config_sizes *sizes = load->input->sizes;
    const struct dpt_key *key = dpt_config_key(size->key);
    struct dpt_config theirs = load->config;
    char mine[DPT_CONFIG_VALUE_BYTES], other[DPT_CONFIG_VALUE_BYTES];
    DPT_TRY(parse_size(sizes, size, &theirs, err));
    dpt_config_key_format(key, &load->config, mine);
    dpt_config_key_format(key, &theirs, other);
    if (strcmp(mine, other) == 0 || strcmp(mine, "auto") == 0 || strcmp(other, "auto") == 0)
        return DPT_OK;
    return dpt_refuse_key(load, key->path, err,
                          "%s contradicts %s, whose %s is %s; leave the key out, or name other "
                          "weights with model.init_from",
                          mine, sizes->source, size->name, other);
}

/* Resets every model key that the text gives, so that the model does not get sizes of two
 * models. */
static void forget_model(struct dpt_config_load *load)
{
    static const char section[] = "model.";
    for (size_t i = 0; i < dpt_config_n_keys; i++) {
        struct dpt_config_origin *origin = &load->origin[i];
        if (strncmp(dpt_config_keys[i].path, section, sizeof section - 1) != 0 ||
            origin->override >= 0 || origin->line == 0)
            continue;
        dpt_config_key_reset(&dpt_config_keys[i], &load->config);
        *origin = (struct dpt_config_origin){.override = -1};
    }
}

enum dpt_status dpt_config_take_sizes(struct dpt_config_load *load, struct dpt_err *err)
{
    const struct dpt_config_sizes *sizes = load->input->sizes;
    if (sizes->over_text && sizes->n > 0)
        forget_model(load);
    if (sizes->binding && load->config.model.preset[0] != '\0')
        return dpt_refuse_key(
            load, "model.preset", err,
            "%s: the sizes are those of %s; leave the preset out, or model.init_from",
            load->config.model.preset, sizes->source);
    for (int i = 0; i < sizes->n; i++) {
        const struct dpt_config_size *size = &sizes->key[i];
        const bool given = dpt_config_given(load, size->key);
        char mine[DPT_CONFIG_VALUE_BYTES];
        dpt_config_key_format(dpt_config_key(size->key), &load->config, mine);
        if (given && sizes->binding)
            DPT_TRY(compare_size(load, size, err));
        if (given && strcmp(mine, "auto") != 0)
            continue;
        DPT_TRY(parse_size(sizes, size, &load->config, err));
        load->origin[dpt_config_key_index(size->key)].sizes = true;
    }
    return DPT_OK;
}
