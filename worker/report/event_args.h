/* What the name and the arguments of an event say. Pure. */
#ifndef DPT_WORKER_REPORT_EVENT_ARGS_H
#define DPT_WORKER_REPORT_EVENT_ARGS_H

#include "worker/report/trace.h"

#include <jansson.h>

/* The class of a kernel by its name, by the rules of Holistic Trace Analysis (hta/common/types.py,
 * version 0.6). */
enum report_kernel_class report_kernel_class_of(const char *name);

/* The arguments of a collective's kernel. */
struct report_detail report_collective_detail(const char *name, const json_t *args);

/* Whether the arguments of an event on the host have a detail; *ret is the detail. */
bool report_host_detail(const json_t *args, struct report_detail *ret);

#endif
