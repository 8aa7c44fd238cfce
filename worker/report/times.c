/* The time of each step, by class (times.h). */
#include "worker/report/times.h"

#include <string.h>

/* The classes that exclude each other. */
struct classes {
    struct report_intervals compute, data, save, evaluation, wait, transfer;
};

static bool add_all(struct report_intervals *set, const struct report_intervals *other)
{
    for (size_t i = 0; i < other->n; i++)
        if (!report_intervals_add(set, other->at[i].begin, other->at[i].end))
            return false;
    report_intervals_merge(set);
    return true;
}

/* The times of `set` that are also in `other`. */
static bool keep_common(struct report_intervals *set, const struct report_intervals *other)
{
    struct report_intervals outside = {0};
    const bool fits = add_all(&outside, set) && report_intervals_subtract(&outside, other) &&
                      report_intervals_subtract(set, &outside);
    report_intervals_free(&outside);
    return fits;
}

/* The times in which the rank communicates, or waits for other ranks on the thread of the steps. */
static bool take_communication(const struct report_calls *calls, const struct report_phases *phases,
                               struct report_intervals *set)
{
    for (size_t i = 0; i < calls->n; i++)
        if (!report_intervals_add(set, calls->at[i].begin_ns, calls->at[i].end_ns))
            return false;
    return add_all(set, &phases->of[REPORT_PHASE_GRAD_SYNC]) &&
           add_all(set, &phases->of[REPORT_PHASE_SYNC]);
}

static bool take_compute(const struct report_trace *trace, struct report_intervals *set)
{
    for (size_t i = 0; i < trace->n; i++)
        if (trace->events[i].kernel == REPORT_COMPUTES &&
            !report_intervals_add(set, trace->events[i].begin_ns, trace->events[i].end_ns))
            return false;
    report_intervals_merge(set);
    return true;
}

/* Fills the classes, and removes from each the classes before it. */
static bool divide_into_classes(const struct report_trace *trace, const struct report_calls *calls,
                                const struct report_phases *phases, struct classes *c)
{
    struct report_intervals *const order[] = {&c->evaluation, &c->compute, &c->data,
                                              &c->save,       &c->wait,    &c->transfer};
    bool fits = take_compute(trace, &c->compute) &&
                add_all(&c->data, &phases->of[REPORT_PHASE_DATA]) &&
                add_all(&c->save, &phases->of[REPORT_PHASE_SAVE]) &&
                add_all(&c->evaluation, &phases->of[REPORT_PHASE_EVALUATION]) &&
                take_communication(calls, phases, &c->transfer) &&
                add_all(&c->wait, &calls->waits) && keep_common(&c->wait, &c->transfer);
    for (size_t i = 1; i < sizeof order / sizeof *order; i++)
        for (size_t k = 0; k < i && fits; k++)
            fits = report_intervals_subtract(order[i], order[k]);
    return fits;
}

static double length_in(const struct report_intervals *set, const struct report_step *step)
{
    return (double)report_intervals_length_in(set, step->begin_ns, step->end_ns);
}

static struct report_step_times times_of(const struct classes *c, const struct report_step *step)
{
    struct report_step_times t = {.step_ns = (double)(step->end_ns - step->begin_ns),
                                  .data_ns = length_in(&c->data, step),
                                  .save_ns = length_in(&c->save, step),
                                  .evaluation_ns = length_in(&c->evaluation, step),
                                  .wait_ns = length_in(&c->wait, step),
                                  .transfer_ns = length_in(&c->transfer, step)};
    t.own_ns = t.step_ns - t.data_ns - t.save_ns - t.evaluation_ns - t.wait_ns - t.transfer_ns;
    return t;
}

/* Adds the work of units and ops to their steps. */
static void add_work(const struct report_trace *trace, const struct report_scope *scope,
                     struct report_step_times *times)
{
    for (size_t i = 0; i < trace->n; i++) {
        const struct report_event *event = &trace->events[i];
        if (event->detail < 0 || event->stream >= 0)
            continue;
        for (size_t s = 0; s < scope->n; s++)
            if (event->begin_ns >= scope->steps[s].begin_ns &&
                event->begin_ns < scope->steps[s].end_ns)
                times[s].work += trace->details[event->detail].work;
    }
}

enum dpt_status report_times_find(const struct report_trace *trace,
                                  const struct report_scope *scope,
                                  const struct report_calls *calls,
                                  const struct report_phases *phases, struct report_step_times *ret,
                                  struct dpt_err *err)
{
    struct classes c;
    memset(&c, 0, sizeof c);
    const bool fits = divide_into_classes(trace, calls, phases, &c);
    for (size_t s = 0; s < scope->n && fits; s++)
        ret[s] = times_of(&c, &scope->steps[s]);
    if (fits)
        add_work(trace, scope, ret);
    report_intervals_free(&c.compute);
    report_intervals_free(&c.data);
    report_intervals_free(&c.save);
    report_intervals_free(&c.evaluation);
    report_intervals_free(&c.wait);
    report_intervals_free(&c.transfer);
    return fits ? DPT_OK : dpt_fail_nomem(err, "times of '%s'", trace->path);
}
