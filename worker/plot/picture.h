/* The picture of dpt-plot: one SVG with four panels over the steps (loss, throughput, learning
 * rate, memory), the curves of all runs, and a vertical line for each generation and each failure.
 * It contains no script and refers to nothing outside. */
#ifndef DPT_WORKER_PLOT_PICTURE_H
#define DPT_WORKER_PLOT_PICTURE_H

#include "worker/plot/run.h"

#include <stddef.h>

enum { PLOT_RUNS_MAX = 8, PLOT_WIDTH = 1200 };

/* The height of a picture of PLOT_WIDTH with so many runs. */
int plot_height(int n_runs);

/* Draws 1 to PLOT_RUNS_MAX runs. `title` may be NULL. *ret_svg is owned by the caller. */
DPT_MUST_USE enum dpt_status plot_picture(const struct plot_run *runs, int n_runs,
                                          const char *title, char **ret_svg, size_t *ret_bytes,
                                          struct dpt_err *err);

#endif
