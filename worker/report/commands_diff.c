/* The command diff (commands.h). */
#include "worker/report/commands.h"

#include "worker/report/damaged.h"
#include "worker/report/diff.h"
#include "worker/report/output.h"
#include "worker/report/window_report.h"

#include <stdlib.h>
#include <sys/stat.h>

static enum dpt_status print_csv(const void *what, FILE *out, struct dpt_err *err)
{
    (void)err;
    report_diff_csv_print(what, out);
    return DPT_OK;
}

/* Fills *found with the newest window of a folder, or with one file. */
static enum dpt_status find_side(const char *path, struct report_found *found, struct dpt_err *err)
{
    const struct report_wanted newest = {.replicated = true, .sharded = true, .newest_only = true};
    struct stat info;
    if (stat(path, &info) == 0 && !S_ISDIR(info.st_mode)) {
        DPT_TRY(report_find_file(path, found, err));
        return report_group_all(found, err);
    }
    DPT_TRY(report_find_below(path, found, err));
    DPT_TRY(report_group_windows(found, err));
    DPT_TRY(report_settle_damaged(found, &newest, err));
    if (found->n_groups == 0) {
        char hint[256];
        (void)snprintf(hint, sizeof hint, " There is none in '%.200s'.", path);
        return report_no_files(hint, err);
    }
    for (size_t i = 0; i < found->n_groups; i++)
        if (found->groups[i].is_latest && i + 1 < found->n_groups)
            return dpt_fail(err, DPT_EPROTO,
                            "'%s' has traces of %s and of %s: name the folder of one strategy",
                            path, found->groups[i].strategy, found->groups[i + 1].strategy);
    return DPT_OK;
}

static enum dpt_status add_side(const struct report_args *args, int side,
                                const struct report_group *group, struct report_diff *diff,
                                struct dpt_err *err)
{
    struct report_warnings warnings = {.n = 0};
    const struct report_options options = report_options_of(args);
    struct report_source *sources = calloc(group->n, sizeof *sources);
    if (!sources)
        return dpt_fail_nomem(err, "traces of %zu ranks", group->n);
    enum dpt_status status =
        report_sources_read(group->paths, group->n, &options, sources, &warnings, err);
    report_warnings_print(&warnings);
    if (status == DPT_OK)
        status = report_diff_add(diff, side, sources, group->n, (int)args->rank, err);
    report_sources_free(sources, group->n);
    free(sources);
    return status;
}

enum dpt_status report_command_diff(const struct report_args *args, struct dpt_err *err)
{
    struct report_diff diff = {0};
    enum dpt_status status = DPT_OK;
    for (int side = 0; side < 2 && status == DPT_OK; side++) {
        struct report_found found = {0};
        status = find_side(args->sides[side], &found, err);
        if (status == DPT_OK)
            status = add_side(args, side, &found.groups[found.n_groups - 1], &diff, err);
        report_found_free(&found);
    }
    if (status == DPT_OK)
        status = report_diff_sort(&diff, err);
    if (status == DPT_OK) {
        report_diff_terminal_print(&diff, stdout);
        status =
            report_output(args->out ? args->out : "reports", "diff.csv", print_csv, &diff, err);
    }
    report_diff_free(&diff);
    return status;
}
