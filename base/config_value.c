/* One config value: from YAML into its member of struct dpt_config, and back to text. */
#include "base/config_table.h"

#include "base/parse.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { SHOWN_BYTES = DPT_CONFIG_SHOWN_BYTES, CHOICES_BYTES = 256 };

static const char *pair_text(const struct dpt_yaml_pair *pair)
{
    return pair->kind == DPT_YAML_SCALAR ? pair->value[0].text
           : pair->kind == DPT_YAML_LIST ? "a list"
                                         : "a section";
}

static void *key_member(const struct dpt_key *key, struct dpt_config *config)
{
    return (char *)config + key->offset;
}

static const void *key_member_const(const struct dpt_key *key, const struct dpt_config *config)
{
    return (const char *)config + key->offset;
}

void dpt_config_key_choices(const struct dpt_key *key, char *ret_text, size_t text_bytes)
{
    size_t used = 0;
    ret_text[0] = '\0';
    for (const struct dpt_choice *c = key->choices; c->name; c++) {
        int n = snprintf(ret_text + used, text_bytes - used, "%s%s", used ? ", " : "",
                         c->name[0] ? c->name : "null");
        DPT_ASSERT(n > 0 && (size_t)n < text_bytes - used); /* the lists of the table are short */
        used += (size_t)n;
    }
}

const struct dpt_choice *dpt_config_key_choice(const struct dpt_key *key,
                                               const struct dpt_config *config)
{
    int value = 0;
    if (key->type == DPT_KEY_CHOICE)
        memcpy(&value, key_member_const(key, config), sizeof value);
    for (const struct dpt_choice *c = key->choices; c->name; c++)
        if (key->type == DPT_KEY_CHOICE ? c->value == value
                                        : strcmp(c->name, key_member_const(key, config)) == 0)
            return c;
    return NULL;
}

/* The choice with the name `text`; NULL: `err` has a DPT_ECONFIG. */
static const struct dpt_choice *choice_named(const struct dpt_key *key, const char *text,
                                             struct dpt_err *err)
{
    char choices[CHOICES_BYTES];
    for (const struct dpt_choice *c = key->choices; c->name; c++)
        if (strcmp(c->name, text) == 0)
            return c;
    dpt_config_key_choices(key, choices, sizeof choices);
    (void)dpt_fail(err, DPT_ECONFIG, "unknown value '%.*s'; supported: %s", SHOWN_BYTES, text,
                   choices);
    return NULL;
}

static enum dpt_status parse_choice(const struct dpt_key *key, const char *text,
                                    struct dpt_config *config, struct dpt_err *err)
{
    const struct dpt_choice *choice = choice_named(key, text, err);
    if (!choice)
        return DPT_ECONFIG;
    if (key->type == DPT_KEY_CHOICE)
        memcpy(key_member(key, config), &choice->value, sizeof choice->value);
    else
        (void)snprintf(key_member(key, config), key->size, "%s", choice->name);
    return DPT_OK;
}

/* False if the text has a control character (C0, DEL, C1), a line separator, a byte order mark or a
 * non-character of the basic plane. libyaml has checked that `text` is UTF-8, or has made it from
 * escapes. */
static bool is_printable(const char *text)
{
    for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
        if (*p < 0x20 || *p == 0x7f)
            return false;
        if (p[0] == 0xc2 && p[1] >= 0x80 && p[1] <= 0x9f)
            return false;
        if (p[0] == 0xe2 && p[1] == 0x80 && (p[2] == 0xa8 || p[2] == 0xa9))
            return false;
        if (p[0] == 0xef && ((p[1] == 0xbb && p[2] == 0xbf) || (p[1] == 0xbf && p[2] >= 0xbe)))
            return false;
    }
    return true;
}

