/* The command line of dpt-plan. */
#ifndef DPT_WORKER_PLANNER_ARGS_H
#define DPT_WORKER_PLANNER_ARGS_H

#include "worker/planner/estimate.h"
#include "worker/planner/source.h"

#include <stdio.h>

struct dpt_plan_args {
    struct dpt_source_args source;
    struct dpt_machines machines; /* shape: 0 where not given */
    double tokens;                /* 0: not given */
    bool listed[DPT_PLAN_STRATEGIES];
    const char *json; /* a file, or "-" for the standard output in place of the page */
    bool help, version;
};

/* DPT_EINVAL names the option. --help and --version end the reading. */
DPT_MUST_USE enum dpt_status dpt_plan_args_read(int argc, char **argv, struct dpt_plan_args *ret,
                                                struct dpt_err *err);

void dpt_plan_args_help(FILE *out);

#endif
