/* The steps and the time of a trace file, without the memory of its events. */
#ifndef DPT_WORKER_REPORT_FILE_SPAN_H
#define DPT_WORKER_REPORT_FILE_SPAN_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

struct report_file_span {
    int64_t first_step, last_step; /* REPORT_UNKNOWN: the file has no steps */
    int64_t begin_ns, end_ns;      /* of the steps; without steps of all events */
};

/* Reads the file; base_ns: of its head. Blocks. DPT_EPROTO also for a file without an event that
 * has a time; other errors are those of report_text_read. */
DPT_MUST_USE enum dpt_status report_file_span_read(const char *path, int64_t base_ns,
                                                   struct report_file_span *ret,
                                                   struct dpt_err *err);

/* Whether files of two ranks may be of one window: their steps overlap and are less than a minute
 * apart, by clocks of two hosts; without steps their times overlap. */
bool report_file_spans_meet(const struct report_file_span *a, const struct report_file_span *b);

#endif
