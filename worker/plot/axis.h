/* Axes of a panel: range, unit, ticks and their labels. */
#ifndef DPT_WORKER_PLOT_AXIS_H
#define DPT_WORKER_PLOT_AXIS_H

#include "base/number.h"
#include "worker/plot/run.h"

#include <stdbool.h>

enum { AXIS_TICKS_MAX = 16, AXIS_LABEL_BYTES = DPT_NUMBER_BYTES };

/* From `low` to `high`, in the unit of the labels. Ticks are multiples of `tick`. */
struct plot_axis {
    double low, high, tick;
    double unit;      /* one label unit in the values' unit: 1e3 for thousands */
    const char *name; /* of the values with their unit */
};

/* The axis of steps from the first to the last one of all runs, evaluations included. */
struct plot_axis plot_step_axis(const struct plot_run *runs, int n_runs);
/* The axis of a quantity: from 0 except for the loss. False: no run has a finite value. */
bool plot_value_axis(const struct plot_run *runs, int n_runs, enum plot_quantity quantity,
                     struct plot_axis *ret);

/* The ticks of the axis in its label unit. Returns their number. */
int plot_ticks(const struct plot_axis *axis, double ret_ticks[AXIS_TICKS_MAX]);
/* The label of a tick, with as many decimals as the ticks need; steps have commas: "12,000". */
void plot_tick_label(const struct plot_axis *axis, double tick, char ret[AXIS_LABEL_BYTES]);

#endif
