/* The ticks of an axis. */
#ifndef DPT_WORKER_HTML_SCALE_H
#define DPT_WORKER_HTML_SCALE_H

/* The distance of ticks: 1, 2 or 5 times a power of ten. `range` (more than 0) has at most
 * `intervals` of them. */
double dpt_html_tick(double range, int intervals);

#endif
