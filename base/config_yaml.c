/* libyaml's event stream as (path, value, position). The only file that includes <yaml.h>. */
#include "base/config_yaml.h"

#include "base/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

/* The state of a parse. The function that fetches an event also deletes the event. */
struct walk {
    yaml_parser_t parser;
    struct dpt_yaml *yaml;
    const char *text;
    size_t bytes;
    const char *source;
    bool is_override;
    struct dpt_err *err;
};

/* Fails with the formatted text at `mark`, which counts lines and columns from 0. */
static enum dpt_status DPT_PRINTF(3, 4)
    refuse_at(const struct walk *walk, yaml_mark_t mark, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)dpt_vfail(walk->err, DPT_ECONFIG, fmt, ap);
    va_end(ap);
    if (walk->is_override)
        return dpt_wrap(walk->err, DPT_ECONFIG, "%s", walk->source);
    return dpt_wrap(walk->err, DPT_ECONFIG, "%s:%zu:%zu", walk->source, mark.line + 1,
                    mark.column + 1);
}

/* Fails with the position of a byte of the text. */
static enum dpt_status refuse_at_byte(const struct walk *walk, size_t at, const char *problem)
{
    yaml_mark_t mark = {.column = at};
    for (size_t i = 0; i < at && i < walk->bytes; i++)
        if (walk->text[i] == '\n') {
            mark.line++;
            mark.column = at - i - 1;
        }
    return refuse_at(walk, mark, "%s", problem);
}

static bool is_indented_by_tab(const struct walk *walk, size_t line)
{
    const char *p = walk->text, *end = walk->text + walk->bytes;
    for (; line > 0 && p < end; line--) {
        const char *newline = memchr(p, '\n', (size_t)(end - p));
        p = newline ? newline + 1 : end;
    }
    while (p < end && *p == ' ')
        p++;
    return p < end && *p == '\t';
}

static enum dpt_status parser_error(const struct walk *walk)
{
    const yaml_parser_t *parser = &walk->parser;
    const char *problem = parser->problem ? parser->problem : "not YAML";
    char octets[96];
    if (parser->error == YAML_MEMORY_ERROR)
        return dpt_fail_nomem(walk->err, "parse '%s'", walk->source);
    if (parser->error == YAML_READER_ERROR) {
        (void)snprintf(octets, sizeof octets, "%s; a config is UTF-8", problem);
        return refuse_at_byte(walk, parser->problem_offset, octets);
    }
    const bool tab = is_indented_by_tab(walk, parser->problem_mark.line);
    return refuse_at(walk, parser->problem_mark, "%s%s%s%s", problem, parser->context ? " " : "",
                     parser->context ? parser->context : "",
                     tab ? "; indent with spaces, not tabs" : "");
}

static enum dpt_status next_event(struct walk *walk, yaml_event_t *ret_event)
{
    return yaml_parser_parse(&walk->parser, ret_event) ? DPT_OK : parser_error(walk);
}

static enum dpt_status add_pair(struct walk *walk, const char *path, enum dpt_yaml_kind kind,
                                yaml_mark_t mark, struct dpt_yaml_pair **ret_pair)
{
    struct dpt_yaml *yaml = walk->yaml;
    for (size_t i = 0; i < yaml->n_pairs; i++) {
        const struct dpt_yaml_pair *old = &yaml->pair[i];
        if (strcmp(old->path, path) == 0)
            return refuse_at(walk, mark, "%s is given twice, first on line %d", path, old->line);
    }
    if (yaml->n_pairs == DPT_YAML_PAIRS_MAX)
        return refuse_at(walk, mark, "more than %d keys", DPT_YAML_PAIRS_MAX);
    struct dpt_yaml_pair *pair = &yaml->pair[yaml->n_pairs++];
    (void)snprintf(pair->path, sizeof pair->path, "%s", path);
    pair->kind = kind;
    pair->value = &yaml->value[yaml->n_values];
    pair->line = (int)mark.line + 1;
    pair->column = (int)mark.column + 1;
    *ret_pair = pair;
    return DPT_OK;
}