static enum dpt_status parse_text(const struct dpt_key *key, const char *text,
                                  struct dpt_config *config, struct dpt_err *err)
{
    size_t n = strlen(text);
    if (n == 0 && !(key->flags & DPT_KEY_NULL))
        return dpt_fail(err, DPT_ECONFIG, "may not be empty");
    if (n >= key->size)
        return dpt_fail(err, DPT_ECONFIG, "%zu bytes long, at most %zu are allowed", n,
                        key->size - 1);
    if (!is_printable(text))
        return dpt_fail(err, DPT_ECONFIG, "holds a control character");
    memcpy(key_member(key, config), text, n + 1);
    return DPT_OK;
}

static enum dpt_status parse_bool(const struct dpt_key *key, const char *text,
                                  struct dpt_config *config, struct dpt_err *err)
{
    static const char *const words[] = {"true", "True", "TRUE", "false", "False", "FALSE"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(text, words[i]) == 0) {
            const bool yes = i < 3;
            memcpy(key_member(key, config), &yes, sizeof yes);
            return DPT_OK;
        }
    return dpt_fail(err, DPT_ECONFIG, "expected true or false, got '%.*s'", SHOWN_BYTES, text);
}

static enum dpt_status parse_integer(const struct dpt_key *key, const char *text,
                                     struct dpt_config *config, struct dpt_err *err)
{
    int64_t value = DPT_AUTO;
    bool is_auto = (key->flags & DPT_KEY_AUTO) && strcmp(text, "auto") == 0;
    if (!is_auto) {
        DPT_TRY(dpt_parse_i64(text, (int64_t)key->min, (int64_t)key->max, &value, err));
    }
    if (key->type == DPT_KEY_INT) {
        int small = (int)value; /* the ranges in the table fit into an int */
        memcpy(key_member(key, config), &small, sizeof small);
    } else {
        memcpy(key_member(key, config), &value, sizeof value);
    }
    return DPT_OK;
}

static enum dpt_status parse_number(const struct dpt_key *key, const char *text, double *ret_value,
                                    struct dpt_err *err)
{
    double value;
    DPT_TRY(dpt_parse_double(text, &value, err));
    bool low = key->flags & DPT_KEY_OPEN_MIN ? value <= key->min : value < key->min;
    bool high = key->flags & DPT_KEY_OPEN_MAX ? value >= key->max : value > key->max;
    if (low || high)
        return dpt_fail(err, DPT_ECONFIG, "expected a number %s %g to %s%g, got '%.*s'",
                        key->flags & DPT_KEY_OPEN_MIN ? "above" : "from", key->min,
                        key->flags & DPT_KEY_OPEN_MAX ? "below " : "", key->max, SHOWN_BYTES, text);
    *ret_value = value + 0.0; /* no negative zero: equal values are equal bytes */
    return DPT_OK;
}

/* Parses "N" or "MIN:MAX" into two neighbouring ints. */
static enum dpt_status parse_range(const struct dpt_key *key, const char *text,
                                   struct dpt_config *config, struct dpt_err *err)
{
    char least[32];
    int64_t min, max;
    const char *colon = strchr(text, ':');
    size_t n = colon ? (size_t)(colon - text) : strlen(text);
    if (n >= sizeof least)
        return dpt_fail(err, DPT_ECONFIG, "expected N or \"MIN:MAX\", got '%.*s'", SHOWN_BYTES,
                        text);
    memcpy(least, text, n);
    least[n] = '\0';
    DPT_TRY(dpt_parse_i64(least, (int64_t)key->min, (int64_t)key->max, &min, err));
    max = min;
    if (colon)
        DPT_TRY(dpt_parse_i64(colon + 1, (int64_t)key->min, (int64_t)key->max, &max, err));
    if (max < min)
        return dpt_fail(err, DPT_ECONFIG, "MIN:MAX is '%s': the first is larger, write '%lld:%lld'",
                        text, (long long)max, (long long)min);
    const int pair[2] = {(int)min, (int)max};
    memcpy(key_member(key, config), pair, sizeof pair);
    return DPT_OK;
}

