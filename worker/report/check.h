/* Whether traces are of one window of one run. Pure. */
#ifndef DPT_WORKER_REPORT_CHECK_H
#define DPT_WORKER_REPORT_CHECK_H

#include "worker/report/read_traces.h"

/* Clocks of hosts differ by less. */
#define REPORT_CLOCKS_DIFFER_NS ((int64_t)60 * 1000000000)

/* The rank in "…/rank_3/…" or "…/worker_3.…"; `otherwise` if the path has neither. */
int report_rank_of_path(const char *path, int otherwise);

/* `sources` by rank. Sets a world size that no trace says to the largest rank + 1. The warning of
 * ranks without a trace ends with `elsewhere`. DPT_EPROTO: the error names two files that do not
 * belong together. */
DPT_MUST_USE enum dpt_status report_check(struct report_source *sources, size_t n,
                                          const char *elsewhere, struct report_warnings *warnings,
                                          struct dpt_err *err);

#endif
