/* The collectives of the ranks (calls.h). */
#include "worker/report/calls.h"

#include "base/array.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char wait_prefix[] = "wait for peer";

static int compare_calls(const void *left, const void *right)
{
    const struct report_call *a = left, *b = right;
    if (a->begin_ns != b->begin_ns)
        return a->begin_ns < b->begin_ns ? -1 : 1;
    return a->end_ns < b->end_ns ? -1 : a->end_ns > b->end_ns;
}

static size_t step_at(const struct report_scope *scope, int64_t at_ns)
{
    size_t step = 0;
    while (step + 1 < scope->n && scope->steps[step + 1].begin_ns <= at_ns)
        step++;
    return step;
}

static bool add_call(struct report_calls *calls, size_t *room, const struct report_trace *trace,
                     const struct report_event *event, struct report_call call)
{
    if (!dpt_array_reserve(&calls->at, room, calls->n + 1, sizeof *calls->at))
        return false;
    if (event->detail >= 0) {
        const struct report_detail *detail = &trace->details[event->detail];
        call.kind = detail->collective;
        call.bytes = detail->bytes;
        call.group_size = detail->group_size ? detail->group_size : call.group_size;
    }
    calls->at[calls->n++] = call;
    return true;
}

enum dpt_status report_calls_find(const struct report_trace *trace,
                                  const struct report_scope *scope, int world_size,
                                  struct report_calls *calls, struct dpt_err *err)
{
    size_t room = 0;
    bool fits = true;
    *calls = (struct report_calls){0};
    for (size_t i = 0; i < trace->n && fits; i++) {
        const struct report_event *event = &trace->events[i];
        if (event->kernel == REPORT_COMMUNICATES && scope->counted[i])
            fits = add_call(calls, &room, trace, event,
                            (struct report_call){.kind = REPORT_OTHER_COLLECTIVE,
                                                 .begin_ns = event->begin_ns,
                                                 .end_ns = event->end_ns,
                                                 .step = step_at(scope, event->begin_ns),
                                                 .bytes = (double)NAN,
                                                 .group_size = world_size});
        else if (event->category == REPORT_ANNOTATION &&
                 strncmp(report_event_name(trace, event), wait_prefix, sizeof wait_prefix - 1) == 0)
            fits = report_intervals_add(&calls->waits, event->begin_ns, event->end_ns);
    }
    if (!fits)
        return dpt_fail_nomem(err, "collectives of '%s'", trace->path);
    report_intervals_merge(&calls->waits);
    if (calls->n > 0)
        qsort(calls->at, calls->n, sizeof *calls->at, compare_calls);
    for (size_t i = 0; i < calls->n; i++)
        calls->at[i].wait_ns =
            report_intervals_length_in(&calls->waits, calls->at[i].begin_ns, calls->at[i].end_ns);
    return DPT_OK;
}

/* ---- waits from the begins of all ranks ---- */

/* Collectives of one kind that may be matched by their order: all, or those of one step. */
struct order {
    enum dpt_report_collective_kind kind;
    bool whole;
    size_t step;
};

static bool is_in_order(const struct report_call *call, const struct order *order)
{
    return call->kind == order->kind && (order->whole || call->step == order->step);
}

/* The first collective of the order at or after `from`; n: none. */
static size_t next_in_order(const struct report_calls *calls, size_t from,
                            const struct order *order)
{
    while (from < calls->n && !is_in_order(&calls->at[from], order))
        from++;
    return from;
}

static bool counts_agree(const struct report_calls *ranks, size_t n_ranks,
                         const struct order *order)
{
    size_t first = 0;
    for (size_t r = 0; r < n_ranks; r++) {
        size_t n = 0;
        for (size_t i = 0; i < ranks[r].n; i++)
            n += is_in_order(&ranks[r].at[i], order);
        if (r == 0)
            first = n;
        else if (n != first)
            return false;
    }
    return true;
}

/* One collective, on all ranks: at[r] is its place. The wait begins with the collective. */
static bool estimate_wait(struct report_calls *ranks, size_t n_ranks, const size_t *at,
                          int64_t clock_error_ns)
{
    int64_t latest_ns = INT64_MIN, first_end_ns = INT64_MAX;
    bool is_of_all = true;
    for (size_t r = 0; r < n_ranks; r++) {
        const struct report_call *call = &ranks[r].at[at[r]];
        latest_ns = call->begin_ns > latest_ns ? call->begin_ns : latest_ns;
        first_end_ns = call->end_ns < first_end_ns ? call->end_ns : first_end_ns;
        is_of_all = is_of_all && call->group_size == (int)n_ranks;
    }
    if (!is_of_all || latest_ns - first_end_ns > clock_error_ns)
        return true; /* these are not one collective */
    for (size_t r = 0; r < n_ranks; r++) {
        struct report_call *call = &ranks[r].at[at[r]];
        const int64_t until_ns = latest_ns < call->end_ns ? latest_ns : call->end_ns;
        if (until_ns - call->begin_ns <= clock_error_ns)
            continue;
        call->wait_ns = until_ns - call->begin_ns;
        if (!report_intervals_add(&ranks[r].waits, call->begin_ns, until_ns))
            return false;
    }
    return true;
}

