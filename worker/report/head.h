/* Parses the head of a trace. */
#ifndef DPT_WORKER_REPORT_HEAD_H
#define DPT_WORKER_REPORT_HEAD_H

#include "worker/report/trace.h"

#include <jansson.h>

/* `text`: a JSON object; `path` is for errors. DPT_EPROTO: the text is not JSON. */
DPT_MUST_USE enum dpt_status report_head_parse(const char *path, const char *text,
                                               struct report_head *ret, struct dpt_err *err);

#endif
