/* Texts for the user (warnings.h). */
#include "worker/report/warnings.h"

#include <stdio.h>

void report_warn(struct report_warnings *warnings, const char *fmt, ...)
{
    va_list ap;
    if (warnings->n == REPORT_WARNINGS_MAX)
        return;
    va_start(ap, fmt);
    (void)vsnprintf(warnings->text[warnings->n++], REPORT_WARNING_BYTES, fmt, ap);
    va_end(ap);
}

void report_warnings_print(const struct report_warnings *warnings)
{
    for (int i = 0; i < warnings->n; i++)
        (void)fprintf(stderr, "dpt-trace: warning: %s\n", warnings->text[i]);
}
