/* Means over the ranks of a report, and their columns. Pure. */
#ifndef DPT_WORKER_REPORT_MEANS_H
#define DPT_WORKER_REPORT_MEANS_H

#include "worker/report/figures.h"

/* The columns of a comparison, and of the user's CSV. */
struct report_mean_column {
    const char *name; /* "step_ms" */
    size_t offset;    /* of a double in struct dpt_report_means */
};
extern const struct report_mean_column report_mean_columns[];
extern const size_t report_n_mean_columns;

double report_mean_get(const struct dpt_report_means *means, size_t column);
void report_mean_set(struct dpt_report_means *means, size_t column, double value);

/* The figures of one rank under the names of the means. */
struct dpt_report_means report_means_of_rank(const struct dpt_report_rank *rank);

/* Fills means from the ranks. */
void report_means_find(struct dpt_report *report);

/* Mean duration of a rank's steps. */
double report_step_ms(const struct dpt_report_rank *rank);

#endif
