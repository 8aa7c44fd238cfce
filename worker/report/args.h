/* The command line of dpt-trace. */
#ifndef DPT_WORKER_REPORT_ARGS_H
#define DPT_WORKER_REPORT_ARGS_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum report_command { REPORT_DDP, REPORT_SHARDING, REPORT_DIFF, REPORT_COMPARE };

enum { REPORT_ARG_FILES_MAX = 4096, REPORT_ARG_DIRS_MAX = 16 };

struct report_args {
    enum report_command command;
    const char *dirs[REPORT_ARG_DIRS_MAX];
    int n_dirs;
    char *files[REPORT_ARG_FILES_MAX]; /* owned */
    int n_files;
    bool all; /* --select all */
    bool include_last_step, parallel;
    const char *out; /* NULL: the command's own folder */
    const char *csv;
    const char *sides[2]; /* of diff */
    int n_sides;
    int64_t rank; /* of diff; -1: all */
};

/* The caller frees *args, also after a failure. DPT_EINVAL: a usage error. */
DPT_MUST_USE enum dpt_status report_args_read(int argc, char *const *argv, struct report_args *args,
                                              struct dpt_err *err);
void report_args_free(struct report_args *args);
void report_args_help(FILE *out);

#endif
