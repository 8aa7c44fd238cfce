/* Sums over the events of each name, and the memory of a rank. Pure. */
#ifndef DPT_WORKER_REPORT_OPS_H
#define DPT_WORKER_REPORT_OPS_H

#include "worker/report/scope.h"

/* Fills ops of *ret_rank: the kernels with the longest total. Its kernels_ns is known. DPT_ENOMEM.
 */
DPT_MUST_USE enum dpt_status report_ops_find(const struct report_trace *trace,
                                             const struct report_scope *scope,
                                             struct dpt_report_rank *ret_rank, struct dpt_err *err);

/* Fills memory of *ret_rank from the memory events of the device, or of the host if the device has
 * none. A percentile is over the time: p50 bytes or fewer are allocated half of the time. The
 * points count from begin_ns. DPT_ENOMEM. */
DPT_MUST_USE enum dpt_status report_memory_find(const struct report_trace *trace, int64_t begin_ns,
                                                struct dpt_report_rank *ret_rank,
                                                struct dpt_err *err);

#endif
