/* The timeline of one step of a rank. Pure. */
#ifndef DPT_WORKER_REPORT_TIMELINE_H
#define DPT_WORKER_REPORT_TIMELINE_H

#include "worker/report/calls.h"

/* Fills spans of *ret_rank: the streams, the parts of the step on its thread, the waits of the
 * communication thread, and the threads of data and checkpoints. Spans count from zero_ns. Kernels
 * that follow each other closely become one span, so that there are REPORT_SPANS_MAX at most.
 * DPT_ENOMEM. */
DPT_MUST_USE enum dpt_status report_timeline_find(const struct report_trace *trace,
                                                  const struct report_scope *scope,
                                                  const struct report_step *step, int64_t zero_ns,
                                                  struct dpt_report_rank *ret_rank,
                                                  struct dpt_err *err);

#endif
