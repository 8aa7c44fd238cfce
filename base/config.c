/* Loading, printing and comparing configs through the table. */
#include "base/config.h"

#include "base/config_table.h"
#include "base/strategy_traits.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { SUGGESTION_BYTES = 384, SHOWN_BYTES = 60, AUTO_LANES_MAX = 16 };

/* Edit distance with neighbours swapped as one edit ("optimal string alignment"), for texts shorter
 * than a path. */
size_t dpt_config_edit_distance(const char *a, const char *b)
{
    size_t rows[3][DPT_YAML_PATH_BYTES + 1];
    size_t *before = rows[0], *last = rows[1], *now = rows[2];
    size_t an = strlen(a), bn = strlen(b);
    DPT_ASSERT(an < DPT_YAML_PATH_BYTES && bn < DPT_YAML_PATH_BYTES);
    for (size_t j = 0; j <= bn; j++)
        last[j] = j;
    for (size_t i = 1; i <= an; i++) {
        now[0] = i;
        for (size_t j = 1; j <= bn; j++) {
            size_t best = last[j - 1] + (a[i - 1] != b[j - 1]);
            if (last[j] + 1 < best)
                best = last[j] + 1;
            if (now[j - 1] + 1 < best)
                best = now[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                before[j - 2] + 1 < best)
                best = before[j - 2] + 1;
            now[j] = best;
        }
        size_t *spare = before;
        before = last;
        last = now;
        now = spare;
    }
    return last[bn];
}

static const char *leaf_of(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot ? dot + 1 : path;
}

/* Is `path` the section of key i ("train" of "train.steps")? */
static bool is_section_of(size_t i, const char *path)
{
    size_t n = strlen(path);
    return strncmp(dpt_config_keys[i].path, path, n) == 0 && dpt_config_keys[i].path[n] == '.';
}

static bool is_section(const char *path)
{
    for (size_t i = 0; i < dpt_config_n_keys; i++)
        if (is_section_of(i, path))
            return true;
    return false;
}

/* Adds the names at one level to `ret_text`: the keys of a section ("train"), or what stands at the
 * top (""). */
static void list_names(const char *section, char ret_text[SUGGESTION_BYTES])
{
    char last[DPT_YAML_PATH_BYTES] = "";
    size_t used = (size_t)snprintf(ret_text, SUGGESTION_BYTES,
                                   "; %s: ", section[0] ? "its section has" : "known are");
    for (size_t i = 0; i < dpt_config_n_keys; i++) {
        const char *path = dpt_config_keys[i].path;
        if (section[0] && !is_section_of(i, section))
            continue;
        const char *name = section[0] ? path + strlen(section) + 1 : path;
        char word[DPT_YAML_PATH_BYTES];
        (void)snprintf(word, sizeof word, "%.*s", (int)strcspn(name, "."), name);
        if (strcmp(word, last) == 0)
            continue;
        int n =
            snprintf(ret_text + used, SUGGESTION_BYTES - used, "%s%s", last[0] ? ", " : "", word);
        DPT_ASSERT(n > 0 && (size_t)n < SUGGESTION_BYTES - used); /* the table's names are short */
        used += (size_t)n;
        memcpy(last, word, sizeof last);
    }
}

/* Takes `known` as the best guess for `path` when it is nearer than the best so far. Lengths alone
 * make most of them too far. */
static void consider(const char *path, const char *known, bool same, size_t *least,
                     char best[DPT_YAML_PATH_BYTES])
{
    size_t n = strlen(path), known_n = strlen(known);
    if (!same && (n > known_n ? n - known_n : known_n - n) > *least)
        return;
    size_t distance = same ? 0 : dpt_config_edit_distance(path, known);
    if (distance < *least || (distance == *least && !best[0])) {
        *least = distance;
        (void)snprintf(best, DPT_YAML_PATH_BYTES, "%s", known);
    }
}

/* "; did you mean 'train.steps'?": a key of that name in another section, else the nearest path or
 * section; when nothing is near, the names there are. */
static void suggest(const char *path, char ret_text[SUGGESTION_BYTES])
{
    char best[DPT_YAML_PATH_BYTES] = "", section[DPT_YAML_PATH_BYTES];
    size_t least = 1 + strlen(path) / 4; /* more edits than that are no slip */
    for (size_t i = 0; i < dpt_config_n_keys; i++) {
        const char *known = dpt_config_keys[i].path;
        bool same_leaf = strcmp(leaf_of(path), leaf_of(known)) == 0;
        consider(path, known, same_leaf, &least, best);
        (void)snprintf(section, sizeof section, "%.*s", (int)strcspn(known, "."), known);
        consider(path, section, false, &least, best);
    }
    if (best[0]) {
        (void)snprintf(ret_text, SUGGESTION_BYTES, "; did you mean '%s'?", best);
        return;
    }
    (void)snprintf(section, sizeof section, "%.*s", (int)strcspn(path, "."), path);
    list_names(is_section(section) ? section : "", ret_text);
}

