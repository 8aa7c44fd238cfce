/* Differences between two windows (diff.h). */
#include "worker/report/diff.h"

#include "base/array.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The rows of the names of one trace: [category][name], the place of the row + 1; 0: none yet. */
struct places {
    size_t *at;
    size_t n_names;
};

/* Steps have numbers, but are one op. */
static const char *name_of_row(const char *name)
{
    return strncmp(name, "ProfilerStep#", 13) == 0 ? "ProfilerStep" : name;
}

static enum dpt_status find_row(struct report_diff *diff, enum report_category category,
                                const char *name, size_t *ret, struct dpt_err *err)
{
    for (size_t i = 0; i < diff->n; i++)
        if (diff->rows[i].category == category && strcmp(diff->rows[i].name, name) == 0) {
            *ret = i;
            return DPT_OK;
        }
    char *copy = strdup(name);
    if (!copy || !dpt_array_reserve(&diff->rows, &diff->room, diff->n + 1, sizeof *diff->rows)) {
        free(copy);
        return dpt_fail_nomem(err, "list of ops");
    }
    diff->rows[diff->n] = (struct report_diff_row){.name = copy, .category = category};
    *ret = diff->n++;
    return DPT_OK;
}

static enum dpt_status add_events(struct report_diff *diff, int side,
                                  const struct report_source *source, const struct places *places,
                                  struct dpt_err *err)
{
    const struct report_trace *trace = &source->trace;
    for (size_t i = 0; i < trace->n; i++) {
        const struct report_event *event = &trace->events[i];
        if (!source->scope.counted[i] || event->category == REPORT_OTHER)
            continue;
        size_t *place = &places->at[(size_t)event->category * places->n_names + event->name];
        if (*place == 0) {
            DPT_TRY(find_row(diff, event->category, name_of_row(report_event_name(trace, event)),
                             place, err));
            ++*place;
        }
        diff->rows[*place - 1].calls[side]++;
        diff->rows[*place - 1].ns[side] += event->end_ns - event->begin_ns;
    }
    return DPT_OK;
}

enum dpt_status report_diff_add(struct report_diff *diff, int side,
                                const struct report_source *sources, size_t n, int rank,
                                struct dpt_err *err)
{
    bool found = false;
    for (size_t r = 0; r < n; r++) {
        if (rank != REPORT_UNKNOWN && sources[r].trace.head.rank != rank)
            continue;
        struct places places = {.n_names = sources[r].trace.names.n};
        places.at = calloc(REPORT_OTHER * places.n_names, sizeof *places.at);
        if (!places.at)
            return dpt_fail_nomem(err, "list of ops");
        const enum dpt_status status = add_events(diff, side, &sources[r], &places, err);
        free(places.at);
        DPT_TRY(status);
        diff->rank_steps[side] += (int64_t)sources[r].scope.n;
        found = true;
    }
    return found ? DPT_OK
                 : dpt_fail(err, DPT_EINVAL, "no trace of rank %d beside '%s'", rank,
                            sources[0].trace.path);
}

double report_diff_step_ms(const struct report_diff *diff, const struct report_diff_row *row,
                           int side)
{
    return (double)row->ns[side] / 1e6 / (double)diff->rank_steps[side];
}

double report_diff_change_ms(const struct report_diff *diff, const struct report_diff_row *row)
{
    return report_diff_step_ms(diff, row, 1) - report_diff_step_ms(diff, row, 0);
}

/* Sorted with their keys, because a comparison knows two rows only. */
struct keyed {
    double change_ms;
    struct report_diff_row row;
};

static int compare_changes(const void *left, const void *right)
{
    const struct keyed *a = left, *b = right;
    if (fabs(a->change_ms) > fabs(b->change_ms))
        return -1;
    if (fabs(a->change_ms) < fabs(b->change_ms))
        return 1;
    if (a->row.category != b->row.category)
        return a->row.category < b->row.category ? -1 : 1;
    return strcmp(a->row.name, b->row.name);
}

enum dpt_status report_diff_sort(struct report_diff *diff, struct dpt_err *err)
{
    struct keyed *keyed = calloc(diff->n + 1, sizeof *keyed);
    if (!keyed)
        return dpt_fail_nomem(err, "list of ops");
    for (size_t i = 0; i < diff->n; i++)
        keyed[i] = (struct keyed){report_diff_change_ms(diff, &diff->rows[i]), diff->rows[i]};
    qsort(keyed, diff->n, sizeof *keyed, compare_changes);
    for (size_t i = 0; i < diff->n; i++)
        diff->rows[i] = keyed[i].row;
    free(keyed);
    return DPT_OK;
}

void report_diff_free(struct report_diff *diff)
{
    for (size_t i = 0; i < diff->n; i++)
        free(diff->rows[i].name);
    free(diff->rows);
    *diff = (struct report_diff){0};
}
