/* Texts for the user, of facts that do not stop a report. */
#ifndef DPT_WORKER_REPORT_WARNINGS_H
#define DPT_WORKER_REPORT_WARNINGS_H

#include "base/err.h"

enum { REPORT_WARNINGS_MAX = 8, REPORT_WARNING_BYTES = 512 };

struct report_warnings {
    char text[REPORT_WARNINGS_MAX][REPORT_WARNING_BYTES];
    int n;
};

/* Adds a text. More than REPORT_WARNINGS_MAX are left out. */
void DPT_PRINTF(2, 3) report_warn(struct report_warnings *warnings, const char *fmt, ...);

/* Prints them to the standard error. */
void report_warnings_print(const struct report_warnings *warnings);

#endif