enum dpt_status dpt_config_check_path(const char *path, struct dpt_err *err)
{
    char suggestion[SUGGESTION_BYTES];
    if (dpt_config_key_index(path) < dpt_config_n_keys)
        return DPT_OK;
    if (is_section(path))
        list_names(path, suggestion);
    else
        suggest(path, suggestion);
    return dpt_fail(err, DPT_ECONFIG, "unknown key '%.*s'%s", SHOWN_BYTES, path, suggestion);
}

bool dpt_config_given(const struct dpt_config_load *load, const char *path)
{
    size_t i = dpt_config_key_index(path);
    DPT_ASSERT(i < dpt_config_n_keys);
    return load->origin[i].line > 0 || load->origin[i].override >= 0 || load->origin[i].said;
}

/* Puts in front where key i was written. */
static enum dpt_status wrap_where(const struct dpt_config_load *load, size_t i, struct dpt_err *err)
{
    const struct dpt_config_origin *origin = &load->origin[i];
    if (origin->override >= 0)
        return dpt_wrap(err, DPT_ECONFIG, "--set %.*s", SHOWN_BYTES,
                        load->overrides[origin->override]);
    if (origin->line > 0)
        return dpt_wrap(err, DPT_ECONFIG, "%s:%d:%d", load->source, origin->line, origin->column);
    return dpt_wrap(err, DPT_ECONFIG, "%s", origin->said ? load->said->source : load->source);
}

enum dpt_status dpt_config_refuse(const struct dpt_config_load *load, const char *path,
                                  struct dpt_err *err, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)dpt_vfail(err, DPT_ECONFIG, fmt, ap);
    va_end(ap);
    (void)dpt_wrap(err, DPT_ECONFIG, "%s", path);
    return wrap_where(load, dpt_config_key_index(path), err);
}

/* Defaults come before the file, the file before --set. */
static bool is_written_before(const struct dpt_config_origin *a, const struct dpt_config_origin *b)
{
    if (a->override != b->override)
        return a->override < b->override;
    return a->line != b->line ? a->line < b->line : a->column < b->column;
}

enum dpt_status dpt_config_refuse_both(const struct dpt_config_load *load, const char *path,
                                       const char *other, struct dpt_err *err, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)dpt_vfail(err, DPT_ECONFIG, fmt, ap);
    va_end(ap);
    size_t i = dpt_config_key_index(path), j = dpt_config_key_index(other);
    return wrap_where(load, is_written_before(&load->origin[i], &load->origin[j]) ? j : i, err);
}

/* An error about a pair of the YAML text, before or apart from a key of the table. */
DPT_PRINTF(6, 7)
static enum dpt_status refuse_pair(const struct dpt_config_load *load, int override, int line,
                                   int column, struct dpt_err *err, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)dpt_vfail(err, DPT_ECONFIG, fmt, ap);
    va_end(ap);
    if (override >= 0)
        return dpt_wrap(err, DPT_ECONFIG, "--set %.*s", SHOWN_BYTES, load->overrides[override]);
    return dpt_wrap(err, DPT_ECONFIG, "%s:%d:%d", load->source, line, column);
}

static enum dpt_status refuse_unknown(const struct dpt_config_load *load,
                                      const struct dpt_yaml_pair *pair, int override,
                                      struct dpt_err *err)
{
    char suggestion[SUGGESTION_BYTES], foreign[DPT_CONFIG_FOREIGN_BYTES];
    if (dpt_config_foreign_key(pair->path, foreign))
        return refuse_pair(load, override, pair->line, pair->column, err, "%s", foreign);
    suggest(pair->path, suggestion);
    return refuse_pair(load, override, pair->line, pair->column, err, "unknown key '%s'%s",
                       pair->path, suggestion);
}

