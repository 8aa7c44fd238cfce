/* Loading and printing configs through the table. */
#include "base/config.h"

#include "base/config_table.h"

#include <stdio.h>
#include <string.h>

/* The first key that belongs to another program. An error about this key helps more than an error
 * about an unknown section before it. */
static const struct dpt_yaml_pair *find_foreign(const struct dpt_yaml *yaml,
                                                char ret_text[DPT_CONFIG_FOREIGN_BYTES])
{
    for (size_t i = 0; i < yaml->n_pairs; i++) {
        const struct dpt_yaml_pair *pair = &yaml->pair[i];
        if (pair->kind != DPT_YAML_SECTION &&
            dpt_config_key_index(pair->path) == dpt_config_n_keys &&
            dpt_config_foreign_key(pair->path, ret_text))
            return pair;
    }
    return NULL;
}

/* Checks a path that is not a key. DPT_ECONFIG: it is not a section either. */
static enum dpt_status check_section(const struct dpt_yaml_pair *pair, struct dpt_err *err)
{
    char foreign[DPT_CONFIG_FOREIGN_BYTES];
    if (dpt_config_is_section(pair->path)) {
        const bool empty = pair->kind == DPT_YAML_SCALAR && dpt_yaml_is_null(&pair->value[0]);
        return pair->kind == DPT_YAML_SECTION || empty
                   ? DPT_OK
                   : dpt_fail(err, DPT_ECONFIG, "%s is a section: its keys go inside it",
                              pair->path);
    }
    if (dpt_config_foreign_key(pair->path, foreign))
        return dpt_fail(err, DPT_ECONFIG, "%s", foreign);
    return dpt_config_fail_unknown(pair->path, err);
}

static enum dpt_status apply_pair(struct dpt_config_load *load, const struct dpt_yaml_pair *pair,
                                  int override, struct dpt_err *err)
{
    const size_t i = dpt_config_key_index(pair->path);
    struct dpt_config_origin origin = {
        .line = pair->line, .column = pair->column, .override = override};
    if (i == dpt_config_n_keys)
        return check_section(pair, err) == DPT_OK ? DPT_OK
                                                  : dpt_config_wrap_origin(load, &origin, err);
    if (pair->n_values > 0) {
        origin.line = pair->value[0].line;
        origin.column = pair->value[0].column;
    }
    const enum dpt_status status =
        dpt_config_key_parse(&dpt_config_keys[i], pair, &load->config, err);
    if (status != DPT_OK) {
        (void)dpt_wrap(err, status, "%s", pair->path);
        return dpt_config_wrap_origin(load, &origin, err);
    }
    load->origin[i] = origin;
    return DPT_OK;
}

/* Applies and destroys `yaml`, which is the file (`override` is -1) or the --set with index
 * `override`. */
static enum dpt_status apply_yaml(struct dpt_config_load *load, struct dpt_yaml **yaml,
                                  int override, struct dpt_err *err)
{
    char foreign[DPT_CONFIG_FOREIGN_BYTES];
    enum dpt_status status = DPT_OK;
    const struct dpt_yaml_pair *pair = find_foreign(*yaml, foreign);
    if (pair)
        status = apply_pair(load, pair, override, err);
    for (size_t i = 0; i < (*yaml)->n_pairs && status == DPT_OK; i++)
        status = apply_pair(load, &(*yaml)->pair[i], override, err);
    dpt_yaml_destroy(yaml);
    return status;
}

static enum dpt_status apply_override(struct dpt_config_load *load, int override,
                                      struct dpt_err *err)
{
    const char *text = load->input->overrides[override], *equals = strchr(text, '=');
    char path[DPT_YAML_PATH_BYTES], source[DPT_CONFIG_SHOWN_BYTES + 16];
    struct dpt_yaml *yaml = NULL;
    (void)snprintf(source, sizeof source, "--set %.*s", DPT_CONFIG_SHOWN_BYTES, text);
    if (!equals || equals == text)
        return dpt_fail(err, DPT_ECONFIG, "%s: expected KEY=VALUE, such as train.steps=5", source);
    const size_t n = (size_t)(equals - text);
    if (n >= sizeof path)
        return dpt_fail(err, DPT_ECONFIG, "%s: unknown key", source);
    memcpy(path, text, n);
    path[n] = '\0';
    DPT_TRY(dpt_yaml_parse(equals + 1, strlen(equals + 1), source, path, &yaml, err));
    return apply_yaml(load, &yaml, override, err);
}

