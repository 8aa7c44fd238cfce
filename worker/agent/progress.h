/* Decides which lines the agent prints and when: changes of state, recoveries, steps, epochs,
 * evaluations. progress_text.h makes the text of steps, recoveries and ends; terminal.h writes the
 * lines. Pure except for the two callbacks.
 *
 * Only the node of rank 0 prints steps and evaluations; each generation may move rank 0. Every node
 * prints its own changes. The loss of a rank or node has one line, printed when training resumes.
 * If training does not resume within DPT_PROGRESS_FORMING_MS, one more line gives the reason. */
#ifndef DPT_WORKER_AGENT_PROGRESS_H
#define DPT_WORKER_AGENT_PROGRESS_H

#include "base/config.h"
#include "rendezvous/client/client.h"
#include "worker/agent/core.h"
#include "worker/agent/progress_text.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    /* A shorter time without the server has no line. */
    DPT_PROGRESS_PATIENCE_MS = 300,
    /* The same, if the server has announced its next key: its change ends the connection. */
    DPT_PROGRESS_NEW_KEY_MS = 5000,
    /* A shorter time without the server has no line while the reason is unknown. */
    DPT_PROGRESS_LOOKING_MS = 900,
    /* The line about a missing server is repeated after this time. */
    DPT_PROGRESS_AGAIN_MS = 15000,
    /* A formation or a standstill that lasts longer has a line. */
    DPT_PROGRESS_FORMING_MS = 2000
};

struct dpt_terminal;

/* Everything is borrowed. print and show are the functions of terminal.h; a test has other ones. */
struct dpt_progress_options {
    struct dpt_terminal *terminal;
    void (*print)(struct dpt_terminal *terminal, const char *line);
    /* The live line; NULL: each step has a line that stays. */
    void (*show)(struct dpt_terminal *terminal, const struct dpt_live_facts *facts);
    /* Prints only the evaluations of a run that only evaluates, the reason why no server is
     * reached or takes the keys, steps that wait for a server, and the step that a drain has
     * saved. */
    bool quiet;
    const char *endpoint; /* the server's endpoint */
    const char *source;   /* source of the endpoint: "--rdzv-endpoint", …, "the default" */
    const char *run;      /* the run's name */
};

/* Zero-initialise all but options and step_printed (-1). */
struct dpt_progress {
    struct dpt_progress_options options;
    char why[DPT_CLIENT_WHY_BYTES];       /* why no server answers (dpt_client_why); "": unknown */
    char denial[DPT_CLIENT_DENIAL_BYTES]; /* why the server does not take the keys; "": it does */
    bool no_run;                          /* the server has no config of the run yet */
    bool answers;                         /* a message has come over the connection that stands */
    bool awaits_new_key;                  /* the server has announced its next key */

    char printed[DPT_TEXT_LINE_BYTES]; /* newest line of state that was printed */
    char state[DPT_TEXT_LINE_BYTES];   /* newest line of state, printed or held back */
    int64_t printed_ms, state_ms;      /* last printing; time since which `state` is unchanged */
    int64_t first_ms;                  /* time of the first update */
    /* Time since which a generation is formed; 0: none is formed. */
    int64_t forming_ms;
    bool was_heard;    /* a server has answered */
    bool gone_printed; /* the newest line of state says that no server answers any more */
    bool all_done, leaving_printed, left_printed, was_first;
    bool forming_printed; /* a line was printed since forming_ms */
    uint64_t generation;  /* newest generation whose start has a printed line */
    uint32_t world_size;  /* world size of the newest generation that trained here */
    int64_t trained_ms;   /* when training began here; 0: not yet */
    int64_t step_printed, val_printed;
    /* Each line up to this step is printed, or known to be on another node. */
    int64_t lines_to;
    int64_t unsaved_steps; /* steps up to left.step without a checkpoint */
    double tokens_per_s;   /* smoothed */
    struct dpt_live_facts live;
    struct dpt_left_facts left; /* left.step: the newest step that ranks of this node held */
};

/* Prints the changes since the last call. `config`: the run's; all 0 while there is none. */
void dpt_progress_update(struct dpt_progress *progress, const struct dpt_agent_view *view,
                         const struct dpt_config *config, int64_t now_ms);

#endif
