/* Decides which lines the agent prints and when: changes of state, recoveries, steps, epochs,
 * evaluations. progress_text.h makes the text of steps, recoveries and ends; terminal.h writes.
 * Pure but for its sinks.
 *
 * The node of rank 0 alone prints steps and evaluations; each generation may move rank 0. Every
 * node prints its own changes. A loss has one line, printed when training resumes. After
 * DPT_PROGRESS_FORMING_MS without training one more line gives the reason. */
#ifndef DPT_WORKER_AGENT_PROGRESS_H
#define DPT_WORKER_AGENT_PROGRESS_H

#include "base/config.h"
#include "rendezvous/client/client.h"
#include "worker/agent/core.h"
#include "worker/agent/progress_text.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    DPT_PROGRESS_PATIENCE_MS = 300, /* a lack of the server that is shorter has no line ... */
    DPT_PROGRESS_LOOKING_MS = 900,  /* ... nor, while its reason is unknown, is this */
    DPT_PROGRESS_AGAIN_MS = 15000,  /* the lack of the server has another line after this */
    DPT_PROGRESS_FORMING_MS = 2000  /* a formation, or a standstill, that lasts longer has a line */
};

struct dpt_terminal;

/* Everything is borrowed. print and show: those of terminal.h; a test has its own. */
struct dpt_progress_options {
    struct dpt_terminal *terminal;
    void (*print)(struct dpt_terminal *terminal, const char *line);
    /* The live line; NULL: each step has a line that stays. */
    void (*show)(struct dpt_terminal *terminal, const struct dpt_live_facts *facts);
    /* Prints the evaluations of a run that only evaluates, the reason of a lack of the server,
     * steps that wait for a server, and the step that a drain has saved. Nothing else. */
    bool quiet;
    const char *endpoint; /* of the server */
    const char *source;   /* of the endpoint: "--rdzv-endpoint", …, "the default" */
    const char *run;      /* the run's name */
};

/* Zero-initialise all but options and step_printed (-1). */
struct dpt_progress {
    struct dpt_progress_options options;
    char why[DPT_CLIENT_WHY_BYTES]; /* no server yet, for this reason; "": unknown */
    bool no_run;                    /* the server has no config of the run yet */

    char printed[DPT_TEXT_LINE_BYTES]; /* newest printed line of state */
    char state[DPT_TEXT_LINE_BYTES];   /* newest line of state, printed or held back */
    int64_t printed_ms, state_ms;      /* since when they are that */
    int64_t first_ms;                  /* of the first update */
    int64_t forming_ms;                /* since when a generation is formed; 0: none is */
    bool was_up, was_gone, all_done, leaving_printed, left_printed, was_first;
    bool forming_printed; /* a line was printed since forming_ms */
    uint64_t generation;  /* newest with a printed line of its start */
    uint32_t world_size;  /* of the newest that trained here */
    int64_t trained_ms;   /* when training began here; 0: not yet */
    int64_t step_printed, val_printed;
    int64_t lines_to;      /* step up to which each line is printed, or known to be elsewhere */
    int64_t unsaved_steps; /* steps up to left.step that no checkpoint had */
    double tokens_per_s;   /* smoothed */
    struct dpt_live_facts live;
    struct dpt_left_facts left; /* its step: the newest that ranks of this node held */
};

/* Prints the changes since the last call. `config`: of the run; all 0 while there is none. */
void dpt_progress_update(struct dpt_progress *progress, const struct dpt_agent_view *view,
                         const struct dpt_config *config, int64_t now_ms);

#endif
