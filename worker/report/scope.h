/* The part of a trace that the figures count: whole steps, and the kernels that they launched.
 * Pure.
 *
 * As Holistic Trace Analysis does (hta/common/trace.py, version 0.6), the last step is left out
 * unless the user asks for it, because the profiler may end before its kernels do: a kernel counts
 * if its launch begins before the last ProfilerStep. In a trace with one step, or none, everything
 * counts. */
#ifndef DPT_WORKER_REPORT_SCOPE_H
#define DPT_WORKER_REPORT_SCOPE_H

#include "worker/report/trace.h"

struct report_step {
    int64_t number, begin_ns, end_ns;
};

struct report_scope {
    struct report_step *steps; /* [n], those that count, in order of time; one at least; owned */
    size_t n;
    size_t n_traced; /* steps of the trace */
    int64_t
        until_ns; /* the begin of the first step that does not count; else the end of the last */
    int32_t main_lane; /* the thread of the steps; -1: the trace has no steps */
    bool *counted;     /* [trace->n]; owned */
};

/* The caller frees *scope, also after a failure. DPT_ENOMEM. */
DPT_MUST_USE enum dpt_status report_scope_find(const struct report_trace *trace, bool include_last,
                                               struct report_scope *scope, struct dpt_err *err);
void report_scope_free(struct report_scope *scope);

#endif
