/* The breakdown of a rank's time (breakdown.h). */
#include "worker/report/breakdown.h"

#include "worker/report/intervals.h"

#include <math.h>

enum { US = 1000 }; /* nanoseconds */

/* Kernels in whole microseconds. */
struct kernels {
    struct report_intervals all, compute, comm;
    int64_t sum_us, comm_sum_us;
};

static bool add_kernel(struct kernels *k, const struct report_event *event)
{
    const int64_t begin_us = (event->begin_ns + US - 1) / US, end_us = event->end_ns / US;
    k->sum_us += end_us - begin_us;
    if (event->kernel == REPORT_COMMUNICATES)
        k->comm_sum_us += end_us - begin_us;
    return report_intervals_add(&k->all, begin_us, end_us) &&
           (event->kernel != REPORT_COMPUTES ||
            report_intervals_add(&k->compute, begin_us, end_us)) &&
           (event->kernel != REPORT_COMMUNICATES ||
            report_intervals_add(&k->comm, begin_us, end_us));
}

static double percent_of(int64_t part, int64_t whole)
{
    return whole > 0 ? 100.0 * (double)part / (double)whole : (double)NAN;
}

static struct dpt_report_breakdown breakdown_of(const struct kernels *k)
{
    const int64_t window = k->all.at[k->all.n - 1].end - k->all.at[0].begin,
                  compute = report_intervals_length(&k->compute),
                  idle = window - report_intervals_length(&k->all),
                  comm = report_intervals_length(&k->comm),
                  hidden = report_intervals_common(&k->compute, &k->comm);
    return (struct dpt_report_breakdown){
        .window_ns = window * US,
        .compute_ns = compute * US,
        .non_compute_ns = (window - compute - idle) * US,
        .idle_ns = idle * US,
        .compute_percent = percent_of(compute, window),
        .non_compute_percent = percent_of(window - compute - idle, window),
        .idle_percent = percent_of(idle, window),
        .overlap_percent = percent_of(hidden, comm),
        .comm_overhead_percent = percent_of(k->comm_sum_us, k->sum_us),
        .exposed_percent = percent_of(comm - hidden, window),
    };
}

enum dpt_status report_breakdown(const struct report_trace *trace, const struct report_scope *scope,
                                 struct dpt_report_rank *ret_rank, struct dpt_err *err)
{
    struct kernels k = {0};
    enum dpt_status status = DPT_OK;
    for (size_t i = 0; i < trace->n && status == DPT_OK; i++)
        if (scope->counted[i] && trace->events[i].stream >= 0 && !add_kernel(&k, &trace->events[i]))
            status = dpt_fail_nomem(err, "kernels of '%s'", trace->path);
    if (status == DPT_OK && k.all.n == 0)
        status = dpt_fail(err, DPT_EPROTO,
                          "'%s' has no kernels in the steps that count: trace more steps "
                          "(trace.active), or use --include-last-step",
                          trace->path);
    if (status == DPT_OK) {
        report_intervals_merge(&k.all);
        report_intervals_merge(&k.compute);
        report_intervals_merge(&k.comm);
        ret_rank->time = breakdown_of(&k);
        ret_rank->kernels_ns = k.sum_us * US;
    }
    report_intervals_free(&k.all);
    report_intervals_free(&k.compute);
    report_intervals_free(&k.comm);
    return status;
}
