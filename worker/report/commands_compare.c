/* The command compare (commands.h). */
#include "worker/report/commands.h"

#include "base/fs.h"
#include "worker/report/damaged.h"
#include "worker/report/output.h"
#include "worker/report/page.h"
#include "worker/report/summary.h"
#include "worker/report/user_csv.h"
#include "worker/report/window_report.h"

#include <stdlib.h>
#include <string.h>

enum { REPORTS_MAX = 64 };

/* The reports of a comparison. */
struct comparison {
    struct dpt_report at[REPORTS_MAX];
    size_t n;
};

static enum dpt_status print_csv(const void *what, FILE *out, struct dpt_err *err)
{
    const struct comparison *c = what;
    (void)err;
    report_means_csv_print(c->at, c->n, out);
    return DPT_OK;
}

static enum dpt_status print_page(const void *what, FILE *out, struct dpt_err *err)
{
    const struct comparison *c = what;
    return dpt_report_page_write(c->at, c->n, out, err);
}

static enum dpt_status add_windows(const struct report_args *args, const struct report_found *found,
                                   struct comparison *c, struct dpt_err *err)
{
    for (size_t i = 0; i < found->n_groups; i++) {
        if (!found->groups[i].is_latest_of_world)
            continue;
        if (c->n == REPORTS_MAX)
            return dpt_fail(err, DPT_EINVAL, "more than %d runs to compare", REPORTS_MAX);
        DPT_TRY(report_of_group(found, &found->groups[i], args, &c->at[c->n++], err));
    }
    return DPT_OK;
}

/* A folder may have the traces of one strategy that another folder has too. */
static enum dpt_status add_folder(const struct report_args *args, const char *dir,
                                  struct comparison *c, struct dpt_err *err)
{
    const struct report_wanted all = {.replicated = true, .sharded = true};
    struct report_found found = {0};
    enum dpt_status status = report_find_below(dir, &found, err);
    if (status == DPT_OK)
        status = report_group_windows(&found, err);
    if (status == DPT_OK)
        status = report_settle_damaged(&found, &all, err);
    if (status == DPT_OK)
        status = add_windows(args, &found, c, err);
    report_found_free(&found);
    return status;
}

static enum dpt_status add_files(const struct report_args *args, struct comparison *c,
                                 struct dpt_err *err)
{
    struct report_found found = {0};
    enum dpt_status status = DPT_OK;
    for (int i = 0; i < args->n_files && status == DPT_OK; i++)
        status = report_find_file(args->files[i], &found, err);
    if (status == DPT_OK)
        status = report_group_strategies(&found, err);
    if (status == DPT_OK)
        status = add_windows(args, &found, c, err);
    report_found_free(&found);
    return status;
}

static enum dpt_status add_user_rows(const char *path, struct comparison *c, struct dpt_err *err)
{
    size_t n;
    DPT_TRY(report_user_csv_read(path, &c->at[c->n], REPORTS_MAX - c->n, &n, err));
    c->n += n;
    return DPT_OK;
}

/* One rank alone with ddp is the baseline. Runs of one strategy are told apart by their world
 * sizes, else by their place. */
static void name_reports(struct comparison *c, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (c->at[i].world_size == 1 && strcmp(c->at[i].strategy, "ddp") == 0)
            (void)snprintf(c->at[i].name, sizeof c->at[i].name, "baseline");
    for (size_t i = 0; i < n; i++) {
        bool shared = false, same_world = false;
        for (size_t k = 0; k < n; k++)
            if (k != i && strcmp(c->at[k].strategy, c->at[i].strategy) == 0 &&
                (c->at[k].world_size == 1) == (c->at[i].world_size == 1)) {
                shared = true;
                same_world = same_world || c->at[k].world_size == c->at[i].world_size;
            }
        const size_t used = strlen(c->at[i].name);
        if (same_world)
            (void)snprintf(c->at[i].name + used, sizeof c->at[i].name - used, " (%zu)", i + 1);
        else if (shared)
            (void)snprintf(c->at[i].name + used, sizeof c->at[i].name - used, " (%d ranks)",
                           c->at[i].world_size);
    }
}

static enum dpt_status fill_comparison(const struct report_args *args, struct comparison *c,
                                       struct dpt_err *err)
{
    for (int i = 0; i < args->n_dirs; i++)
        DPT_TRY(add_folder(args, args->dirs[i], c, err));
    if (args->n_files > 0)
        DPT_TRY(add_files(args, c, err));
    if (c->n == 0)
        return report_no_files("", err);
    name_reports(c, c->n);
    if (args->csv)
        DPT_TRY(add_user_rows(args->csv, c, err));
    return c->n > 1 ? DPT_OK
                    : dpt_fail(err, DPT_EINVAL,
                               "there is one run, %s: give the traces of another one, or --csv",
                               c->at[0].name);
}

enum dpt_status report_command_compare(const struct report_args *args, struct dpt_err *err)
{
    struct comparison *c = calloc(1, sizeof *c);
    char dir[PATH_MAX];
    if (!c)
        return dpt_fail_nomem(err, "list of runs");
    enum dpt_status status = fill_comparison(args, c, err);
    if (status == DPT_OK) {
        report_comparison_print(c->at, c->n, stdout);
        status = dpt_fs_join(args->out ? args->out : "reports", "compare", dir, sizeof dir, err);
    }
    if (status == DPT_OK)
        status = report_output(dir, "summary.csv", print_csv, c, err);
    if (status == DPT_OK)
        status = report_output(dir, "summary.html", print_page, c, err);
    for (size_t i = 0; i < c->n; i++)
        dpt_report_free(&c->at[i]);
    free(c);
    return status;
}
