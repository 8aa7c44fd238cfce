/* The reference page of the config keys (config_page.h). */
#include "tests/base/config_page.h"

#include "base/config_table.h"

#include <string.h>

static const char *const scope_names[] = {"trajectory", "run", "node"};

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

void print_config_page(FILE *out)
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
        char takes[DPT_CONFIG_TAKES_BYTES];
        dpt_config_key_takes(key, takes);
        (void)fprintf(out, "| `%s` |", key->path);
        print_cell(out, takes);
        (void)fprintf(out, " `%s` | %s |", key->def, scope_names[key->scope]);
        print_cell(out, key->help);
        (void)fputs("\n", out);
    }
}
