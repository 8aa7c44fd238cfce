/* The lines of a report: a fact, whether it is good, and a remedy if it is not. */
#ifndef DPT_WORKER_DOCTOR_FINDING_H
#define DPT_WORKER_DOCTOR_FINDING_H

#include "base/err.h"

#include <jansson.h>
#include <stdio.h>

enum dpt_finding_level {
    DPT_FINDING_INFO, /* a fact that is neither good nor bad */
    DPT_FINDING_OK,
    DPT_FINDING_WARN, /* dpt works, but slower or less safely */
    DPT_FINDING_FAIL, /* dpt does not work so, or something does not answer */
    DPT_FINDING_LEVEL_COUNT
};

enum {
    DPT_FINDINGS_MAX = 512,
    DPT_FINDING_SUBJECT_BYTES = 64,
    DPT_FINDING_TEXT_BYTES = 320,
    DPT_FINDING_REMEDY_BYTES = 320
};

struct dpt_finding {
    enum dpt_finding_level level;
    const char *section; /* "machine"; a literal */
    char subject[DPT_FINDING_SUBJECT_BYTES];
    char text[DPT_FINDING_TEXT_BYTES];
    char remedy[DPT_FINDING_REMEDY_BYTES]; /* "": none */
};

/* Zero-initialise. */
struct dpt_findings {
    int n, left_out; /* left_out: beyond DPT_FINDINGS_MAX */
    int count[DPT_FINDING_LEVEL_COUNT];
    struct dpt_finding item[DPT_FINDINGS_MAX];
    struct dpt_finding beyond; /* the newest line that is left out */
};

/* Adds a line and returns it. Texts are cut to their room. `subject` may be "". */
struct dpt_finding *dpt_findings_add(struct dpt_findings *list, enum dpt_finding_level level,
                                     const char *section, const char *subject, const char *fmt, ...)
    DPT_PRINTF(5, 6);
/* Sets the remedy of a line. */
void dpt_finding_set_remedy(struct dpt_finding *finding, const char *fmt, ...) DPT_PRINTF(2, 3);

const char *dpt_finding_word(enum dpt_finding_level level);

/* Prints the lines by section, and each remedy below its line. */
void dpt_findings_print(const struct dpt_findings *list, FILE *out);
/* A JSON array of objects; NULL: no memory. Owned by the caller. */
json_t *dpt_findings_json(const struct dpt_findings *list);

/* A JSON string. JSON is UTF-8; a name of the system that is not UTF-8 becomes "?". Owned; NULL: no
 * memory. */
json_t *dpt_finding_json_text(const char *text);

#endif