/* Sets every key to its default, with no origin. */
static void set_defaults(struct dpt_config_load *load)
{
    load->config = *dpt_config_table_defaults();
    for (size_t i = 0; i < dpt_config_n_keys; i++)
        load->origin[i] = (struct dpt_config_origin){.override = -1};
}

void dpt_config_defaults(struct dpt_config *ret)
{
    const struct dpt_config_input input = {.name = "defaults"};
    struct dpt_config_load load = {.input = &input};
    set_defaults(&load);
    dpt_config_resolve(&load);
    *ret = load.config;
}

/* Applies the file and then --set over the defaults. */
static enum dpt_status apply_input(struct dpt_config_load *load, struct dpt_err *err)
{
    const struct dpt_config_input *input = load->input;
    struct dpt_yaml *yaml = NULL;
    if (input->n_overrides > DPT_CONFIG_OVERRIDES_MAX)
        return dpt_fail(err, DPT_ECONFIG, "--set is given %zu times, at most %d are allowed",
                        input->n_overrides, DPT_CONFIG_OVERRIDES_MAX);
    set_defaults(load);
    DPT_TRY(dpt_yaml_parse(input->text, input->bytes, input->name, NULL, &yaml, err));
    DPT_TRY(apply_yaml(load, &yaml, -1, err));
    for (size_t i = 0; i < input->n_overrides; i++)
        DPT_TRY(apply_override(load, (int)i, err));
    return DPT_OK;
}

enum dpt_status dpt_config_parse(const struct dpt_config_input *input, struct dpt_config *ret,
                                 struct dpt_err *err)
{
    struct dpt_config_load load = {.input = input};
    DPT_TRY(apply_input(&load, err));
    *ret = load.config;
    return DPT_OK;
}

enum dpt_status dpt_config_load(const struct dpt_config_input *input, struct dpt_config *ret,
                                struct dpt_err *err)
{
    struct dpt_config_load load = {.input = input};
    DPT_TRY(apply_input(&load, err));
    if (input->sizes)
        DPT_TRY(dpt_config_take_sizes(&load, err));
    dpt_config_resolve(&load);
    DPT_TRY(dpt_config_check(&load, err));
    *ret = load.config;
    return DPT_OK;
}

enum dpt_status dpt_config_load_text(const char *yaml, const char *name,
                                     const char *const *overrides, size_t n_overrides,
                                     struct dpt_config *ret, struct dpt_err *err)
{
    const struct dpt_config_input input = {.text = yaml,
                                           .bytes = strlen(yaml),
                                           .name = name,
                                           .overrides = overrides,
                                           .n_overrides = n_overrides};
    return dpt_config_load(&input, ret, err);
}

/* Writes the key's line, and before it the headings of those of its sections that do not contain
 * the previous key, `before`. Returns the length of the text. */
static size_t print_key(const char *path, const char *before, const char *value, char *to,
                        size_t to_bytes)
{
    size_t used = 0;
    int depth = 0;
    for (const char *name = path;; depth++) {
        const size_t n = strcspn(name, "."), prefix = (size_t)(name - path) + n + 1;
        const bool is_key = name[n] == '\0';
        if (is_key || strncmp(path, before, prefix) != 0)
            used += (size_t)snprintf(to + used, used < to_bytes ? to_bytes - used : 0,
                                     "%*s%.*s:%s%s\n", 2 * depth, "", (int)n, name,
                                     is_key ? " " : "", is_key ? value : "");
        if (is_key || used >= to_bytes)
            return used;
        name += n + 1;
    }
}

enum dpt_status dpt_config_print(const struct dpt_config *config, char *ret_text,
                                 struct dpt_err *err)
{
    char value[DPT_CONFIG_VALUE_BYTES];
    size_t used = 0;
    for (size_t i = 0; i < dpt_config_n_keys; i++) {
        const char *before = i > 0 ? dpt_config_keys[i - 1].path : "";
        dpt_config_key_format(&dpt_config_keys[i], config, value);
        used += print_key(dpt_config_keys[i].path, before, value, ret_text + used,
                          DPT_CONFIG_TEXT_BYTES_MAX - used);
        if (used >= DPT_CONFIG_TEXT_BYTES_MAX)
            return dpt_fail(err, DPT_EOVERFLOW, "the config's text is longer than %d bytes",
                            DPT_CONFIG_TEXT_BYTES_MAX);
    }
    return DPT_OK;
}
