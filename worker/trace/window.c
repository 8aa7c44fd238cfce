/* The schedule of traced steps (window.h). */
#include "worker/trace/window.h"

struct dpt_trace_place dpt_trace_window_at(const struct dpt_trace_schedule *schedule, int64_t step)
{
    const int64_t quiet = schedule->wait + schedule->warmup, steps = quiet + schedule->active;
    const int64_t at = step % steps;
    struct dpt_trace_place place = {.phase = DPT_TRACE_IDLE, .window = step / steps};
    if (schedule->repeat > 0 && place.window >= schedule->repeat)
        return place;
    if (at == steps - 1)
        place.phase = DPT_TRACE_RECORD_AND_WRITE;
    else if (at >= quiet)
        place.phase = DPT_TRACE_RECORD;
    else if (at >= schedule->wait)
        place.phase = DPT_TRACE_WARMUP;
    return place;
}
