/* The table of keys for people: as part of --help, and as Markdown. */
#include "base/config_table.h"

#include <stdio.h>
#include <string.h>

enum { RANGE_BYTES = 512 };

static const char *const scope_names[] = {"trajectory", "run", "node"};

static const char *type_name(const struct dpt_key *key)
{
    switch (key->type) {
    case DPT_KEY_TEXT:
        return "text";
    case DPT_KEY_CHOICE:
    case DPT_KEY_CHOICE_TEXT:
        return "word";
    case DPT_KEY_INT:
    case DPT_KEY_INT64:
    case DPT_KEY_UINT64:
        return "integer";
    case DPT_KEY_DOUBLE:
        return "number";
    case DPT_KEY_DOUBLE_PAIR:
        return "two numbers";
    case DPT_KEY_STEPS:
        return "list of integers";
    case DPT_KEY_WORDS:
        return "words";
    case DPT_KEY_BOOL:
        return "true or false";
    case DPT_KEY_RANGE:
        return "N or \"MIN:MAX\"";
    }
    return "";
}

/* "1 … 8, auto", "fp32, bf16": what the key takes. */
static void describe_range(const struct dpt_key *key, char ret_text[RANGE_BYTES])
{
    size_t used = 0;
    ret_text[0] = '\0';
    switch (key->type) {
    case DPT_KEY_CHOICE:
    case DPT_KEY_CHOICE_TEXT:
    case DPT_KEY_WORDS:
        dpt_config_key_choices(key, ret_text, RANGE_BYTES);
        return;
    case DPT_KEY_INT:
    case DPT_KEY_INT64:
    case DPT_KEY_DOUBLE:
    case DPT_KEY_DOUBLE_PAIR:
    case DPT_KEY_STEPS:
    case DPT_KEY_RANGE:
        used = (size_t)snprintf(ret_text, RANGE_BYTES, "%s%.15g … %s%.15g",
                                key->flags & DPT_KEY_OPEN_MIN ? "above " : "", key->min,
                                key->flags & DPT_KEY_OPEN_MAX ? "below " : "", key->max);
        break;
    case DPT_KEY_UINT64:
        used = (size_t)snprintf(ret_text, RANGE_BYTES, "0 … %llu", (unsigned long long)UINT64_MAX);
        break;
    case DPT_KEY_TEXT:
        used = (size_t)snprintf(ret_text, RANGE_BYTES, "at most %zu bytes", key->size - 1);
        break;
    case DPT_KEY_BOOL:
        break;
    }
    DPT_ASSERT(used < RANGE_BYTES - 16);
    if (key->flags & DPT_KEY_AUTO)
        (void)snprintf(ret_text + used, RANGE_BYTES - used, ", auto");
    else if (key->flags & DPT_KEY_NULL)
        (void)snprintf(ret_text + used, RANGE_BYTES - used, ", null");
}

void dpt_config_help(FILE *out)
{
    (void)fprintf(
        out, "Config keys (in the file given by --config, or one by one as --set KEY=VALUE):\n");
    for (size_t i = 0; i < dpt_config_n_keys; i++) {
        const struct dpt_key *key = &dpt_config_keys[i];
        char range[RANGE_BYTES];
        describe_range(key, range);
        (void)fprintf(out, "  %-32s %s\n%35s%s%s%s; default %s\n", key->path, key->help, "",
                      type_name(key), range[0] ? ": " : "", range, key->def);
    }
}

/* A cell of a Markdown table: '|' would end it. */
static void print_cell(FILE *out, const char *text)
{
    (void)fputs(" ", out);
    for (const char *p = text; *p; p++) {
        if (*p == '|')
            (void)fputc('\\', out);
        (void)fputc(*p, out);
    }
    (void)fputs(" |", out);
}

static void print_section(FILE *out, const char *path)
{
    size_t n = strcspn(path, ".");
    if (path[n] == '\0')
        (void)fprintf(out, "\n## At the top\n");
    else
        (void)fprintf(out, "\n## %.*s\n", (int)n, path);
    (void)fprintf(out, "\n| key | takes | default | scope | meaning |\n|---|---|---|---|---|\n");
}

void dpt_config_markdown(FILE *out)
{
    (void)fprintf(out, "# Configuration\n"
                       "\n"
                       "<!-- Made by dpt-config-doc from base/config_table.c. Do not edit. -->\n"
                       "\n"
                       "One YAML file, given by `--config`; `--set KEY=VALUE` overrides a key. "
                       "Unknown keys, keys given twice and values\n"
                       "out of range are errors with their place in the file.\n"
                       "\n"
                       "A key's scope says who has to agree. `trajectory`: all nodes, and its "
                       "value changes the bits of the weights, so that\n"
                       "resuming a run refuses another value unless `--allow-change KEY` is given. "
                       "`run`: all nodes, but it may change\n"
                       "between runs. `node`: each node's own.\n");
    const char *section = "";
    for (size_t i = 0; i < dpt_config_n_keys; i++) {
        const struct dpt_key *key = &dpt_config_keys[i];
        const char *dot = strchr(key->path, '.');
        size_t n = strcspn(key->path, ".");
        if (i == 0 || (dot && (strncmp(section, key->path, n) != 0 || section[n] != '.')))
            print_section(out, key->path);
        section = key->path;
        char range[RANGE_BYTES], takes[RANGE_BYTES + 64];
        describe_range(key, range);
        (void)snprintf(takes, sizeof takes, "%s%s%s", type_name(key), range[0] ? ": " : "", range);
        (void)fprintf(out, "| `%s` |", key->path);
        print_cell(out, takes);
        (void)fprintf(out, " `%s` | %s |", key->def, scope_names[key->scope]);
        print_cell(out, key->help);
        (void)fputs("\n", out);
    }
}
