/* A node's progress messages under test: the scene collects the printed lines, and a test sets the
 * view. */
#ifndef DPT_TESTS_WORKER_AGENT_PROGRESS_SCENE_H
#define DPT_TESTS_WORKER_AGENT_PROGRESS_SCENE_H

#include "worker/agent/progress.h"

#include <stdbool.h>
#include <stdint.h>

enum { STEPS_MAX = 8, SAID_BYTES = 8192 };

extern char said[SAID_BYTES];       /* the printed lines, each with its newline */
extern int shows;                   /* how often the live line was shown ... */
extern struct dpt_live_facts shown; /* ... and the last text that it showed */

/* A node that trains in generation 1 of two ranks; the first update prints that. */
struct scene {
    struct dpt_progress progress;
    struct dpt_agent_view view;
    Dpt__RankToAgent first; /* the report of rank 0 */
    Dpt__StepRecord steps[STEPS_MAX], *step_list[STEPS_MAX];
    struct dpt_config config;
    int64_t now_ms;
};
void open_scene(struct scene *s, bool is_first);

/* Steps are shown on a live line from now on. */
void show_live(struct scene *s);

/* Advance the time by 100 ms and update the progress. update first clears `said`; update_more
 * appends to it. */
void update(struct scene *s);
void update_more(struct scene *s);

/* Rank 0 reports these steps. */
void tell(struct scene *s, int64_t first, int64_t last);

/* The next generation is formed and trains. */
void next_generation(struct scene *s, const char *kind, const char *cause, uint32_t world);

/* Training stops: the server is in this phase of the next generation. */
void stand_still(struct scene *s, Dpt__ServerPhase phase, uint32_t nodes);

int count_of(const char *what); /* occurrences in `said` */

#endif
