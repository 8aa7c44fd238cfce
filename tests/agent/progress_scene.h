/* A node's progress on a stage: what is said is collected, and the view is what a test makes it. */
#ifndef DPT_TESTS_AGENT_PROGRESS_SCENE_H
#define DPT_TESTS_AGENT_PROGRESS_SCENE_H

#include "worker/agent/progress.h"

#include <stdbool.h>
#include <stdint.h>

enum { STEPS_MAX = 8, SAID_BYTES = 8192 };

extern char said[SAID_BYTES];       /* each line with its newline */
extern int shows;                   /* how often the live line was shown ... */
extern struct dpt_live_facts shown; /* ... and what it showed last */

/* A node that trains in generation 1 of two ranks; update says so. */
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

/* 100 ms later. update forgets what was said before, update_more adds to it. */
void update(struct scene *s);
void update_more(struct scene *s);

/* Rank 0 tells of these steps. */
void tell(struct scene *s, int64_t first, int64_t last);

/* The next generation trains. */
void next_generation(struct scene *s, const char *kind, const char *cause, uint32_t world);

/* Training stands still: the server is in this phase of the next generation. */
void stand_still(struct scene *s, Dpt__ServerPhase phase, uint32_t nodes);

int count_of(const char *what); /* in what was said */

#endif
