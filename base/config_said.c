/* Keys that another file says (config.h): taken as if they were written in the config, unless the
 * config says them, too. */
#include "base/config_table.h"

#include <string.h>

static enum dpt_status parse_value(const struct dpt_config_said *said,
                                   const struct dpt_config_said_key *of, const struct dpt_key *key,
                                   struct dpt_config *config, struct dpt_err *err)
{
    struct dpt_yaml *yaml = NULL;
    DPT_TRY(dpt_yaml_parse(of->value, strlen(of->value), said->source, key->path, &yaml, err));
    enum dpt_status status = dpt_config_key_parse(key, &yaml->pair[0], config, err);
    dpt_yaml_destroy(&yaml);
    return dpt_wrap(err, status == DPT_OK ? DPT_OK : DPT_ECONFIG, "%s: %s", said->source, of->name);
}

static enum dpt_status compare(const struct dpt_config_load *load,
                               const struct dpt_config_said *said,
                               const struct dpt_config_said_key *of, const struct dpt_key *key,
                               struct dpt_err *err)
{
    struct dpt_config theirs = load->config;
    char mine[DPT_CONFIG_VALUE_BYTES], other[DPT_CONFIG_VALUE_BYTES];
    DPT_TRY(parse_value(said, of, key, &theirs, err));
    dpt_config_key_format(key, &load->config, mine);
    dpt_config_key_format(key, &theirs, other);
    if (strcmp(mine, other) == 0 || strcmp(mine, "auto") == 0 || strcmp(other, "auto") == 0)
        return DPT_OK;
    return dpt_config_refuse(load, key->path, err,
                             "%s contradicts %s, whose %s is %s; leave the key out, or name other "
                             "weights with model.init_from",
                             mine, said->source, of->name, other);
}

/* Every key of the model that the text has, back to its default: no size of the text may stay
 * beside those of another model. */
static enum dpt_status forget_model(struct dpt_config_load *load, struct dpt_err *err)
{
    static const char section[] = "model.";
    for (size_t i = 0; i < dpt_config_n_keys; i++) {
        const struct dpt_key *key = &dpt_config_keys[i];
        struct dpt_config_origin *origin = &load->origin[i];
        struct dpt_yaml *yaml = NULL;
        if (strncmp(key->path, section, sizeof section - 1) != 0 || origin->override >= 0 ||
            origin->line == 0)
            continue;
        DPT_TRY(dpt_yaml_parse(key->def, strlen(key->def), "default", key->path, &yaml, err));
        const enum dpt_status status =
            dpt_config_key_parse(key, &yaml->pair[0], &load->config, err);
        dpt_yaml_destroy(&yaml);
        DPT_TRY(status);
        *origin = (struct dpt_config_origin){.override = -1};
    }
    return DPT_OK;
}

enum dpt_status dpt_config_take_said(struct dpt_config_load *load,
                                     const struct dpt_config_said *said, struct dpt_err *err)
{
    if (said->over_text && said->n > 0)
        DPT_TRY(forget_model(load, err));
    if (said->binding && load->config.model.preset[0] != '\0')
        return dpt_config_refuse(load, "model.preset", err,
                                 "%s: the sizes are those of %s; leave the preset out, or "
                                 "model.init_from",
                                 load->config.model.preset, said->source);
    for (int i = 0; i < said->n; i++) {
        const size_t at = dpt_config_key_index(said->key[i].key);
        DPT_ASSERT(at < dpt_config_n_keys);
        const struct dpt_key *key = &dpt_config_keys[at];
        const bool given = dpt_config_given(load, key->path);
        char mine[DPT_CONFIG_VALUE_BYTES];
        dpt_config_key_format(key, &load->config, mine);
        if (given && said->binding)
            DPT_TRY(compare(load, said, &said->key[i], key, err));
        if (given && strcmp(mine, "auto") != 0)
            continue;
        DPT_TRY(parse_value(said, &said->key[i], key, &load->config, err));
        load->origin[at].said = true;
    }
    return DPT_OK;
}
