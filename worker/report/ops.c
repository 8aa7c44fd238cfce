/* The longest ops of a rank (ops.h). */
#include "worker/report/ops.h"

#include <stdio.h>
#include <stdlib.h>

struct total {
    uint32_t name;
    int64_t calls, ns;
};

static int compare_totals(const void *left, const void *right)
{
    const struct total *a = left, *b = right;
    if (a->ns != b->ns)
        return a->ns > b->ns ? -1 : 1;
    return a->name < b->name ? -1 : a->name > b->name;
}

enum dpt_status report_ops_find(const struct report_trace *trace, const struct report_scope *scope,
                                struct dpt_report_rank *ret_rank, struct dpt_err *err)
{
    struct total *totals = calloc(trace->names.n, sizeof *totals);
    if (!totals)
        return dpt_fail_nomem(err, "ops of '%s'", trace->path);
    for (size_t i = 0; i < trace->names.n; i++)
        totals[i].name = (uint32_t)i;
    for (size_t i = 0; i < trace->n; i++) {
        const struct report_event *event = &trace->events[i];
        if (event->stream < 0 || !scope->counted[i])
            continue;
        totals[event->name].calls++;
        totals[event->name].ns += event->end_ns - event->begin_ns;
    }
    qsort(totals, trace->names.n, sizeof *totals, compare_totals);
    ret_rank->n_ops = 0;
    for (size_t i = 0; i < trace->names.n && i < REPORT_OPS && totals[i].calls > 0; i++) {
        struct dpt_report_op *op = &ret_rank->ops[ret_rank->n_ops++];
        (void)snprintf(op->name, sizeof op->name, "%s", trace->names.text[totals[i].name]);
        op->calls = totals[i].calls;
        op->total_ns = totals[i].ns;
        op->percent = ret_rank->kernels_ns > 0
                          ? 100.0 * (double)op->total_ns / (double)ret_rank->kernels_ns
                          : 0;
    }
    free(totals);
    return DPT_OK;
}
