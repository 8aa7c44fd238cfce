/* The memory of a rank over time (ops.h). */
#include "worker/report/ops.h"

#include <stdlib.h>
#include <string.h>

/* Bytes that are allocated for a time. */
struct level {
    int64_t bytes, at_ns, ns;
};

static int compare_times(const void *left, const void *right)
{
    const struct level *a = left, *b = right;
    return a->at_ns < b->at_ns ? -1 : a->at_ns > b->at_ns;
}

static int compare_bytes(const void *left, const void *right)
{
    const struct level *a = left, *b = right;
    return a->bytes < b->bytes ? -1 : a->bytes > b->bytes;
}

/* The events of the device, or of the host if the device has none; returns their number. */
static size_t take_levels(const struct report_trace *trace, struct level *levels)
{
    bool has_device = false;
    size_t n = 0;
    for (size_t i = 0; i < trace->n_memory; i++)
        has_device = has_device || trace->memory[i].is_device;
    for (size_t i = 0; i < trace->n_memory; i++)
        if (trace->memory[i].is_device == has_device)
            levels[n++] = (struct level){.bytes = trace->memory[i].allocated_bytes,
                                         .at_ns = trace->memory[i].at_ns};
    qsort(levels, n, sizeof *levels, compare_times);
    for (size_t i = 0; i + 1 < n; i++)
        levels[i].ns = levels[i + 1].at_ns - levels[i].at_ns;
    return n;
}

/* The curve in REPORT_POINTS_MAX parts of equal time. Each has its greatest value. */
static size_t thin_out(const struct level *levels, size_t n, int64_t begin_ns,
                       struct dpt_report_point *points)
{
    const int64_t first_ns = levels[0].at_ns, last_ns = levels[n - 1].at_ns,
                  part_ns = (last_ns - first_ns) / REPORT_POINTS_MAX + 1;
    int64_t part = -1;
    size_t n_points = 0;
    for (size_t i = 0; i < n; i++) {
        const int64_t here = (levels[i].at_ns - first_ns) / part_ns;
        if (here != part)
            points[n_points++] =
                (struct dpt_report_point){levels[i].at_ns - begin_ns, levels[i].bytes};
        else if (levels[i].bytes > points[n_points - 1].bytes)
            points[n_points - 1] =
                (struct dpt_report_point){levels[i].at_ns - begin_ns, levels[i].bytes};
        part = here;
    }
    return n_points;
}

/* `levels` by bytes; all_ns: sum of their times. */
static int64_t level_percentile(const struct level *levels, size_t n, int64_t all_ns, double share)
{
    double left_ns = share * (double)all_ns;
    for (size_t i = 0; i < n; i++) {
        left_ns -= (double)levels[i].ns;
        if (left_ns <= 0 && levels[i].ns > 0)
            return levels[i].bytes;
    }
    return levels[n - 1].bytes;
}

enum dpt_status report_memory_find(const struct report_trace *trace, int64_t begin_ns,
                                   struct dpt_report_rank *ret_rank, struct dpt_err *err)
{
    struct dpt_report_memory *memory = &ret_rank->memory;
    *memory = (struct dpt_report_memory){REPORT_UNKNOWN, REPORT_UNKNOWN, REPORT_UNKNOWN,
                                         REPORT_UNKNOWN, NULL,           0};
    if (trace->n_memory == 0)
        return DPT_OK;
    struct level *levels = calloc(trace->n_memory, sizeof *levels);
    memory->points = calloc(REPORT_POINTS_MAX, sizeof *memory->points);
    if (!levels || !memory->points) {
        free(levels);
        return dpt_fail_nomem(err, "memory curve of '%s'", trace->path);
    }
    const size_t n = take_levels(trace, levels);
    const int64_t all_ns = levels[n - 1].at_ns - levels[0].at_ns;
    memory->n_points = thin_out(levels, n, begin_ns, memory->points);
    memory->final = levels[n - 1].bytes;
    qsort(levels, n, sizeof *levels, compare_bytes);
    memory->peak = levels[n - 1].bytes;
    memory->p50 = level_percentile(levels, n, all_ns, 0.50);
    memory->p95 = level_percentile(levels, n, all_ns, 0.95);
    free(levels);
    return DPT_OK;
}
