/* Reports of groups of files (window_report.h). */
#include "worker/report/window_report.h"

#include "worker/report/report.h"

struct report_options report_options_of(const struct report_args *args)
{
    return (struct report_options){.strategy = "unknown",
                                   .elsewhere = "",
                                   .include_last_step = args->include_last_step,
                                   .parallel = args->parallel};
}

enum dpt_status report_no_files(const char *hint, struct dpt_err *err)
{
    return dpt_fail(err, DPT_ENOENT, "No trace files found.%s", hint);
}

enum dpt_status report_of_group(const struct report_found *found, const struct report_group *group,
                                const struct report_args *args, struct dpt_report *ret,
                                struct dpt_err *err)
{
    struct report_warnings warnings = {.n = 0};
    struct report_options options = report_options_of(args);
    char elsewhere[REPORT_WARNING_BYTES];
    report_find_elsewhere(found, group, elsewhere, sizeof elsewhere);
    options.strategy = group->strategy;
    options.elsewhere = elsewhere;
    const enum dpt_status status =
        report_of_files(group->paths, group->n, &options, ret, &warnings, err);
    report_warnings_print(&warnings);
    return status;
}
