/* Sets of times (intervals.h). */
#include "worker/report/intervals.h"

#include "base/array.h"

#include <stdlib.h>

bool report_intervals_add(struct report_intervals *set, int64_t begin, int64_t end)
{
    if (!dpt_array_reserve(&set->at, &set->room, set->n + 1, sizeof *set->at))
        return false;
    set->at[set->n++] = (struct report_interval){begin, end};
    return true;
}

static int compare_begins(const void *left, const void *right)
{
    const struct report_interval *a = left, *b = right;
    if (a->begin != b->begin)
        return a->begin < b->begin ? -1 : 1;
    return a->end < b->end ? -1 : a->end > b->end;
}

void report_intervals_merge(struct report_intervals *set)
{
    size_t n = 0;
    if (set->n == 0)
        return;
    qsort(set->at, set->n, sizeof *set->at, compare_begins);
    for (size_t i = 1; i < set->n; i++) {
        if (set->at[i].begin > set->at[n].end)
            set->at[++n] = set->at[i];
        else if (set->at[i].end > set->at[n].end)
            set->at[n].end = set->at[i].end;
    }
    set->n = n + 1;
}

bool report_intervals_subtract(struct report_intervals *set, const struct report_intervals *other)
{
    struct report_intervals rest = {0};
    size_t k = 0;
    for (size_t i = 0; i < set->n; i++) {
        int64_t begin = set->at[i].begin;
        const int64_t end = set->at[i].end;
        while (k < other->n && other->at[k].end <= begin)
            k++;
        for (size_t j = k; j < other->n && other->at[j].begin < end; j++) {
            if (other->at[j].begin > begin &&
                !report_intervals_add(&rest, begin, other->at[j].begin))
                goto failed;
            begin = other->at[j].end > begin ? other->at[j].end : begin;
        }
        if (begin < end && !report_intervals_add(&rest, begin, end))
            goto failed;
    }
    free(set->at);
    *set = rest;
    return true;
failed:
    free(rest.at);
    return false;
}

int64_t report_intervals_length(const struct report_intervals *set)
{
    int64_t sum = 0;
    for (size_t i = 0; i < set->n; i++)
        sum += set->at[i].end - set->at[i].begin;
    return sum;
}

int64_t report_intervals_length_in(const struct report_intervals *set, int64_t begin, int64_t end)
{
    size_t first = 0, last = set->n; /* the first interval that ends after `begin` */
    int64_t sum = 0;
    while (first < last) {
        const size_t middle = (first + last) / 2;
        if (set->at[middle].end > begin)
            last = middle;
        else
            first = middle + 1;
    }
    for (size_t i = first; i < set->n && set->at[i].begin < end; i++) {
        const int64_t from = set->at[i].begin > begin ? set->at[i].begin : begin,
                      to = set->at[i].end < end ? set->at[i].end : end;
        sum += to > from ? to - from : 0;
    }
    return sum;
}

int64_t report_intervals_common(const struct report_intervals *a, const struct report_intervals *b)
{
    int64_t sum = 0;
    size_t i = 0, k = 0;
    while (i < a->n && k < b->n) {
        const int64_t from = a->at[i].begin > b->at[k].begin ? a->at[i].begin : b->at[k].begin,
                      to = a->at[i].end < b->at[k].end ? a->at[i].end : b->at[k].end;
        sum += to > from ? to - from : 0;
        if (a->at[i].end < b->at[k].end)
            i++;
        else
            k++;
    }
    return sum;
}

void report_intervals_free(struct report_intervals *set)
{
    free(set->at);
    *set = (struct report_intervals){0};
}