static enum dpt_status apply_pair(struct dpt_config_load *load, const struct dpt_yaml_pair *pair,
                                  int override, struct dpt_err *err)
{
    size_t i = dpt_config_key_index(pair->path);
    if (i == dpt_config_n_keys && is_section(pair->path)) {
        bool empty = pair->kind == DPT_YAML_SCALAR && dpt_yaml_is_null(&pair->value[0]);
        if (pair->kind == DPT_YAML_SECTION || empty)
            return DPT_OK;
        return refuse_pair(load, override, pair->line, pair->column, err,
                           "%s is a section: its keys go inside it", pair->path);
    }
    if (i == dpt_config_n_keys)
        return refuse_unknown(load, pair, override, err);
    struct dpt_err why = {.status = DPT_OK};
    bool has_value = pair->n_values > 0;
    int line = has_value ? pair->value[0].line : pair->line;
    int column = has_value ? pair->value[0].column : pair->column;
    if (dpt_config_key_parse(&dpt_config_keys[i], pair, &load->config, &why) != DPT_OK)
        return refuse_pair(load, override, line, column, err, "%s: %s", pair->path, why.text);
    load->origin[i] =
        (struct dpt_config_origin){.line = line, .column = column, .override = override};
    return DPT_OK;
}

/* The first key of another program says more than an unknown one before it, or its section. */
static enum dpt_status refuse_foreign(const struct dpt_config_load *load,
                                      const struct dpt_yaml *yaml, int override,
                                      struct dpt_err *err)
{
    char foreign[DPT_CONFIG_FOREIGN_BYTES];
    for (size_t i = 0; i < yaml->n_pairs; i++) {
        const struct dpt_yaml_pair *pair = &yaml->pair[i];
        if (pair->kind != DPT_YAML_SECTION &&
            dpt_config_key_index(pair->path) == dpt_config_n_keys &&
            dpt_config_foreign_key(pair->path, foreign))
            return refuse_unknown(load, pair, override, err);
    }
    return DPT_OK;
}

static enum dpt_status apply_yaml(struct dpt_config_load *load, const char *text, size_t bytes,
                                  const char *source, const char *prefix, int override,
                                  struct dpt_err *err)
{
    struct dpt_yaml *yaml = NULL;
    DPT_TRY(dpt_yaml_parse(text, bytes, source, prefix, &yaml, err));
    enum dpt_status status = refuse_foreign(load, yaml, override, err);
    for (size_t i = 0; i < yaml->n_pairs && status == DPT_OK; i++)
        status = apply_pair(load, &yaml->pair[i], override, err);
    dpt_yaml_destroy(&yaml);
    return status;
}

static enum dpt_status apply_override(struct dpt_config_load *load, int override,
                                      struct dpt_err *err)
{
    const char *text = load->overrides[override];
    const char *equals = strchr(text, '=');
    char path[DPT_YAML_PATH_BYTES], source[SHOWN_BYTES + 16];
    (void)snprintf(source, sizeof source, "--set %.*s", SHOWN_BYTES, text);
    if (!equals || equals == text)
        return dpt_fail(err, DPT_ECONFIG, "%s: expected KEY=VALUE, such as train.steps=5", source);
    size_t n = (size_t)(equals - text);
    if (n >= sizeof path)
        return dpt_fail(err, DPT_ECONFIG, "%s: unknown key", source);
    memcpy(path, text, n);
    path[n] = '\0';
    return apply_yaml(load, equals + 1, strlen(equals + 1), source, path, override, err);
}

/* Every key's default, parsed as if written in a file. The table never changes, so neither does
 * this: made once, as most of the time of a load went into it. */
static struct dpt_config parsed_defaults;

static void parse_defaults(void)
{
    for (size_t i = 0; i < dpt_config_n_keys; i++) {
        const struct dpt_key *key = &dpt_config_keys[i];
        struct dpt_err err = {.status = DPT_OK};
        struct dpt_yaml *yaml = NULL;
        enum dpt_status status =
            dpt_yaml_parse(key->def, strlen(key->def), "default", key->path, &yaml, &err);
        if (status == DPT_OK)
            status = dpt_config_key_parse(key, &yaml->pair[0], &parsed_defaults, &err);
        DPT_ASSERT(status == DPT_OK); /* the table is part of the program */
        dpt_yaml_destroy(&yaml);
    }
}

/* Sets every key to its default, with no origin. */
static void set_defaults(struct dpt_config_load *load)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    int rc = pthread_once(&once, parse_defaults);
    DPT_ASSERT(rc == 0);
    load->config = parsed_defaults;
    for (size_t i = 0; i < dpt_config_n_keys; i++)
        load->origin[i] = (struct dpt_config_origin){.override = -1};
}

