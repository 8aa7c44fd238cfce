/* The median of measurements. */
#include "base/median.h"

#include "base/err.h"

#include <stdlib.h>

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void dpt_sort_doubles(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, compare_doubles);
}

double dpt_median(double *values, int n)
{
    DPT_ASSERT(n > 0);
    dpt_sort_doubles(values, n);
    return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}
