/* A plan as a page for the terminal and as JSON. */
#ifndef DPT_WORKER_PLANNER_REPORT_H
#define DPT_WORKER_PLANNER_REPORT_H

#include "worker/planner/estimate.h"

#include <jansson.h>
#include <stdio.h>

struct dpt_plan {
    const char *what; /* the model: a path, a name, "a Llama of 70B parameters" */
    struct dpt_machines machines;
    struct dpt_fit_model model;
    double parameters; /* of the textbook's accounting */
    struct dpt_fit fits[DPT_PLAN_STRATEGIES];
    int n_fits;
    bool strategy_unlisted; /* the config file has a strategy that the table does not have */
    struct dpt_estimate estimate;
};

/* The accountings of the textbook that are printed: numbers of 8, 4 and 2 bytes, and mixed
 * precision. */
enum { DPT_REPORT_WIDTHS = 4 };
struct dpt_report_width {
    const char *name;
    struct dpt_textbook_widths widths;
};
void dpt_report_widths(const struct dpt_plan *plan, struct dpt_report_width ret[DPT_REPORT_WIDTHS]);

/* The seconds of a step that the link of a machine is busy, at most; 0: no link is given. */
double dpt_report_link_s(const struct dpt_plan *plan, const struct dpt_fit *fit);
/* Whether this is longer than the step is computed. */
bool dpt_report_link_limits(const struct dpt_plan *plan, const struct dpt_fit *fit);

/* GB are 10^9 bytes. */
void dpt_report_print(const struct dpt_plan *plan, FILE *out);

/* The caller owns the object. NULL: out of memory, or `what` is not UTF-8. */
json_t *dpt_report_json(const struct dpt_plan *plan);

#endif