void dpt_config_defaults(struct dpt_config *ret)
{
    struct dpt_config_load load = {.source = "defaults"};
    set_defaults(&load);
    dpt_config_resolve(&load);
    *ret = load.config;
}

const char *dpt_config_first_changed(const struct dpt_config_load *load, const char *const *paths,
                                     size_t n)
{
    struct dpt_config_load defaults = {.source = "defaults"};
    set_defaults(&defaults); /* as the table has them: auto is not resolved */
    for (size_t i = 0; i < n; i++) {
        const struct dpt_key *key = &dpt_config_keys[dpt_config_key_index(paths[i])];
        char value[DPT_CONFIG_VALUE_BYTES], usual[DPT_CONFIG_VALUE_BYTES];
        dpt_config_key_format(key, &load->config, value);
        dpt_config_key_format(key, &defaults.config, usual);
        if (strcmp(value, usual) != 0)
            return paths[i];
    }
    return NULL;
}

/* The file and --set over the defaults. */
static enum dpt_status parse(struct dpt_config_load *load, const char *text, size_t bytes,
                             size_t n_overrides, struct dpt_err *err)
{
    if (n_overrides > DPT_CONFIG_OVERRIDES_MAX)
        return dpt_fail(err, DPT_ECONFIG, "--set is given %zu times, at most %d are allowed",
                        n_overrides, DPT_CONFIG_OVERRIDES_MAX);
    set_defaults(load);
    DPT_TRY(apply_yaml(load, text, bytes, load->source, NULL, -1, err));
    for (size_t i = 0; i < n_overrides; i++)
        DPT_TRY(apply_override(load, (int)i, err));
    return DPT_OK;
}

enum dpt_status dpt_config_parse(const char *text, size_t bytes, const char *source,
                                 const char *const *overrides, size_t n_overrides,
                                 struct dpt_config *ret, struct dpt_err *err)
{
    struct dpt_config_load load = {.source = source, .overrides = overrides};
    DPT_TRY(parse(&load, text, bytes, n_overrides, err));
    *ret = load.config;
    return DPT_OK;
}

enum dpt_status dpt_config_load_said(const char *text, size_t bytes, const char *source,
                                     const char *const *overrides, size_t n_overrides,
                                     const struct dpt_config_said *said, struct dpt_config *ret,
                                     struct dpt_err *err)
{
    struct dpt_config_load load = {.source = source, .overrides = overrides, .said = said};
    DPT_TRY(parse(&load, text, bytes, n_overrides, err));
    if (said != NULL)
        DPT_TRY(dpt_config_take_said(&load, said, err));
    dpt_config_resolve(&load);
    DPT_TRY(dpt_config_check(&load, err));
    *ret = load.config;
    return DPT_OK;
}

enum dpt_status dpt_config_load(const char *text, size_t bytes, const char *source,
                                const char *const *overrides, size_t n_overrides,
                                struct dpt_config *ret, struct dpt_err *err)
{
    return dpt_config_load_said(text, bytes, source, overrides, n_overrides, NULL, ret, err);
}

/* Writes the headings of the sections that hold the key and not `before`, the key before it, then
 * the key's line. Returns how long they are. */