/* Refuses numbers in quotes. */
static enum dpt_status check_unquoted(const struct dpt_yaml_value *value, struct dpt_err *err)
{
    return value->plain ? DPT_OK
                        : dpt_fail(err, DPT_ECONFIG, "expected numbers, got text in quotes: '%.*s'",
                                   SHOWN_BYTES, value->text);
}

static enum dpt_status parse_pair(const struct dpt_key *key, const struct dpt_yaml_pair *pair,
                                  struct dpt_config *config, struct dpt_err *err)
{
    double value[2];
    if (pair->kind != DPT_YAML_LIST || pair->n_values != 2)
        return dpt_fail(err, DPT_ECONFIG, "expected two numbers such as %s", key->def);
    for (int i = 0; i < 2; i++) {
        DPT_TRY(check_unquoted(&pair->value[i], err));
        DPT_TRY(parse_number(key, pair->value[i].text, &value[i], err));
    }
    memcpy(key_member(key, config), value, sizeof value);
    return DPT_OK;
}

static enum dpt_status parse_steps(const struct dpt_key *key, const struct dpt_yaml_pair *pair,
                                   struct dpt_config *config, struct dpt_err *err)
{
    struct dpt_config_steps steps = {.n = (int64_t)pair->n_values};
    if (pair->kind != DPT_YAML_LIST || pair->n_values > DPT_CONFIG_STEPS_MAX)
        return dpt_fail(err, DPT_ECONFIG, "expected a list such as %s, of at most %d",
                        key->flags & DPT_KEY_ANY_ORDER ? "[3, 4, 6, 3]" : "[100, 200]",
                        DPT_CONFIG_STEPS_MAX);
    for (int64_t i = 0; i < steps.n; i++) {
        const struct dpt_yaml_value *value = &pair->value[i];
        DPT_TRY(check_unquoted(value, err));
        DPT_TRY(
            dpt_parse_i64(value->text, (int64_t)key->min, (int64_t)key->max, &steps.step[i], err));
        if (!(key->flags & DPT_KEY_ANY_ORDER) && i > 0 && steps.step[i] <= steps.step[i - 1])
            return dpt_fail(err, DPT_ECONFIG, "expected ascending numbers, got %lld after %lld",
                            (long long)steps.step[i], (long long)steps.step[i - 1]);
    }
    memcpy(key_member(key, config), &steps, sizeof steps);
    return DPT_OK;
}

/* Parses a word, or a list of words: the bits of all are set. A choice with the value 0 must not be
 * in a list. */
static enum dpt_status parse_words(const struct dpt_key *key, const struct dpt_yaml_pair *pair,
                                   struct dpt_config *config, struct dpt_err *err)
{
    char choices[CHOICES_BYTES];
    int bits = 0;
    dpt_config_key_choices(key, choices, sizeof choices);
    if (pair->n_values == 0)
        return dpt_fail(err, DPT_ECONFIG, "expected one word or more, got %s; supported: %s",
                        pair->kind == DPT_YAML_LIST ? "an empty list" : pair_text(pair), choices);
    for (size_t i = 0; i < pair->n_values; i++) {
        const struct dpt_choice *word = choice_named(key, pair->value[i].text, err);
        if (!word)
            return DPT_ECONFIG;
        if (word->value == 0 && pair->n_values > 1)
            return dpt_fail(err, DPT_ECONFIG, "'%s' cannot be part of a list with others",
                            word->name);
        bits |= word->value;
    }
    memcpy(key_member(key, config), &bits, sizeof bits);
    return DPT_OK;
}

static bool takes_text(enum dpt_key_type type)
{
    return type == DPT_KEY_TEXT || type == DPT_KEY_CHOICE || type == DPT_KEY_CHOICE_TEXT ||
           type == DPT_KEY_RANGE;
}

