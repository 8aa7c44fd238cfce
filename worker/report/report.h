/* Computes the report of a window from the traces of its ranks. */
#ifndef DPT_WORKER_REPORT_REPORT_H
#define DPT_WORKER_REPORT_REPORT_H

#include "worker/report/read_traces.h"

/* Fills *ret from sources[n], by rank, which report_sources_read gave. `strategy` names the run if
 * its traces do not. The caller frees *ret, also after a failure. DPT_ENOMEM, or DPT_EPROTO: a
 * trace has no kernels in the steps that count. */
DPT_MUST_USE enum dpt_status report_compute(const struct report_source *sources, size_t n,
                                            const char *strategy, struct dpt_report *ret,
                                            struct dpt_err *err);

/* Reads the files and computes. `options->strategy` names the run if its traces do not. */
DPT_MUST_USE enum dpt_status report_of_files(char *const *paths, size_t n,
                                             const struct report_options *options,
                                             struct dpt_report *ret,
                                             struct report_warnings *warnings, struct dpt_err *err);

#endif