static size_t print_key(const char *path, const char *before, const char *value, char *to,
                        size_t to_bytes)
{
    size_t used = 0;
    int depth = 0;
    for (const char *name = path;; depth++) {
        const size_t n = strcspn(name, "."), upto = (size_t)(name - path) + n + 1;
        const bool is_key = name[n] == '\0';
        if (is_key || strncmp(path, before, upto) != 0)
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

int dpt_config_slots(const struct dpt_config *config)
{
    return config->train.global_batch / config->train.micro_batch;
}

int dpt_config_lanes(const struct dpt_config *config)
{
    const int slots = dpt_config_slots(config);
    const bool fast = config->train.reduction == DPT_REDUCTION_FAST;
    const int most = fast ? DPT_CONFIG_WORLD_MAX : AUTO_LANES_MAX;
    if (config->train.lanes != DPT_AUTO)
        return config->train.lanes;
    return slots < most ? slots : most;
}

int dpt_config_lanes_of(const struct dpt_config *config, int world_size)
{
    const bool of_ranks = config->train.reduction == DPT_REDUCTION_FAST ||
                          config->strategy.compression == DPT_COMPRESSION_POWERSGD;
    return of_ranks ? world_size : dpt_config_lanes(config);
}

int dpt_config_world_max(const struct dpt_config *config)
{
    const int most = dpt_config_accumulate(config) == DPT_ACCUMULATE_REDUCE
                         ? dpt_config_slots(config)
                         : dpt_config_lanes(config);
    return most < DPT_CONFIG_WORLD_MAX ? most : DPT_CONFIG_WORLD_MAX;
}

bool dpt_config_evaluates(const struct dpt_config *config)
{
    return config->train.eval_every > 0 || config->train.eval_only ||
           (config->train.epochs > 0 && config->data.val[0]);
}

bool dpt_config_scales_loss(const struct dpt_config *config)
{
    return config->train.precision == DPT_PRECISION_FP16 ||
           config->strategy.compression == DPT_COMPRESSION_FP16;
}

enum dpt_status dpt_config_check_gpus(const struct dpt_config *config, int ranks, int gpus,
                                      struct dpt_err *err)
{
    if (gpus == 0 || ranks <= gpus || !dpt_config_uses_nccl(config))
        return DPT_OK;
    return dpt_fail(err, DPT_ECONFIG,
                    "cluster.gpus_per_node is %d and there %s %d, and NCCL takes one rank a GPU: "
                    "set cluster.gpus_per_node to %d, or %s on all nodes",
                    ranks, gpus == 1 ? "is" : "are", gpus, gpus,
                    dpt_strategy_traits(config).takes_host_backend
                        ? "cluster.backend to host"
                        : "strategy.offload to optimizer");
}

static bool rate_depends_on_steps(const struct dpt_config *config)
{
    return config->optimizer.schedule != DPT_SCHEDULE_CONSTANT &&
           config->optimizer.schedule_steps == DPT_AUTO;
}

static bool both_have_epochs(const struct dpt_config *a, const struct dpt_config *b)
{
    return a->train.epochs > 0 && b->train.epochs > 0;
}

/* How many steps a run has changes no weight before the last one unless the learning rate is a
 * function of it. A run that has stopped at no step yet is the same under every on_divergence. */
static enum dpt_config_scope scope_of(const struct dpt_key *key, const struct dpt_config *a,
                                      const struct dpt_config *b)
{
    const bool is_length = strcmp(key->path, "train.steps") == 0 ||
                           (both_have_epochs(a, b) && strcmp(key->path, "train.epochs") == 0);
    if (is_length && !rate_depends_on_steps(a) && !rate_depends_on_steps(b))
        return DPT_CONFIG_RUN;
    if (a->train.on_divergence == DPT_DIVERGENCE_STOP &&
        strcmp(key->path, "train.on_divergence") == 0)
        return DPT_CONFIG_RUN;
    return key->scope;
}

/* What `auto` stands for: the same setting written otherwise is no difference. */
static void replace_auto(struct dpt_config *config)
{
    config->train.lanes = dpt_config_lanes(config);
    config->train.accumulate = dpt_config_accumulate(config);
}

int dpt_config_diff(const struct dpt_config *a, const struct dpt_config *b,
                    enum dpt_config_scope scope, const char *const *allowed, size_t n_allowed,
                    char *ret_keys, size_t keys_bytes)
{
    struct dpt_config left = *a, right = *b;
    char left_text[DPT_CONFIG_VALUE_BYTES], right_text[DPT_CONFIG_VALUE_BYTES];
    size_t used = 0;
    int n = 0;
    replace_auto(&left);
    replace_auto(&right);
    DPT_ASSERT(keys_bytes > 0);
    ret_keys[0] = '\0';
    for (size_t i = 0; i < dpt_config_n_keys; i++) {
        const struct dpt_key *key = &dpt_config_keys[i];
        bool passed = (key->flags & DPT_KEY_ALIAS) || scope_of(key, a, b) > scope;
        /* Their product: a change is told by the key that was changed. */
        passed = passed || (both_have_epochs(a, b) && strcmp(key->path, "train.steps") == 0);
        for (size_t j = 0; j < n_allowed; j++)
            passed = passed || strcmp(allowed[j], key->path) == 0;
        if (passed)
            continue;
        dpt_config_key_format(key, &left, left_text);
        dpt_config_key_format(key, &right, right_text);
        if (strcmp(left_text, right_text) == 0)
            continue;
        int written =
            snprintf(ret_keys + used, keys_bytes - used, "%s%s (%.*s, here %.*s)", n ? ", " : "",
                     key->path, SHOWN_BYTES, left_text, SHOWN_BYTES, right_text);
        if (written > 0) /* what does not fit is cut: a line for a person */
            used += (size_t)written < keys_bytes - used ? (size_t)written : keys_bytes - used - 1;
        n++;
    }
    return n;
}
