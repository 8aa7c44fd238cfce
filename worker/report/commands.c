/* The commands ddp and sharding (commands.h). */
#include "worker/report/commands.h"

#include "base/fs.h"
#include "base/strategy_traits.h"
#include "worker/report/damaged.h"
#include "worker/report/output.h"
#include "worker/report/page.h"
#include "worker/report/summary.h"
#include "worker/report/window_report.h"

#include <string.h>

static enum dpt_status print_csv(const void *what, FILE *out, struct dpt_err *err)
{
    (void)err;
    report_csv_print(what, out);
    return DPT_OK;
}

static enum dpt_status print_page(const void *what, FILE *out, struct dpt_err *err)
{
    return dpt_report_page_write(what, 1, out, err);
}

/* OUT/STRATEGY, with --select all OUT/STRATEGY/run_INDEX_TIME. */
static enum dpt_status folder_of(const struct report_args *args, const struct report_group *group,
                                 char ret[PATH_MAX], struct dpt_err *err)
{
    const char *own = args->command == REPORT_SHARDING ? "reports_sharding" : "reports";
    char name[160];
    if (args->all)
        (void)snprintf(name, sizeof name, "%s/run_%d_%lld", group->strategy, group->number,
                       (long long)group->time_ns);
    else
        (void)snprintf(name, sizeof name, "%s", group->strategy);
    return dpt_fs_join(args->out ? args->out : own, name, ret, PATH_MAX, err);
}

static enum dpt_status report_window(const struct report_args *args,
                                     const struct report_found *found,
                                     const struct report_group *group, struct dpt_err *err)
{
    struct dpt_report report;
    char dir[PATH_MAX];
    enum dpt_status status = report_of_group(found, group, args, &report, err);
    if (status == DPT_OK) {
        report_terminal_print(&report, stdout);
        status = folder_of(args, group, dir, err);
    }
    if (status == DPT_OK)
        status = report_output(dir, "summary.csv", print_csv, &report, err);
    if (status == DPT_OK)
        status = report_output(dir, "summary.html", print_page, &report, err);
    dpt_report_free(&report);
    return status;
}

/* Whether the command reports the group. A strategy that the traces do not say suits both. Files
 * that the user names suit the command that the user gives. */
static bool is_wanted(const struct report_args *args, const struct report_group *group)
{
    if (!args->all && !group->is_latest)
        return false;
    if (args->n_files > 0 || strcmp(group->strategy, "unknown") == 0)
        return true;
    return dpt_strategy_divides_state(group->strategy) == (args->command == REPORT_SHARDING);
}

static enum dpt_status find_files(const struct report_args *args, struct report_found *found,
                                  struct dpt_err *err)
{
    for (int i = 0; i < args->n_dirs; i++)
        DPT_TRY(report_find_below(args->dirs[i], found, err));
    for (int i = 0; i < args->n_files; i++)
        DPT_TRY(report_find_file(args->files[i], found, err));
    return args->n_files > 0 && !args->all ? report_group_all(found, err)
                                           : report_group_windows(found, err);
}

static enum dpt_status report_windows(const struct report_args *args,
                                      const struct report_found *found, struct dpt_err *err)
{
    int reported = 0;
    char hint[256] = "";
    for (size_t i = 0; i < found->n_groups; i++) {
        if (is_wanted(args, &found->groups[i])) {
            DPT_TRY(report_window(args, found, &found->groups[i], err));
            reported++;
        }
    }
    if (reported > 0)
        return DPT_OK;
    if (found->n_groups > 0)
        (void)snprintf(hint, sizeof hint, " '%.100s' has traces of %s: use dpt-trace %s",
                       args->dirs[0], found->groups[0].strategy,
                       args->command == REPORT_SHARDING ? "ddp" : "sharding");
    return report_no_files(hint, err);
}

enum dpt_status report_command_windows(const struct report_args *args, struct dpt_err *err)
{
    const bool sharded = args->command == REPORT_SHARDING;
    const struct report_wanted wanted = {
        .replicated = !sharded, .sharded = sharded, .newest_only = !args->all};
    struct report_found found = {0};
    enum dpt_status status = find_files(args, &found, err);
    if (status == DPT_OK)
        status = report_settle_damaged(&found, &wanted, err);
    if (status == DPT_OK)
        status = report_windows(args, &found, err);
    report_found_free(&found);
    return status;
}
