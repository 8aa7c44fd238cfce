/* Spread of repeated measurements (spread.h). */
#include "worker/bench/spread.h"

#include "base/err.h"
#include "base/median.h"
#include "worker/bench/bench.h"

#include <math.h>
#include <string.h>

/* Student's t of n - 1 degrees of freedom: 97.5 % of the distribution is below it. [n] */
static const double student_t[SPREAD_REPEATS_MAX + 1] = {0,     0,     12.706, 4.303, 3.182, 2.776,
                                                         2.571, 2.447, 2.365,  2.306, 2.262, 2.228,
                                                         2.201, 2.179, 2.160,  2.145};

static double mean_of(const double *values, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += values[i];
    return sum / n;
}

static double deviation_of(const double *values, int n, double mean)
{
    double squares = 0;
    for (int i = 0; i < n; i++)
        squares += (values[i] - mean) * (values[i] - mean);
    return n > 1 ? sqrt(squares / (n - 1)) : 0;
}

struct spread spread_of(const double *values, int n)
{
    double sorted[SPREAD_REPEATS_MAX];
    DPT_ASSERT(n >= 1 && n <= SPREAD_REPEATS_MAX);
    memcpy(sorted, values, (size_t)n * sizeof *sorted);
    struct spread s = {.n = n, .median = dpt_median(sorted, n), .mean = mean_of(values, n)};
    s.min = sorted[0];
    s.max = sorted[n - 1];
    s.deviation = deviation_of(values, n, s.mean);
    return s;
}

struct paired_ratio paired_ratio_of(const double *a, const double *b, int n)
{
    double logs[SPREAD_REPEATS_MAX];
    DPT_ASSERT(n >= 1 && n <= SPREAD_REPEATS_MAX);
    for (int i = 0; i < n; i++)
        logs[i] = log(b[i] / a[i]);
    const double mean = mean_of(logs, n);
    const double half = student_t[n] * deviation_of(logs, n, mean) / sqrt(n);
    struct paired_ratio r = {.ratio = exp(mean),
                             .low = exp(mean - half),
                             .high = exp(mean + half),
                             .has_interval = n > 1};
    r.differs = r.has_interval && (r.low > 1 || r.high < 1);
    return r;
}
