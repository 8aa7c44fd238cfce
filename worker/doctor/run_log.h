/* What the log folder of a run tells about a hang: the age of its newest step. For a run whose
 * server is gone; the server knows more (hang.h). */
#ifndef DPT_WORKER_DOCTOR_RUN_LOG_H
#define DPT_WORKER_DOCTOR_RUN_LOG_H

#include "worker/doctor/finding.h"

#include <stdint.h>

enum { DPT_RUN_LOG_TEXT_BYTES = 256, DPT_RUN_LOG_LINES_MAX = 64 };

struct dpt_run_log {
    int64_t step;      /* of the newest line */
    double step_s;     /* its time, seconds since 1970 */
    double interval_s; /* median time between the newest lines; 0: there is one line only */
    int64_t generation;
    int lines;                          /* that were looked at; at most DPT_RUN_LOG_LINES_MAX */
    bool ended;                         /* summary.json is newer than the newest step */
    char event[DPT_RUN_LOG_TEXT_BYTES]; /* newest line of events.jsonl: kind and cause; "": none */
    double event_s;
};

/* Reads the ends of DIR/metrics.jsonl and DIR/events.jsonl, and DIR/summary.json. DPT_ENOENT,
 * DPT_EIO: there is no metrics.jsonl to read. DPT_ECORRUPT: no line of its end is of a step. */
DPT_MUST_USE enum dpt_status dpt_run_log_read(const char *dir, struct dpt_run_log *ret,
                                              struct dpt_err *err);

/* Adds lines: whether steps are as frequent as before. now_s: the time now. Pure. */
void dpt_run_log_judge(const struct dpt_run_log *log, double now_s, struct dpt_findings *findings);
/* Owned; NULL: no memory. */
json_t *dpt_run_log_json(const struct dpt_run_log *log, double now_s);

#endif
