/* Sets of times: unions, differences and lengths of intervals. Pure. */
#ifndef DPT_WORKER_REPORT_INTERVALS_H
#define DPT_WORKER_REPORT_INTERVALS_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct report_interval {
    int64_t begin, end;
};

/* Zeroed: empty. Functions but `add` expect, and return, intervals that are sorted and do not
 * overlap (`merge` makes them so). */
struct report_intervals {
    struct report_interval *at; /* [n]; owned */
    size_t n, room;
};

/* Adds an interval in any order. False: out of memory. */
DPT_MUST_USE bool report_intervals_add(struct report_intervals *set, int64_t begin, int64_t end);

/* Sorts the intervals, and joins those that overlap or touch. */
void report_intervals_merge(struct report_intervals *set);

/* Removes the times of `other` from `set`. False: out of memory. */
DPT_MUST_USE bool report_intervals_subtract(struct report_intervals *set,
                                            const struct report_intervals *other);

/* Sums of end - begin: of all, of the part from `begin` to `end`, of the times in both sets. */
int64_t report_intervals_length(const struct report_intervals *set);
int64_t report_intervals_length_in(const struct report_intervals *set, int64_t begin, int64_t end);
int64_t report_intervals_common(const struct report_intervals *a, const struct report_intervals *b);

void report_intervals_free(struct report_intervals *set);

#endif
