/* Single changes of the rank's report (link.h). */
#include "worker/train/link/link.h"

#include <stdio.h>

void dpt_report_set_text(struct dpt_report *report, const char *text)
{
    (void)snprintf(report->text, sizeof report->text, "%.*s", (int)sizeof report->text - 1, text);
}

void dpt_link_publish_busy(struct dpt_link *link, bool busy)
{
    dpt_link_edit(link)->state.busy = busy;
    dpt_link_publish(link, true);
}

void dpt_link_publish_work(struct dpt_link *link)
{
    dpt_link_edit(link)->state.work_done++;
    dpt_link_publish(link, false);
}

void dpt_link_publish_saved(struct dpt_link *link, int64_t step)
{
    Dpt__RankState *state = &dpt_link_edit(link)->state;
    if (step > state->checkpoint_step)
        state->checkpoint_step = step;
    dpt_link_publish(link, true);
}

void dpt_link_publish_unsaved(struct dpt_link *link, uint64_t generation, int64_t step,
                              const char *why)
{
    struct dpt_report *report = dpt_link_edit(link);
    report->state.unsaved_generation = generation;
    report->state.unsaved_step = step;
    (void)snprintf(report->unsaved_why, sizeof report->unsaved_why, "%.*s",
                   (int)sizeof report->unsaved_why - 1, why);
    dpt_link_publish(link, true);
}

void dpt_link_publish_grant_wanted(struct dpt_link *link, int64_t step)
{
    dpt_link_edit(link)->state.grant_step = step;
    dpt_link_publish(link, true);
}

void dpt_link_publish_failure(struct dpt_link *link, uint64_t generation, int suspect,
                              const char *text)
{
    struct dpt_report *report = dpt_link_edit(link);
    report->state.failed_generation = generation;
    report->state.suspect = suspect;
    dpt_report_set_text(report, text);
    dpt_link_publish(link, true);
}