enum dpt_status dpt_config_key_parse(const struct dpt_key *key, const struct dpt_yaml_pair *pair,
                                     struct dpt_config *config, struct dpt_err *err)
{
    if (key->type == DPT_KEY_DOUBLE_PAIR)
        return parse_pair(key, pair, config, err);
    if (key->type == DPT_KEY_STEPS)
        return parse_steps(key, pair, config, err);
    if (key->type == DPT_KEY_WORDS)
        return parse_words(key, pair, config, err);
    if (pair->kind != DPT_YAML_SCALAR)
        return dpt_fail(err, DPT_ECONFIG, "expected one value, got %s", pair_text(pair));
    const char *text = pair->value[0].text;
    if (dpt_yaml_is_null(&pair->value[0])) {
        if (!(key->flags & DPT_KEY_NULL))
            return dpt_fail(err, DPT_ECONFIG, "needs a value (default: %s)", key->def);
        text = "";
    } else if (!pair->value[0].plain && !takes_text(key->type)) {
        return dpt_fail(err, DPT_ECONFIG, "expected %s, got text in quotes: '%.*s'",
                        key->type == DPT_KEY_BOOL ? "true or false" : "a number", SHOWN_BYTES,
                        text);
    }
    switch (key->type) {
    case DPT_KEY_TEXT:
        return parse_text(key, text, config, err);
    case DPT_KEY_CHOICE:
    case DPT_KEY_CHOICE_TEXT:
        return parse_choice(key, text, config, err);
    case DPT_KEY_INT:
    case DPT_KEY_INT64:
        return parse_integer(key, text, config, err);
    case DPT_KEY_UINT64:
        return dpt_parse_u64(text, UINT64_MAX, key_member(key, config), err);
    case DPT_KEY_DOUBLE:
        return parse_number(key, text, key_member(key, config), err);
    case DPT_KEY_BOOL:
        return parse_bool(key, text, config, err);
    case DPT_KEY_RANGE:
        return parse_range(key, text, config, err);
    case DPT_KEY_DOUBLE_PAIR:
    case DPT_KEY_STEPS:
    case DPT_KEY_WORDS:
        break; /* handled before */
    }
    return dpt_fail(err, DPT_EINVAL, "type %d of key %s", (int)key->type, key->path);
}

enum dpt_status dpt_config_key_parse_text(const struct dpt_key *key, const char *text,
                                          const char *source, struct dpt_config *config,
                                          struct dpt_err *err)
{
    struct dpt_yaml *yaml = NULL;
    DPT_TRY(dpt_yaml_parse(text, strlen(text), source, key->path, &yaml, err));
    const enum dpt_status status = dpt_config_key_parse(key, &yaml->pair[0], config, err);
    dpt_yaml_destroy(&yaml);
    return status;
}

/* The default of every key, parsed as if a file gave it. Parsed only once, because parsing takes
 * most of the time of a load. */
static struct dpt_config table_defaults;

static void parse_defaults(void)
{
    for (size_t i = 0; i < dpt_config_n_keys; i++) {
        const struct dpt_key *key = &dpt_config_keys[i];
        const enum dpt_status status =
            dpt_config_key_parse_text(key, key->def, "default", &table_defaults, NULL);
        DPT_ASSERT(status == DPT_OK); /* the table is part of the program */
    }
}

const struct dpt_config *dpt_config_table_defaults(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const int rc = pthread_once(&once, parse_defaults);
    DPT_ASSERT(rc == 0);
    return &table_defaults;
}

void dpt_config_key_reset(const struct dpt_key *key, struct dpt_config *config)
{
    memcpy(key_member(key, config), key_member_const(key, dpt_config_table_defaults()), key->size);
}

/* Writes a double-quoted YAML scalar; "" becomes null. Values have no control characters. */
static void format_text(const char *text, char ret_text[DPT_CONFIG_VALUE_BYTES])
{
    if (!text[0]) {
        memcpy(ret_text, "null", 5);
        return;
    }
    char *to = ret_text;
    *to++ = '"';
    for (const char *p = text; *p; p++) {
        if (*p == '"' || *p == '\\')
            *to++ = '\\';
        *to++ = *p;
    }
    *to++ = '"';
    *to = '\0';
}

