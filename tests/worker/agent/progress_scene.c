/* The stage of the tests of progress.h. */
#include "tests/worker/agent/progress_scene.h"

#include <stdio.h>
#include <string.h>

char said[SAID_BYTES];
int shows;
struct dpt_live_facts shown;

static void take_line(struct dpt_terminal *terminal, const char *line)
{
    (void)terminal;
    size_t used = strlen(said);
    (void)snprintf(said + used, sizeof said - used, "%s\n", line);
}

static void take_live(struct dpt_terminal *terminal, const struct dpt_live_facts *facts)
{
    (void)terminal;
    shows++;
    shown = *facts;
}

void show_live(struct scene *s)
{
    s->progress.options.show = take_live;
}

void update_more(struct scene *s)
{
    s->now_ms += 100;
    dpt_progress_update(&s->progress, &s->view, &s->config, s->now_ms);
}

void update(struct scene *s)
{
    said[0] = '\0';
    update_more(s);
}

void open_scene(struct scene *s, bool is_first)
{
    *s = (struct scene){
        .progress = {.options = {.print = take_line,
                                 .endpoint = "head:1",
                                 .source = "the test",
                                 .run = "r"},
                     .answers = true,
                     .step_printed = -1},
        .view = {.server_up = true,
                 .computing = true,
                 .phase = DPT__SERVER_PHASE__SERVER_RUNNING,
                 .generation = 1,
                 .world_size = 2,
                 .trains = true,
                 .first = is_first ? &s->first : NULL,
                 .cause = "start",
                 .cause_kind = "start"},
        .config = {.cluster.nnodes_min = 1,
                   .train = {.steps = 100, .global_batch = 10, .seq_len = 100, .log_every = 1},
                   .checkpoint.dir = "ck"},
        .now_ms = 1000};
    s->first.steps = s->step_list;
    for (int i = 0; i < STEPS_MAX; i++)
        s->step_list[i] = &s->steps[i];
    shows = 0;
}

void tell(struct scene *s, int64_t first, int64_t last)
{
    s->first.n_steps = 0;
    for (int64_t step = first; step <= last; step++)
        s->steps[s->first.n_steps++] =
            (Dpt__StepRecord){.step = step, .tokens_per_s = 1000, .world_size = 2};
}

void next_generation(struct scene *s, const char *kind, const char *cause, uint32_t world)
{
    s->view.generation++;
    s->view.cause_kind = kind;
    s->view.cause = cause;
    s->view.world_size = world;
    s->first.n_steps = 0;
    s->view.trains = s->view.computing = true;
    s->view.phase = DPT__SERVER_PHASE__SERVER_RUNNING;
}

void stand_still(struct scene *s, Dpt__ServerPhase phase, uint32_t nodes)
{
    s->view.phase = phase;
    s->view.trains = s->view.computing = false;
    s->view.n_nodes = nodes;
    s->first.n_steps = 0;
}

int count_of(const char *what)
{
    int n = 0;
    for (const char *at = said; (at = strstr(at, what)) != NULL; at++)
        n++;
    return n;
}
