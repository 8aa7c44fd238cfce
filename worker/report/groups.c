/* Puts trace files of one window together (found.h). */
#include "worker/report/found.h"

#include "base/array.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int compare_files(const void *left, const void *right)
{
    const struct report_file *a = left, *b = right;
    const int strategies = strcmp(a->strategy, b->strategy);
    if (strategies != 0)
        return strategies;
    if (a->time_ns != b->time_ns)
        return a->time_ns < b->time_ns ? -1 : 1;
    return strcmp(a->path, b->path);
}

static enum dpt_status add_group(struct report_found *found, const struct report_file *file,
                                 struct dpt_err *err)
{
    struct report_group group = {.head = file->head,
                                 .time_ns = file->time_ns,
                                 .knows_span = file->knows_span,
                                 .span = file->span};
    (void)snprintf(group.strategy, sizeof group.strategy, "%s", file->strategy);
    if (!dpt_array_reserve(&found->groups, &found->groups_room, found->n_groups + 1,
                           sizeof *found->groups))
        return dpt_fail_nomem(err, "list of traces");
    if (found->n_groups > 0 &&
        strcmp(found->groups[found->n_groups - 1].strategy, group.strategy) == 0)
        group.number = found->groups[found->n_groups - 1].number + 1;
    found->groups[found->n_groups++] = group;
    return DPT_OK;
}

static enum dpt_status join_group(struct report_group *group, const struct report_file *file,
                                  struct dpt_err *err)
{
    if (!dpt_array_reserve(&group->paths, &group->paths_room, group->n + 1, sizeof *group->paths) ||
        !dpt_array_reserve(&group->ranks, &group->ranks_room, group->n + 1, sizeof *group->ranks))
        return dpt_fail_nomem(err, "list of traces");
    group->ranks[group->n] = file->rank;
    group->paths[group->n++] = file->path;
    return DPT_OK;
}

static bool has_rank(const struct report_group *group, int rank)
{
    for (size_t i = 0; i < group->n; i++)
        if (group->ranks[i] == rank)
            return true;
    return false;
}

/* Whether the heads say that the file is of the group's window. */
static bool is_of_window(const struct report_group *group, const struct report_file *file)
{
    const struct report_head *head = &group->head;
    return strcmp(group->strategy, file->strategy) == 0 && head->is_dpt == file->head.is_dpt &&
           head->window == file->head.window && head->generation == file->head.generation &&
           strcmp(head->generation_id, file->head.generation_id) == 0 &&
           head->world_size == file->head.world_size;
}

/* The group that a file of dpt joins; n_groups: a new one. Its window is known, so that the newest
 * group decides. */
static size_t choose_group(const struct report_found *found, const struct report_file *file)
{
    size_t chosen = found->n_groups;
    for (size_t g = 0; g < found->n_groups; g++)
        if (is_of_window(&found->groups[g], file))
            chosen = has_rank(&found->groups[g], file->rank) ? found->n_groups : g;
    return chosen;
}

static int64_t distance_ns(const struct report_group *group, const struct report_file *file)
{
    const int64_t apart_ns = file->span.begin_ns - group->span.begin_ns;
    return apart_ns < 0 ? -apart_ns : apart_ns;
}

/* The same for a file of another program: by its span, else the first that lacks its rank and of
 * which it may be. */
static size_t choose_foreign_group(const struct report_found *found, const struct report_file *file)
{
    size_t chosen = found->n_groups, counted = found->n_groups;
    for (size_t g = 0; g < found->n_groups; g++) {
        const struct report_group *group = &found->groups[g];
        if (!is_of_window(group, file) || has_rank(group, file->rank))
            continue;
        if (!group->knows_span || !file->knows_span)
            counted = counted == found->n_groups ? g : counted;
        else if (report_file_spans_meet(&group->span, &file->span) &&
                 (chosen == found->n_groups ||
                  distance_ns(group, file) < distance_ns(&found->groups[chosen], file)))
            chosen = g;
    }
    return chosen < found->n_groups ? chosen : counted;
}

/* ---- windows of other programs ---- */

/* The end of the files of the strategy that begins at `first`. */
static size_t end_of_strategy(const struct report_found *found, size_t first)
{
    size_t end = first;
    while (end < found->n_files &&
           strcmp(found->files[end].strategy, found->files[first].strategy) == 0)
        end++;
    return end;
}

static int compare_ranks(const void *left, const void *right)
{
    const int *a = left, *b = right;
    return *a < *b ? -1 : *a > *b;
}

