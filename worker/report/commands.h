/* The commands of dpt-trace. They write files, and lines to the standard output; warnings go to the
 * standard error. DPT_ENOENT: there are no trace files. */
#ifndef DPT_WORKER_REPORT_COMMANDS_H
#define DPT_WORKER_REPORT_COMMANDS_H

#include "worker/report/args.h"

/* ddp and sharding: commands.c; compare: commands_compare.c; diff: commands_diff.c. */
DPT_MUST_USE enum dpt_status report_command_windows(const struct report_args *args,
                                                    struct dpt_err *err);
DPT_MUST_USE enum dpt_status report_command_compare(const struct report_args *args,
                                                    struct dpt_err *err);
DPT_MUST_USE enum dpt_status report_command_diff(const struct report_args *args,
                                                 struct dpt_err *err);

#endif
