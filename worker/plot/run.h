/* What dpt-plot draws of a run: the curves of metrics.jsonl and the generations of events.jsonl. */
#ifndef DPT_WORKER_PLOT_RUN_H
#define DPT_WORKER_PLOT_RUN_H

#include "base/err.h"

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

enum plot_quantity { PLOT_LOSS, PLOT_THROUGHPUT, PLOT_LR, PLOT_MEMORY, PLOT_QUANTITIES };

struct plot_point {
    int64_t step;
    double value[PLOT_QUANTITIES]; /* not finite: a gap in the curve */
};

struct plot_evaluation {
    int64_t step;
    double loss;
};

enum { PLOT_TEXT_BYTES = 256 };

/* A generation that began, or a step that diverged. */
struct plot_mark {
    int64_t step;               /* completed steps */
    bool is_failure;            /* something was lost, stalled or diverged */
    char text[PLOT_TEXT_BYTES]; /* "generation 3: node_lost, node b is gone" */
};

/* A file that was read, and its lines that are not records. Empty lines count in `lines` only. */
struct plot_file {
    char path[PATH_MAX];
    int64_t lines, records, lines_bad;
    int64_t first_bad; /* its number, from 1 */
};

struct plot_run {
    char name[PLOT_TEXT_BYTES];
    struct plot_file metrics, events;
    /* By step; owned. A step that was computed again is here once, as it was last. */
    struct plot_point *points;
    size_t n_points, points_room;
    struct plot_evaluation *evaluations;
    size_t n_evaluations, evaluations_room;
    struct plot_mark *marks; /* in the order of events.jsonl; owned */
    size_t n_marks, marks_room;
};

/* Reads the run of `path`: its log.dir, or the metrics.jsonl in it. Lines that are not records, or
 * are longer than 1 MiB, are counted and left out. DPT_EINVAL: no line is a record of a step. The
 * caller frees *run, also after a failure. */
DPT_MUST_USE enum dpt_status plot_run_read(const char *path, struct plot_run *run,
                                           struct dpt_err *err);
void plot_run_free(struct plot_run *run);

#endif