/* Whether another program wrote two of the files for one rank. */
static enum dpt_status find_rank_twice(const struct report_file *files, size_t n, bool *ret,
                                       struct dpt_err *err)
{
    int *ranks = calloc(n, sizeof *ranks);
    size_t n_foreign = 0;
    if (!ranks)
        return dpt_fail_nomem(err, "list of traces");
    for (size_t i = 0; i < n; i++)
        if (!files[i].head.is_dpt)
            ranks[n_foreign++] = files[i].rank;
    qsort(ranks, n_foreign, sizeof *ranks, compare_ranks);
    *ret = false;
    for (size_t i = 1; i < n_foreign; i++)
        *ret = *ret || ranks[i] == ranks[i - 1];
    free(ranks);
    return DPT_OK;
}

/* Reads the spans of other programs' files where a strategy has several windows. A file that cannot
 * be read has none; a report of its window says why. */
static enum dpt_status read_spans(struct report_found *found, struct dpt_err *err)
{
    for (size_t first = 0, end; first < found->n_files; first = end) {
        bool twice = false;
        end = end_of_strategy(found, first);
        DPT_TRY(find_rank_twice(found->files + first, end - first, &twice, err));
        for (size_t i = first; i < end && twice; i++) {
            struct report_file *file = &found->files[i];
            struct dpt_err ignored;
            file->knows_span =
                !file->head.is_dpt && report_file_span_read(file->path, file->head.base_ns,
                                                            &file->span, &ignored) == DPT_OK;
        }
    }
    return DPT_OK;
}

static bool is_of_another_run(const struct report_group *group, const struct report_file *file)
{
    const struct report_head *head = &group->head;
    return strcmp(group->strategy, file->strategy) == 0 && head->is_dpt && file->head.is_dpt &&
           head->world_size == file->head.world_size && head->generation == file->head.generation &&
           head->generation_id[0] && file->head.generation_id[0] &&
           strcmp(head->generation_id, file->head.generation_id) != 0;
}

void report_find_elsewhere(const struct report_found *found, const struct report_group *group,
                           char *text, size_t bytes)
{
    const struct report_file *newest = NULL;
    for (size_t i = 0; i < found->n_files; i++) { /* in order of time */
        const struct report_file *file = &found->files[i];
        if (is_of_another_run(group, file) && !has_rank(group, file->rank))
            newest = file;
    }
    text[0] = '\0';
    if (newest)
        (void)snprintf(text, bytes, "; '%s' is of another run (generation_id %s)", newest->path,
                       newest->head.generation_id);
}

static void sort_files(struct report_found *found)
{
    if (found->n_files > 1)
        qsort(found->files, found->n_files, sizeof *found->files, compare_files);
}

/* Groups are in order of strategy and time. */
static void mark_latest(struct report_found *found)
{
    for (size_t g = 0; g < found->n_groups; g++) {
        struct report_group *group = &found->groups[g];
        group->is_latest = group->is_latest_of_world = true;
        for (size_t k = g + 1; k < found->n_groups; k++)
            if (strcmp(found->groups[k].strategy, group->strategy) == 0) {
                group->is_latest = false;
                if (found->groups[k].head.world_size == group->head.world_size)
                    group->is_latest_of_world = false;
            }
    }
}

enum dpt_status report_group_windows(struct report_found *found, struct dpt_err *err)
{
    sort_files(found);
    DPT_TRY(read_spans(found, err));
    for (size_t i = 0; i < found->n_files; i++) {
        const struct report_file *file = &found->files[i];
        const size_t group =
            file->head.is_dpt ? choose_group(found, file) : choose_foreign_group(found, file);
        if (group == found->n_groups)
            DPT_TRY(add_group(found, file, err));
        DPT_TRY(join_group(&found->groups[group], file, err));
    }
    mark_latest(found);
    return DPT_OK;
}

enum dpt_status report_group_strategies(struct report_found *found, struct dpt_err *err)
{
    sort_files(found);
    for (size_t i = 0; i < found->n_files; i++) {
        if (i == 0 || strcmp(found->files[i - 1].strategy, found->files[i].strategy) != 0)
            DPT_TRY(add_group(found, &found->files[i], err));
        DPT_TRY(join_group(&found->groups[found->n_groups - 1], &found->files[i], err));
    }
    mark_latest(found);
    return DPT_OK;
}

enum dpt_status report_group_all(struct report_found *found, struct dpt_err *err)
{
    for (size_t i = 0; i < found->n_files; i++) {
        if (i == 0)
            DPT_TRY(add_group(found, &found->files[i], err));
        DPT_TRY(join_group(&found->groups[0], &found->files[i], err));
    }
    mark_latest(found);
    return DPT_OK;
}
