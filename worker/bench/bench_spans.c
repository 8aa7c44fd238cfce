/* dpt-bench spans: the cost of a span of a trace (worker/trace/span.h), in nanoseconds, on a thread
 * without a recorder, outside of a window, and in a window. Each figure contains the call of a
 * function through a pointer, without which the compiler would move the span's test out of the
 * loop; the cost of the call alone is given, too. */
#include "worker/bench/bench.h"
#include "worker/trace/recorder.h"

#include <stdio.h>

enum { SPANS = 100000 }; /* in a call that is timed; less than a ring */

static void call_nothing(void)
{
}

static void make_span(void)
{
    const int64_t began_ns = dpt_trace_begin();
    dpt_trace_end_named(began_ns, "span");
}

static void make_span_with_values(void)
{
    const int64_t began_ns = dpt_trace_begin();
    dpt_trace_end(began_ns, &(struct dpt_trace_span){.name = "span",
                                                     .kind = DPT_TRACE_OP,
                                                     .key = {"a", "b", "c", "d"},
                                                     .value = {1, 2, 3, 4}});
}

struct work {
    void (*volatile call)(void);
    struct dpt_trace_recorder *recorder; /* whose window is begun anew; NULL: none is */
};

static void make_spans(void *ctx)
{
    const struct work *work = ctx;
    if (work->recorder)
        dpt_trace_recorder_begin(work->recorder);
    for (int i = 0; i < SPANS; i++)
        work->call();
}

static struct {
    int64_t repeats;
} args = {.repeats = DPT_BENCH_REPEATS};

static const struct dpt_option options[] = {DPT_BENCH_REPEATS_OPTION(args.repeats)};

static double measure_ns(void (*call)(void), struct dpt_trace_recorder *recorder)
{
    struct work work = {call, recorder};
    return 1e9 * dpt_bench_time(args.repeats, make_spans, &work).median_s / SPANS;
}

static enum dpt_status run_spans(json_t **ret_report, struct dpt_err *err)
{
    struct dpt_trace_recorder *recorder = NULL;
    const double nothing = measure_ns(call_nothing, NULL), off = measure_ns(make_span, NULL);
    DPT_TRY(dpt_trace_recorder_create(DPT_TRACE_EVENTS_MAX, &recorder, err));
    dpt_trace_attach(recorder, DPT_TRACE_MAIN);
    const double outside = measure_ns(make_span, NULL), inside = measure_ns(make_span, recorder),
                 values = measure_ns(make_span_with_values, recorder);
    dpt_trace_attach(NULL, DPT_TRACE_MAIN);
    dpt_trace_recorder_destroy(&recorder);
    printf("a call alone                       %7.2f ns\n"
           "a span without trace.dir           %7.2f ns\n"
           "a span outside of a window         %7.2f ns\n"
           "a span in a window                 %7.2f ns\n"
           "a span with values in a window     %7.2f ns\n",
           nothing, off, outside, inside, values);
    *ret_report =
        json_pack("{s:s, s:f, s:f, s:f, s:f, s:f}", "bench", "spans", "call_ns", nothing, "off_ns",
                  off, "outside_ns", outside, "inside_ns", inside, "values_ns", values);
    return DPT_OK;
}

const struct dpt_bench dpt_bench_spans = {.name = "spans",
                                          .help = "the cost of a span of a trace",
                                          .options = options,
                                          .n_options = sizeof options / sizeof *options,
                                          .run = run_spans};
