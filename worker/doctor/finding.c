/* The lines of a report (finding.h). */
#include "worker/doctor/finding.h"

#include <stdarg.h>
#include <string.h>

enum { SUBJECT_COLUMNS = 14 };

struct dpt_finding *dpt_findings_add(struct dpt_findings *list, enum dpt_finding_level level,
                                     const char *section, const char *subject, const char *fmt, ...)
{
    const bool full = list->n == DPT_FINDINGS_MAX;
    struct dpt_finding *item = full ? &list->beyond : &list->item[list->n++];
    list->left_out += full;
    list->count[level]++;
    item->level = level;
    item->section = section;
    item->remedy[0] = '\0';
    (void)snprintf(item->subject, sizeof item->subject, "%s", subject);
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(item->text, sizeof item->text, fmt, ap);
    va_end(ap);
    dpt_one_line(item->subject);
    dpt_one_line(item->text);
    return item;
}

void dpt_finding_set_remedy(struct dpt_finding *finding, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(finding->remedy, sizeof finding->remedy, fmt, ap);
    va_end(ap);
    dpt_one_line(finding->remedy);
}

const char *dpt_finding_word(enum dpt_finding_level level)
{
    static const char *const words[DPT_FINDING_LEVEL_COUNT] = {"-", "ok", "warn", "FAIL"};
    return words[level];
}

void dpt_findings_print(const struct dpt_findings *list, FILE *out)
{
    const char *section = "";
    for (int i = 0; i < list->n; i++) {
        const struct dpt_finding *item = &list->item[i];
        if (strcmp(item->section, section) != 0)
            (void)fprintf(out, "%s%s\n", i > 0 ? "\n" : "", item->section);
        section = item->section;
        (void)fprintf(out, "  %-4s  %-*s  %s\n", dpt_finding_word(item->level), SUBJECT_COLUMNS,
                      item->subject, item->text);
        if (item->remedy[0] != '\0')
            (void)fprintf(out, "  %4s  %-*s  -> %s\n", "", SUBJECT_COLUMNS, "", item->remedy);
    }
    if (list->left_out > 0)
        (void)fprintf(out, "%d more lines are not shown\n", list->left_out);
}

json_t *dpt_finding_json_text(const char *text)
{
    json_t *value = json_string(text);
    return value ? value : json_string("?");
}

json_t *dpt_findings_json(const struct dpt_findings *list)
{
    json_t *array = json_array();
    for (int i = 0; array && i < list->n; i++) {
        const struct dpt_finding *item = &list->item[i];
        json_t *object = json_pack(
            "{s:s, s:s, s:o, s:o, s:o}", "section", item->section, "level",
            item->level == DPT_FINDING_INFO ? "info" : dpt_finding_word(item->level), "subject",
            dpt_finding_json_text(item->subject), "text", dpt_finding_json_text(item->text),
            "remedy", dpt_finding_json_text(item->remedy));
        if (json_array_append_new(array, object) != 0) {
            json_decref(array);
            return NULL;
        }
    }
    return array;
}
