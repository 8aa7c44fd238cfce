/* The agent's lines on stdout: one for each change of state, and where training stands every few
 * seconds. */
#ifndef DPT_WORKER_AGENT_PROGRESS_H
#define DPT_WORKER_AGENT_PROGRESS_H

#include "worker/agent/core.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum {
    DPT_PROGRESS_STEP_EVERY_MS = 5000,
    DPT_PROGRESS_PATIENCE_MS = 300, /* a server that answers within this is not waited for aloud */
    DPT_PROGRESS_LINE_BYTES = 256
};

/* What was said last. Zero-initialise all but `out`, `endpoint`, `source` and `run` (borrowed). */
struct dpt_progress {
    FILE *out;
    const char *endpoint;               /* of the server */
    const char *source;                 /* who named it: "--rdzv-endpoint", …, "the default" */
    const char *run;                    /* the run's name */
    char said[DPT_PROGRESS_LINE_BYTES]; /* last line of state */
    bool no_run;                        /* its config is waited for */
    bool was_up;
    bool all_done;    /* the run's last step is applied here */
    int64_t first_ms; /* of the first update */
    int64_t step_said_ms, step_said, val_said;
    bool evaluates; /* the run only evaluates */
};

/* Prints what has changed since the last call. steps: of the run, 0 while unknown. min_nodes:
 * likewise. */
void dpt_progress_update(struct dpt_progress *progress, const struct dpt_agent_view *view,
                         uint32_t min_nodes, int64_t steps, int64_t now_ms);

/* The state in one line, "" when there is nothing to say. Pure. Of a server that was never
 * there it speaks only when `patient` is false. */
void dpt_progress_line(const struct dpt_progress *progress, const struct dpt_agent_view *view,
                       uint32_t min_nodes, bool patient, char ret_line[DPT_PROGRESS_LINE_BYTES]);

#endif
