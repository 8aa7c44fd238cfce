/* One panel of the picture (picture.h). */
#ifndef DPT_WORKER_PLOT_PANEL_H
#define DPT_WORKER_PLOT_PANEL_H

#include "worker/plot/axis.h"
#include "worker/plot/run.h"

#include <stdio.h>

/* The rectangle of the curves in the picture. Title and labels are outside. */
struct plot_box {
    double left, top, width, height;
};

/* Colours of runs; `i` from 0 to PLOT_RUNS_MAX - 1. Static storage. */
const char *plot_color(int i);

void plot_write_panel(FILE *out, const struct plot_run *runs, int n_runs,
                      enum plot_quantity quantity, const struct plot_box *box);

#endif
