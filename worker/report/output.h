/* Writes texts to files. */
#ifndef DPT_WORKER_REPORT_OUTPUT_H
#define DPT_WORKER_REPORT_OUTPUT_H

#include "base/err.h"

#include <stdio.h>

/* Prints into `out`. */
typedef enum dpt_status report_print(const void *what, FILE *out, struct dpt_err *err);

/* Writes dir/name, whole or not at all, and makes the folder. Prints the path to the standard
 * output. Errors of the disk. */
DPT_MUST_USE enum dpt_status report_output(const char *dir, const char *name, report_print *print,
                                           const void *what, struct dpt_err *err);

#endif
