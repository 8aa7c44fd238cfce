/* The collectives of the ranks: their times, and the part of each in which its rank waits for peers
 * that come late. Pure. */
#ifndef DPT_WORKER_REPORT_CALLS_H
#define DPT_WORKER_REPORT_CALLS_H

#include "worker/report/intervals.h"
#include "worker/report/scope.h"

struct report_call {
    enum dpt_report_collective_kind kind;
    int64_t begin_ns, end_ns;
    int64_t wait_ns; /* from its begin on, unless the trace has annotations of waits */
    size_t step;     /* of scope->steps, by its begin */
    double bytes;
    int group_size;
};

/* The collectives of one rank. */
struct report_calls {
    struct report_call *at; /* [n], by begin; owned */
    size_t n;
    struct report_intervals waits; /* times in which the rank waits for peers; merged */
};

/* Finds the collectives of a rank. Their waits are those that the trace annotates ("wait for
 * peers"). The caller frees *calls, also after a failure. DPT_ENOMEM. */
DPT_MUST_USE enum dpt_status report_calls_find(const struct report_trace *trace,
                                               const struct report_scope *scope, int world_size,
                                               struct report_calls *calls, struct dpt_err *err);

/* Estimates the waits if no trace annotates any inside of the collectives. The collectives of a
 * kind are matched by their order; a collective cannot end before all ranks have begun it, so a
 * rank waits from its begin to the latest begin. Only collectives of all ranks are matched, and
 * waits up to `clock_error_ns` are none. */
DPT_MUST_USE enum dpt_status report_calls_estimate_waits(struct report_calls *ranks, size_t n_ranks,
                                                         int64_t clock_error_ns,
                                                         struct dpt_err *err);

/* Sums over the collectives of each kind. */
void report_calls_sum(const struct report_calls *calls,
                      struct dpt_report_collective ret[REPORT_COLLECTIVES]);

/* The time of the waits inside of collectives. A wait inside of several counts once. DPT_ENOMEM. */
DPT_MUST_USE enum dpt_status report_calls_waited(const struct report_calls *calls, int64_t *ret_ns,
                                                 struct dpt_err *err);

void report_calls_free(struct report_calls *calls);

#endif
