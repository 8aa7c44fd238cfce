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
    struct report_group group = {.head = file->head, .time_ns = file->time_ns};
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

/* The group that the file joins; n_groups: a new one. A window of dpt is known, so that the newest
 * group decides. The windows of other programs are counted. */
static size_t choose_group(const struct report_found *found, const struct report_file *file)
{
    size_t chosen = found->n_groups;
    for (size_t g = 0; g < found->n_groups; g++) {
        if (!is_of_window(&found->groups[g], file))
            continue;
        if (!has_rank(&found->groups[g], file->rank)) {
            chosen = g;
            if (!file->head.is_dpt)
                return chosen;
        } else if (file->head.is_dpt) {
            chosen = found->n_groups;
        }
    }
    return chosen;
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
    for (size_t i = 0; i < found->n_files; i++) {
        const struct report_file *file = &found->files[i];
        const size_t group = choose_group(found, file);
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
