/* Unknown keys: the nearest known name. */
#include "base/config_table.h"

#include <stdio.h>
#include <string.h>

enum { SUGGESTION_BYTES = 384 };

/* A swap of two neighbouring letters is one edit ("optimal string alignment"). */
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

/* Whether `path` is the section of key i ("train" of "train.steps"). */
static bool is_section_of(size_t i, const char *path)
{
    size_t n = strlen(path);
    return strncmp(dpt_config_keys[i].path, path, n) == 0 && dpt_config_keys[i].path[n] == '.';
}

bool dpt_config_is_section(const char *path)
{
    for (size_t i = 0; i < dpt_config_n_keys; i++)
        if (is_section_of(i, path))
            return true;
    return false;
}

/* Adds the names of one level to `ret_text`: the keys of a section ("train"), or the sections and
 * keys at the root (""). */
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

/* Distances are in half edits, so that the same name in another section is farther than a name one
 * edit away, and nearer than a name two edits away. */
enum { EDIT = 2, SAME_NAME = EDIT + 1 };

/* Makes `known` the best suggestion for `path` if it is nearer than the best one so far. For most
 * names the difference of the lengths shows that they are not. */
static void consider_name(const char *path, const char *known, bool same, size_t *least,
                          char best[DPT_YAML_PATH_BYTES])
{
    size_t n = strlen(path), known_n = strlen(known);
    if (!same && EDIT * (n > known_n ? n - known_n : known_n - n) > *least)
        return;
    size_t distance = EDIT * dpt_config_edit_distance(path, known);
    if (same && distance > SAME_NAME)
        distance = SAME_NAME;
    if (distance < *least || (distance == *least && !best[0])) {
        *least = distance;
        (void)snprintf(best, DPT_YAML_PATH_BYTES, "%s", known);
    }
}

/* Writes "; did you mean 'train.steps'?" with a path or section that is one edit away, else with a
 * key of the same name in another section, else with the nearest path or section. Of names that are
 * equally near, the first in the table's order counts; a section stands behind its first key. If no
 * name is near, lists the names that exist. */
static void suggest_name(const char *path, char ret_text[SUGGESTION_BYTES])
{
    char best[DPT_YAML_PATH_BYTES] = "", section[DPT_YAML_PATH_BYTES];
    /* With more edits the name is not a typing error. */
    size_t least = EDIT * (1 + strlen(path) / 4) + 1;
    for (size_t i = 0; i < dpt_config_n_keys; i++) {
        const char *known = dpt_config_keys[i].path;
        bool same_leaf = strcmp(leaf_of(path), leaf_of(known)) == 0;
        consider_name(path, known, same_leaf, &least, best);
        (void)snprintf(section, sizeof section, "%.*s", (int)strcspn(known, "."), known);
        consider_name(path, section, false, &least, best);
    }
    if (best[0]) {
        (void)snprintf(ret_text, SUGGESTION_BYTES, "; did you mean '%s'?", best);
        return;
    }
    (void)snprintf(section, sizeof section, "%.*s", (int)strcspn(path, "."), path);
    list_names(dpt_config_is_section(section) ? section : "", ret_text);
}

enum dpt_status dpt_config_fail_unknown(const char *path, struct dpt_err *err)
{
    char suggestion[SUGGESTION_BYTES];
    if (dpt_config_is_section(path))
        list_names(path, suggestion);
    else
        suggest_name(path, suggestion);
    return dpt_fail(err, DPT_ECONFIG, "unknown key '%.*s'%s", DPT_CONFIG_SHOWN_BYTES, path,
                    suggestion);
}

enum dpt_status dpt_config_check_path(const char *path, struct dpt_err *err)
{
    return dpt_config_key_index(path) < dpt_config_n_keys ? DPT_OK
                                                          : dpt_config_fail_unknown(path, err);
}