/* Refuses anchors, tags and aliases. */
static enum dpt_status check_plain_node(const struct walk *walk, const yaml_event_t *event)
{
    const yaml_char_t *anchor = NULL, *tag = NULL;
    if (event->type == YAML_SCALAR_EVENT) {
        anchor = event->data.scalar.anchor;
        tag = event->data.scalar.tag;
    } else if (event->type == YAML_SEQUENCE_START_EVENT) {
        anchor = event->data.sequence_start.anchor;
        tag = event->data.sequence_start.tag;
    } else if (event->type == YAML_MAPPING_START_EVENT) {
        anchor = event->data.mapping_start.anchor;
        tag = event->data.mapping_start.tag;
    } else if (event->type == YAML_ALIAS_EVENT) {
        return refuse_at(walk, event->start_mark,
                         "aliases (*name) are not used here: write the value");
    }
    if (anchor)
        return refuse_at(walk, event->start_mark, "anchors (&name) are not used here");
    if (tag)
        return refuse_at(walk, event->start_mark, "tags (!name) are not used here");
    return DPT_OK;
}

static enum dpt_status add_value(struct walk *walk, struct dpt_yaml_pair *pair,
                                 const yaml_event_t *event)
{
    struct dpt_yaml *yaml = walk->yaml;
    DPT_TRY(check_plain_node(walk, event));
    if (event->type != YAML_SCALAR_EVENT)
        return refuse_at(walk, event->start_mark, "%s: a list holds plain values only", pair->path);
    const char *text = (const char *)event->data.scalar.value;
    if (strlen(text) != event->data.scalar.length)
        return refuse_at(walk, event->start_mark, "%s: a value may not hold a NUL character",
                         pair->path);
    if (yaml->n_values == DPT_YAML_VALUES_MAX)
        return refuse_at(walk, event->start_mark, "more than %d values", DPT_YAML_VALUES_MAX);
    char *copy = strdup(text);
    if (!copy)
        return dpt_fail_nomem(walk->err, "parse '%s'", walk->source);
    yaml->value[yaml->n_values++] = (struct dpt_yaml_value){
        .text = copy,
        .plain = event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE,
        .line = (int)event->start_mark.line + 1,
        .column = (int)event->start_mark.column + 1,
    };
    pair->n_values++;
    return DPT_OK;
}

static enum dpt_status walk_list(struct walk *walk, struct dpt_yaml_pair *pair)
{
    enum dpt_status status = DPT_OK;
    bool more = true;
    while (status == DPT_OK && more) {
        yaml_event_t event = {.type = YAML_NO_EVENT};
        DPT_TRY(next_event(walk, &event));
        more = event.type != YAML_SEQUENCE_END_EVENT;
        if (more)
            status = add_value(walk, pair, &event);
        yaml_event_delete(&event);
    }
    return status;
}

static enum dpt_status walk_mapping(struct walk *walk, const char *path, int depth);

/* Reads a node that begins with `event`. `path` is "" for the root. `mark` is the position of the
 * node's key. */
static enum dpt_status walk_node(struct walk *walk, const yaml_event_t *event, const char *path,
                                 yaml_mark_t mark, int depth)
{
    struct dpt_yaml_pair *pair;
    DPT_TRY(check_plain_node(walk, event));
    switch (event->type) {
    case YAML_MAPPING_START_EVENT:
        if (path[0])
            DPT_TRY(add_pair(walk, path, DPT_YAML_SECTION, mark, &pair));
        return walk_mapping(walk, path, depth + 1);
    case YAML_SEQUENCE_START_EVENT:
        if (!path[0])
            break;
        DPT_TRY(add_pair(walk, path, DPT_YAML_LIST, mark, &pair));
        return walk_list(walk, pair);
    case YAML_SCALAR_EVENT:
        if (!path[0])
            break;
        DPT_TRY(add_pair(walk, path, DPT_YAML_SCALAR, mark, &pair));
        return add_value(walk, pair, event);
    default:
        break;
    }
    return refuse_at(walk, event->start_mark, "expected keys and values, such as 'seed: 42'");
}

/* Makes the path "path.name" of a mapping's key. */
static enum dpt_status key_path(const struct walk *walk, const yaml_event_t *event,
                                const char *path, char ret_path[DPT_YAML_PATH_BYTES])
{
    DPT_TRY(check_plain_node(walk, event));
    if (event->type != YAML_SCALAR_EVENT)
        return refuse_at(walk, event->start_mark, "a key must be a word");
    const char *name = (const char *)event->data.scalar.value;
    size_t n = event->data.scalar.length;
    if (n == 0 || strlen(name) != n)
        return refuse_at(walk, event->start_mark, "a key must be a word");
    if (strchr(name, '.'))
        return refuse_at(walk, event->start_mark,
                         "key '%.60s' has a dot: write the section, and the key inside it", name);
    int used = snprintf(ret_path, DPT_YAML_PATH_BYTES, "%s%s%s", path, path[0] ? "." : "", name);
    if (used < 0 || used >= DPT_YAML_PATH_BYTES)
        return refuse_at(walk, event->start_mark, "unknown key '%.60s…'", name);
    return DPT_OK;
}

