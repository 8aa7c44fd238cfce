/* Bandwidth and latency between every two nodes, and the judgement on them. Pure. */
#ifndef DPT_WORKER_DOCTOR_MATRIX_H
#define DPT_WORKER_DOCTOR_MATRIX_H

#include "worker/doctor/finding.h"

#include <stdint.h>

enum {
    DPT_MATRIX_NODES_MAX = 64,
    DPT_MATRIX_NAME_BYTES = 96,
    DPT_MATRIX_WHY_BYTES = 256,
    DPT_MATRIX_OUTLIERS_MAX = 16 /* that are named one by one */
};

enum dpt_pair_state { DPT_PAIR_OPEN, DPT_PAIR_MEASURED, DPT_PAIR_FAILED };

struct dpt_pair {
    enum dpt_pair_state state;
    double bytes_per_s;
    double rtt_us, rtt_p99_us;      /* round trip: median and 99th percentile */
    char why[DPT_MATRIX_WHY_BYTES]; /* of FAILED */
};

struct dpt_matrix {
    int n;
    char name[DPT_MATRIX_NODES_MAX][DPT_MATRIX_NAME_BYTES];
    /* Why a node gave no answer; "": it answers. */
    char silent[DPT_MATRIX_NODES_MAX][DPT_MATRIX_WHY_BYTES];
    struct dpt_pair pair[DPT_MATRIX_NODES_MAX][DPT_MATRIX_NODES_MAX]; /* [from][to] */
};

/* Thresholds of the judgement. */
#define DPT_MATRIX_SLOW      0.7  /* of the median bandwidth: below it a pair is an outlier */
#define DPT_MATRIX_FAR       2.0  /* times the median latency, */
#define DPT_MATRIX_FAR_US    50.0 /* and this much more: beyond it a pair is an outlier */
#define DPT_MATRIX_ASYMMETRY 1.25 /* of the bandwidths of a pair's two directions */

/* Medians over the measured pairs; 0: none was measured. */
struct dpt_matrix_medians {
    int n;
    double bytes_per_s, rtt_us;
};
void dpt_matrix_medians(const struct dpt_matrix *matrix, struct dpt_matrix_medians *ret);

/* Adds lines: nodes that do not answer, other pairs that failed, the slowest pair, asymmetric
 * pairs, nodes that are slow to or from all others, and other outliers. */
void dpt_matrix_judge(const struct dpt_matrix *matrix, struct dpt_findings *findings);

#endif
