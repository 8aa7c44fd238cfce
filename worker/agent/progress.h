/* When the agent prints a line, and which: changes of state, recoveries, steps, epochs,
 * evaluations. The words of steps, recoveries and ends are progress_text.h's; terminal.h writes.
 * Pure but for its sinks.
 *
 * The node of rank 0 alone prints steps and evaluations; each generation may move rank 0. Every
 * node prints what happens to itself. A loss has one line, printed when training goes on. If it
 * does not go on within DPT_PROGRESS_FORMING_MS a line says what it waits for. */
#ifndef DPT_WORKER_AGENT_PROGRESS_H
#define DPT_WORKER_AGENT_PROGRESS_H

#include "worker/agent/core.h"
#include "worker/agent/progress_text.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    DPT_PROGRESS_PATIENCE_MS = 300, /* a server that answers within this is not waited for aloud */
    DPT_PROGRESS_LOOKING_MS = 900,  /* nor for so long while its lack is looked into */
    DPT_PROGRESS_AGAIN_MS = 15000,  /* waiting for a server is said again after this */
    DPT_PROGRESS_FORMING_MS = 2000, /* a formation that takes longer is said before its end, and
                                       so is training that stands still for longer */
    DPT_PROGRESS_WHY_BYTES = 256
};

/* What the config says of the run; all 0 while it is not known. */
struct dpt_progress_run {
    uint32_t min_nodes;
    int64_t steps, tokens_per_step, samples_per_step;
    bool of_images;
    int64_t epochs, epoch_steps; /* 0: it has none */
    int64_t log_every;           /* steps from one line to the next */
    bool evaluates;              /* it only evaluates */
    const char *checkpoint_dir;  /* borrowed; NULL or "": none */
};

/* What was said last. Zero-initialise all but the first group (borrowed). */
struct dpt_progress {
    void *ctx;
    void (*print)(void *ctx, const char *line);                  /* a line that stays */
    void (*show)(void *ctx, const struct dpt_live_facts *facts); /* the live line; NULL: each step
                                                                    has a line that stays */
    /* Prints the evaluations of a run that only evaluates, the reason why there is no server, steps
     * that wait for one, and what a drain has saved. Nothing else. */
    bool quiet;
    const char *endpoint; /* of the server */
    const char *source;   /* who named it: "--rdzv-endpoint", …, "the default" */
    const char *run;      /* the run's name */

    char why[DPT_PROGRESS_WHY_BYTES]; /* there is no server yet; "": not known */
    bool no_run;                      /* its config is waited for */

    char said[DPT_TEXT_LINE_BYTES]; /* last line of state */
    char held[DPT_TEXT_LINE_BYTES]; /* one that is not said yet */
    int64_t said_ms, first_ms;      /* of `said`; of the first update */
    int64_t held_ms;                /* since when `held` is the state */
    int64_t forming_ms;             /* since when a generation is formed; 0: none is */
    bool was_up, was_gone, all_done, leaving_said, left_said, was_first;
    bool forming_said;   /* a line was said since forming_ms */
    uint64_t generation; /* newest whose begin was said */
    uint32_t world_size; /* of the newest that trained here */
    int64_t trained_ms;  /* when training began here; 0: not yet */
    int64_t first_step;  /* where it began */
    uint32_t recoveries; /* since then, and steps lost by them */
    int64_t steps_lost;
    int64_t step_said, val_said;
    int64_t lines_to;      /* step up to which each line is printed or said to be elsewhere */
    int64_t held_step;     /* newest that ranks of this node held ... */
    int64_t unsaved_steps; /* ... and how many of them no checkpoint had then */
    double tokens_per_s;   /* smoothed */
    struct dpt_live_facts live;
};

/* Says what has changed since the last call. */
void dpt_progress_update(struct dpt_progress *progress, const struct dpt_agent_view *view,
                         const struct dpt_progress_run *run, int64_t now_ms);

#endif