static bool estimate_order(struct report_calls *ranks, size_t n_ranks, const struct order *order,
                           int64_t clock_error_ns, size_t *at)
{
    bool fits = true;
    for (size_t r = 0; r < n_ranks; r++)
        at[r] = next_in_order(&ranks[r], 0, order);
    while (fits && at[0] < ranks[0].n) {
        fits = estimate_wait(ranks, n_ranks, at, clock_error_ns);
        for (size_t r = 0; r < n_ranks; r++)
            at[r] = next_in_order(&ranks[r], at[r] + 1, order);
    }
    return fits;
}

static size_t steps_of(const struct report_calls *ranks, size_t n_ranks)
{
    size_t steps = 0;
    for (size_t r = 0; r < n_ranks; r++)
        for (size_t i = 0; i < ranks[r].n; i++)
            steps = ranks[r].at[i].step + 1 > steps ? ranks[r].at[i].step + 1 : steps;
    return steps;
}

/* Whether the trace annotates a wait that is a part of one of these collectives. Others, such as
 * those of the hosts beside NCCL, say nothing on the waits inside of them. */
static bool annotates_waits(const struct report_calls *calls)
{
    for (size_t i = 0; i < calls->n; i++) {
        const struct report_call *call = &calls->at[i];
        for (size_t w = 0; call->wait_ns > 0 && w < calls->waits.n; w++) {
            const struct report_interval *wait = &calls->waits.at[w];
            if (wait->begin >= call->begin_ns && wait->end <= call->end_ns)
                return true;
        }
    }
    return false;
}

enum dpt_status report_calls_estimate_waits(struct report_calls *ranks, size_t n_ranks,
                                            int64_t clock_error_ns, struct dpt_err *err)
{
    for (size_t r = 0; r < n_ranks; r++)
        if (annotates_waits(&ranks[r]))
            return DPT_OK; /* a rank without annotations did not wait */
    size_t *at = calloc(n_ranks, sizeof *at);
    const size_t n_steps = steps_of(ranks, n_ranks);
    bool fits = at != NULL;
    for (int kind = 0; kind < REPORT_COLLECTIVES && fits; kind++) {
        struct order order = {.kind = (enum dpt_report_collective_kind)kind, .whole = true};
        if (kind == REPORT_SEND_RECV)
            continue; /* between two ranks */
        if (counts_agree(ranks, n_ranks, &order)) {
            fits = estimate_order(ranks, n_ranks, &order, clock_error_ns, at);
            continue;
        }
        order.whole = false;
        for (order.step = 0; order.step < n_steps && fits; order.step++)
            if (counts_agree(ranks, n_ranks, &order))
                fits = estimate_order(ranks, n_ranks, &order, clock_error_ns, at);
    }
    free(at);
    for (size_t r = 0; r < n_ranks; r++)
        report_intervals_merge(&ranks[r].waits);
    return fits ? DPT_OK : dpt_fail_nomem(err, "waits of %zu ranks", n_ranks);
}

/* ---- sums ---- */

/* Bus bandwidth over algorithm bandwidth, by nccl-tests' doc/PERFORMANCE.md. */
static double bus_factor(enum dpt_report_collective_kind kind, int group_size)
{
    const double others = group_size > 1 ? (double)(group_size - 1) / group_size : 0;
    switch (kind) {
    case REPORT_ALL_REDUCE:
        return 2 * others;
    case REPORT_REDUCE_SCATTER:
    case REPORT_ALL_GATHER:
    case REPORT_ALL_TO_ALL:
        return others;
    case REPORT_BROADCAST:
    case REPORT_SEND_RECV:
    case REPORT_OTHER_COLLECTIVE:
    case REPORT_COLLECTIVES:
        break;
    }
    return 1;
}

void report_calls_sum(const struct report_calls *calls,
                      struct dpt_report_collective ret[REPORT_COLLECTIVES])
{
    double bus_bytes[REPORT_COLLECTIVES] = {0};
    memset(ret, 0, REPORT_COLLECTIVES * sizeof *ret);
    for (size_t i = 0; i < calls->n; i++) {
        const struct report_call *call = &calls->at[i];
        struct dpt_report_collective *sum = &ret[call->kind];
        sum->calls++;
        sum->time_ns += call->end_ns - call->begin_ns;
        sum->wait_ns += call->wait_ns;
        sum->bytes += call->bytes;
        bus_bytes[call->kind] += call->bytes * bus_factor(call->kind, call->group_size);
    }
    for (int kind = 0; kind < REPORT_COLLECTIVES; kind++) {
        const int64_t moving_ns = ret[kind].time_ns - ret[kind].wait_ns;
        ret[kind].bus_gb_s = moving_ns > 0 ? bus_bytes[kind] / (double)moving_ns : (double)NAN;
    }
}

enum dpt_status report_calls_waited(const struct report_calls *calls, int64_t *ret_ns,
                                    struct dpt_err *err)
{
    struct report_intervals within = {0};
    bool fits = true;
    for (size_t i = 0; i < calls->n && fits; i++)
        fits = report_intervals_add(&within, calls->at[i].begin_ns, calls->at[i].end_ns);
    if (fits) {
        report_intervals_merge(&within);
        *ret_ns = report_intervals_common(&within, &calls->waits);
    }
    report_intervals_free(&within);
    return fits ? DPT_OK : dpt_fail_nomem(err, "waits in %zu collectives", calls->n);
}

void report_calls_free(struct report_calls *calls)
{
    free(calls->at);
    report_intervals_free(&calls->waits);
    *calls = (struct report_calls){0};
}