static enum dpt_status walk_mapping(struct walk *walk, const char *path, int depth)
{
    for (;;) {
        yaml_event_t event = {.type = YAML_NO_EVENT};
        char inner[DPT_YAML_PATH_BYTES] = "";
        DPT_TRY(next_event(walk, &event));
        yaml_mark_t mark = event.start_mark;
        bool end = event.type == YAML_MAPPING_END_EVENT;
        enum dpt_status status = DPT_OK;
        if (!end && depth > DPT_YAML_DEPTH_MAX)
            status = refuse_at(walk, mark, "nested too deeply");
        else if (!end)
            status = key_path(walk, &event, path, inner);
        yaml_event_delete(&event);
        if (end || status != DPT_OK)
            return status;
        DPT_TRY(next_event(walk, &event));
        status = walk_node(walk, &event, inner, mark, depth);
        yaml_event_delete(&event);
        DPT_TRY(status);
    }
}

static enum dpt_status walk_stream(struct walk *walk, const char *prefix)
{
    bool seen = false;
    for (;;) { /* the size of the text limits the number of events */
        yaml_event_t event = {.type = YAML_NO_EVENT};
        enum dpt_status status = DPT_OK;
        DPT_TRY(next_event(walk, &event));
        bool end = event.type == YAML_STREAM_END_EVENT;
        switch (event.type) {
        case YAML_STREAM_END_EVENT:
            if (prefix && !seen)
                status =
                    refuse_at(walk, event.start_mark, "no value after '=' (null is written null)");
            break;
        case YAML_STREAM_START_EVENT:
        case YAML_DOCUMENT_END_EVENT:
            break;
        case YAML_DOCUMENT_START_EVENT:
            if (seen)
                status = refuse_at(walk, event.start_mark, "a second document: a config is one");
            seen = true;
            break;
        case YAML_SCALAR_EVENT: /* a document that has only comments is an empty config */
            if (!prefix && event.data.scalar.length == 0)
                break;
            /* fall through */
        default:
            status = walk_node(walk, &event, prefix ? prefix : "", event.start_mark, 0);
        }
        yaml_event_delete(&event);
        if (end || status != DPT_OK)
            return status;
    }
}

enum dpt_status dpt_yaml_parse(const char *text, size_t bytes, const char *source,
                               const char *prefix, struct dpt_yaml **ret_yaml, struct dpt_err *err)
{
    /* U+FEFF, which some editors write at the start of a file. */
    static const char mark[] = {'\xef', '\xbb', '\xbf'};
    if (!prefix && bytes >= sizeof mark && memcmp(text, mark, sizeof mark) == 0) {
        text += sizeof mark;
        bytes -= sizeof mark;
    }
    struct walk walk = {
        .text = text, .bytes = bytes, .source = source, .is_override = prefix != NULL, .err = err};
    if (bytes > DPT_CONFIG_TEXT_BYTES_MAX)
        return dpt_fail(err, DPT_ECONFIG, "%s: %zu bytes, at most %d are allowed", source, bytes,
                        DPT_CONFIG_TEXT_BYTES_MAX);
    const char *nul = bytes > 0 ? memchr(text, '\0', bytes) : NULL;
    if (nul)
        return refuse_at_byte(&walk, (size_t)(nul - text), "a NUL byte: not a text file");

    walk.yaml = calloc(1, sizeof *walk.yaml);
    if (!walk.yaml || !yaml_parser_initialize(&walk.parser)) {
        free(walk.yaml);
        return dpt_fail_nomem(err, "parse '%s'", source);
    }
    yaml_parser_set_encoding(&walk.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&walk.parser, (const unsigned char *)(bytes > 0 ? text : ""),
                                 bytes);
    enum dpt_status status = walk_stream(&walk, prefix);
    yaml_parser_delete(&walk.parser);
    if (status != DPT_OK)
        dpt_yaml_destroy(&walk.yaml);
    else
        *ret_yaml = walk.yaml;
    return status;
}

void dpt_yaml_destroy(struct dpt_yaml **yaml)
{
    if (!*yaml)
        return;
    for (size_t i = 0; i < (*yaml)->n_values; i++)
        free((*yaml)->value[i].text);
    free(*yaml);
    *yaml = NULL;
}

bool dpt_yaml_is_null(const struct dpt_yaml_value *value)
{
    static const char *const words[] = {"", "~", "null", "Null", "NULL"};
    for (size_t i = 0; value->plain && i < sizeof words / sizeof *words; i++)
        if (strcmp(value->text, words[i]) == 0)
            return true;
    return false;
}
