/* Reads the traces of the ranks of one window, and refuses traces that do not belong together. */
#ifndef DPT_WORKER_REPORT_READ_TRACES_H
#define DPT_WORKER_REPORT_READ_TRACES_H

#include "worker/report/scope.h"
#include "worker/report/warnings.h"

struct report_options {
    const char *strategy;  /* of runs whose traces do not say it */
    const char *elsewhere; /* "", or more words on ranks without a trace (found.h) */
    bool include_last_step;
    bool parallel; /* a thread for each core reads files */
};

/* A rank of the window. */
struct report_source {
    struct report_trace trace;
    struct report_scope scope;
    enum dpt_status status; /* of its reading */
    struct dpt_err err;
};

/* Fills sources[n], by rank. A rank that the file does not say comes from the path: "rank_3".
 * Warns of ranks without a trace and of dropped events. The caller frees *sources with
 * report_sources_free, also after a failure. DPT_EPROTO: also for traces of different runs, two
 * windows, or two files of one rank. */
DPT_MUST_USE enum dpt_status report_sources_read(char *const *paths, size_t n,
                                                 const struct report_options *options,
                                                 struct report_source *sources,
                                                 struct report_warnings *warnings,
                                                 struct dpt_err *err);
void report_sources_free(struct report_source *sources, size_t n);

#endif
