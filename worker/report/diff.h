/* Differences between two traced windows, op by op. */
#ifndef DPT_WORKER_REPORT_DIFF_H
#define DPT_WORKER_REPORT_DIFF_H

#include "worker/report/read_traces.h"

#include <stdio.h>

/* The events of one name and category, in both windows. */
struct report_diff_row {
    char *name; /* owned */
    enum report_category category;
    int64_t calls[2], ns[2]; /* sums over the ranks and steps that count */
};

struct report_diff {
    struct report_diff_row *rows; /* the largest change of time of a step first; owned */
    size_t n, room;
    int64_t rank_steps[2]; /* sums over the ranks of their steps */
};

/* Adds the window of sources[n] as the first (side 0) or the second (side 1): ops of the host,
 * annotations and kernels. `rank`: of this rank only; REPORT_UNKNOWN: of all. DPT_EINVAL: the
 * window has no trace of the rank. */
DPT_MUST_USE enum dpt_status report_diff_add(struct report_diff *diff, int side,
                                             const struct report_source *sources, size_t n,
                                             int rank, struct dpt_err *err);

/* Sorts the rows. Both sides have been added. DPT_ENOMEM. */
DPT_MUST_USE enum dpt_status report_diff_sort(struct report_diff *diff, struct dpt_err *err);

/* The time that the row takes in a step of a rank, in ms; and its change from side 0 to side 1. */
double report_diff_step_ms(const struct report_diff *diff, const struct report_diff_row *row,
                           int side);
double report_diff_change_ms(const struct report_diff *diff, const struct report_diff_row *row);

void report_diff_csv_print(const struct report_diff *diff, FILE *out);
/* The ten rows that changed most, then added and removed ops. */
void report_diff_terminal_print(const struct report_diff *diff, FILE *out);
void report_diff_free(struct report_diff *diff);

#endif
