/* Medians of measurements. */
#ifndef DPT_BASE_MEDIAN_H
#define DPT_BASE_MEDIAN_H

/* Sorts in ascending order. */
void dpt_sort_doubles(double *values, int n);

/* Sorts, and returns the median: of an even number of values the mean of the two in the middle.
 * n > 0. */
double dpt_median(double *values, int n);

#endif
