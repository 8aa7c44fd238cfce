/* The steps of a run that are traced. Steps are counted over the run, not over the process: a run
 * that was interrupted traces the same steps as a run that was not. The schedule is that of
 * torch.profiler.schedule. Pure. */
#ifndef DPT_WORKER_TRACE_WINDOW_H
#define DPT_WORKER_TRACE_WINDOW_H

#include <stdint.h>

/* Numbers of steps. A window is wait, warmup and active steps, in this order. repeat: number of
 * windows; 0: windows repeat until the end of the run. */
struct dpt_trace_schedule {
    int64_t wait, warmup, active, repeat;
};

enum dpt_trace_phase {
    DPT_TRACE_IDLE,
    DPT_TRACE_WARMUP, /* the step is recorded, and its events are dropped */
    DPT_TRACE_RECORD,
    DPT_TRACE_RECORD_AND_WRITE /* the last step of its window */
};

struct dpt_trace_place {
    enum dpt_trace_phase phase;
    int64_t window; /* from 0 */
};

/* The place of step `step` (from 0) in the schedule. wait, warmup and repeat are 0 or more, active
 * is 1 or more. */
struct dpt_trace_place dpt_trace_window_at(const struct dpt_trace_schedule *schedule, int64_t step);

#endif
