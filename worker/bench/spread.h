/* The spread of repeated measurements, and the comparison of two that alternate. Pure. */
#ifndef DPT_WORKER_BENCH_SPREAD_H
#define DPT_WORKER_BENCH_SPREAD_H

#include <stdbool.h>

enum { SPREAD_REPEATS_MAX = 15 };

struct spread {
    int n;
    double median, min, max;
    double mean, deviation; /* of the sample, divided by n - 1; 0 for one value */
};

/* Of n values, 1 <= n <= SPREAD_REPEATS_MAX. */
struct spread spread_of(const double *values, int n);

/* b over a, measured in pairs: a[i] and b[i] belong to repeat i. The logarithms of the ratios are
 * taken as normally distributed. `low` to `high` is Student's 95 % interval of their mean. */
struct paired_ratio {
    double ratio, low, high; /* ratio: geometric mean; without an interval all three are equal */
    bool has_interval;       /* there are two pairs or more */
    bool differs;            /* has_interval, and the interval does not contain 1 */
};

/* Of n pairs, 1 <= n <= SPREAD_REPEATS_MAX. All values are above 0. */
struct paired_ratio paired_ratio_of(const double *a, const double *b, int n);

#endif