static void format_integer(const struct dpt_key *key, int64_t value,
                           char ret_text[DPT_CONFIG_VALUE_BYTES])
{
    if ((key->flags & DPT_KEY_AUTO) && value == DPT_AUTO)
        memcpy(ret_text, "auto", 5);
    else
        (void)snprintf(ret_text, DPT_CONFIG_VALUE_BYTES, "%lld", (long long)value);
}

static void format_steps(const struct dpt_config_steps *steps,
                         char ret_text[DPT_CONFIG_VALUE_BYTES])
{
    int used = snprintf(ret_text, DPT_CONFIG_VALUE_BYTES, "[");
    for (int64_t i = 0; i < steps->n; i++)
        used += snprintf(ret_text + used, (size_t)(DPT_CONFIG_VALUE_BYTES - used), "%s%lld",
                         i > 0 ? ", " : "", (long long)steps->step[i]);
    (void)snprintf(ret_text + used, (size_t)(DPT_CONFIG_VALUE_BYTES - used), "]");
}

static void format_words(const struct dpt_key *key, int bits, char ret_text[DPT_CONFIG_VALUE_BYTES])
{
    int used = 0;
    for (const struct dpt_choice *c = key->choices; c->name; c++) {
        const char *before = used == 0 ? "[" : ", ";
        if (bits == 0 ? c->value == 0 : (c->value & bits) != 0)
            used += snprintf(ret_text + used, (size_t)(DPT_CONFIG_VALUE_BYTES - used), "%s%s",
                             bits == 0 ? "" : before, c->name);
    }
    if (bits != 0)
        (void)snprintf(ret_text + used, (size_t)(DPT_CONFIG_VALUE_BYTES - used), "]");
}

void dpt_config_key_format(const struct dpt_key *key, const struct dpt_config *config,
                           char ret_text[DPT_CONFIG_VALUE_BYTES])
{
    const void *from = key_member_const(key, config);
    const int *pair = from;
    const double *number = from;
    char low[DPT_DOUBLE_TEXT_BYTES], high[DPT_DOUBLE_TEXT_BYTES];
    switch (key->type) {
    case DPT_KEY_TEXT:
        format_text(from, ret_text);
        break;
    case DPT_KEY_CHOICE:
    case DPT_KEY_CHOICE_TEXT: {
        const struct dpt_choice *choice = dpt_config_key_choice(key, config);
        DPT_ASSERT(choice);
        (void)snprintf(ret_text, DPT_CONFIG_VALUE_BYTES, "%s",
                       choice->name[0] ? choice->name : "null");
        break;
    }
    case DPT_KEY_INT:
        format_integer(key, *(const int *)from, ret_text);
        break;
    case DPT_KEY_INT64:
        format_integer(key, *(const int64_t *)from, ret_text);
        break;
    case DPT_KEY_UINT64:
        (void)snprintf(ret_text, DPT_CONFIG_VALUE_BYTES, "%llu",
                       (unsigned long long)*(const uint64_t *)from);
        break;
    case DPT_KEY_DOUBLE:
        dpt_format_double(*number, low);
        (void)snprintf(ret_text, DPT_CONFIG_VALUE_BYTES, "%s", low);
        break;
    case DPT_KEY_DOUBLE_PAIR:
        dpt_format_double(number[0], low);
        dpt_format_double(number[1], high);
        (void)snprintf(ret_text, DPT_CONFIG_VALUE_BYTES, "[%s, %s]", low, high);
        break;
    case DPT_KEY_STEPS:
        format_steps(from, ret_text);
        break;
    case DPT_KEY_WORDS:
        format_words(key, *(const int *)from, ret_text);
        break;
    case DPT_KEY_BOOL:
        (void)snprintf(ret_text, DPT_CONFIG_VALUE_BYTES, "%s",
                       *(const bool *)from ? "true" : "false");
        break;
    case DPT_KEY_RANGE:
        (void)snprintf(ret_text, DPT_CONFIG_VALUE_BYTES, "\"%d:%d\"", pair[0], pair[1]);
        break;
    }
}
