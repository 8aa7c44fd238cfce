/* Reports of groups of files, with their warnings on the standard error. */
#ifndef DPT_WORKER_REPORT_WINDOW_REPORT_H
#define DPT_WORKER_REPORT_WINDOW_REPORT_H

#include "worker/report/args.h"
#include "worker/report/found.h"
#include "worker/report/read_traces.h"

struct report_options report_options_of(const struct report_args *args);

/* The error "No trace files found." `hint`: more words, or "". */
DPT_MUST_USE enum dpt_status report_no_files(const char *hint, struct dpt_err *err);

/* Reads the files of a group of `found`. The caller frees *ret, also after a failure. */
DPT_MUST_USE enum dpt_status report_of_group(const struct report_found *found,
                                             const struct report_group *group,
                                             const struct report_args *args, struct dpt_report *ret,
                                             struct dpt_err *err);

#endif
