/* The breakdown of a rank's time, by the definitions of Holistic Trace Analysis. Pure. */
#ifndef DPT_WORKER_REPORT_BREAKDOWN_H
#define DPT_WORKER_REPORT_BREAKDOWN_H

#include "worker/report/scope.h"

/* Fills time and kernels_ns of *ret_rank. Source: Holistic Trace Analysis 0.6,
 * hta/analyzers/breakdown_analysis.py (get_temporal_breakdown, get_gpu_kernel_breakdown) and
 * communication_analysis.py (get_comm_comp_overlap). As that tool does, kernels begin and end at
 * whole microseconds: the begin is rounded up and the end down. DPT_ENOMEM; DPT_EPROTO: no kernel
 * counts. */
DPT_MUST_USE enum dpt_status report_breakdown(const struct report_trace *trace,
                                              const struct report_scope *scope,
                                              struct dpt_report_rank *ret_rank,
                                              struct dpt_err *err);

#endif
