/* The named parts of a step (phases.h). */
#include "worker/report/phases.h"

#include <string.h>

static const struct {
    const char *name;
    enum report_phase phase;
    bool prefix; /* more text may follow */
} names[] = {
    {"forward", REPORT_PHASE_FORWARD, false},
    {"backward", REPORT_PHASE_BACKWARD, false},
    {"optimizer_step", REPORT_PHASE_OPTIMIZER, false},
    {"Optimizer.step#", REPORT_PHASE_OPTIMIZER, true},
    {"grad_sync", REPORT_PHASE_GRAD_SYNC, false},
    {"commit", REPORT_PHASE_SYNC, false},
    {"wait for transfers", REPORT_PHASE_SYNC, false},
    {"wait for communication", REPORT_PHASE_SYNC, false},
    {"wait for peer", REPORT_PHASE_SYNC, true},
    {"wait for data", REPORT_PHASE_DATA, false},
    {"data_loading", REPORT_PHASE_DATA, false},
    {"enumerate(DataLoader)#", REPORT_PHASE_DATA, true},
    {"save", REPORT_PHASE_SAVE, false},
    {"save_checkpoint", REPORT_PHASE_SAVE, false},
    {"checkpoint", REPORT_PHASE_SAVE, false},
    {"evaluation", REPORT_PHASE_EVALUATION, false},
    {"leave generation", REPORT_PHASE_FORMATION, false},
    {"form generation", REPORT_PHASE_FORMATION, false},
    {"open communicator", REPORT_PHASE_FORMATION, false},
    {"fill state", REPORT_PHASE_FORMATION, false},
};

enum report_phase report_phase_of(const char *name)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].prefix ? strncmp(name, names[i].name, strlen(names[i].name)) == 0
                            : strcmp(name, names[i].name) == 0)
            return names[i].phase;
    return REPORT_PHASES;
}

enum dpt_status report_phases_find(const struct report_trace *trace,
                                   const struct report_scope *scope, struct report_phases *phases,
                                   struct dpt_err *err)
{
    const int64_t from_ns = scope->steps[0].begin_ns;
    *phases = (struct report_phases){0};
    for (size_t i = 0; i < trace->n; i++) {
        const struct report_event *event = &trace->events[i];
        if (event->category != REPORT_ANNOTATION ||
            (scope->main_lane >= 0 && event->lane != scope->main_lane) ||
            event->begin_ns < from_ns || event->begin_ns >= scope->until_ns)
            continue;
        const enum report_phase phase = report_phase_of(report_event_name(trace, event));
        if (phase != REPORT_PHASES &&
            !report_intervals_add(&phases->of[phase], event->begin_ns, event->end_ns))
            return dpt_fail_nomem(err, "phases of '%s'", trace->path);
    }
    for (int i = 0; i < REPORT_PHASES; i++)
        report_intervals_merge(&phases->of[i]);
    return DPT_OK;
}

void report_phases_free(struct report_phases *phases)
{
    for (int i = 0; i < REPORT_PHASES; i++)
        report_intervals_free(&phases->of[i]);
}

struct dpt_report_phases report_phases_sum(const struct report_phases *phases)
{
    int64_t ns[REPORT_PHASES];
    for (int i = 0; i < REPORT_PHASES; i++)
        ns[i] = report_intervals_length(&phases->of[i]);
    return (struct dpt_report_phases){.forward_ns = ns[REPORT_PHASE_FORWARD],
                                      .backward_ns = ns[REPORT_PHASE_BACKWARD],
                                      .optimizer_ns = ns[REPORT_PHASE_OPTIMIZER],
                                      .grad_sync_ns = ns[REPORT_PHASE_GRAD_SYNC],
                                      .data_wait_ns = ns[REPORT_PHASE_DATA],
                                      .checkpoint_ns = ns[REPORT_PHASE_SAVE],
                                      .evaluation_ns = ns[REPORT_PHASE_EVALUATION],
                                      .formation_ns = ns[REPORT_PHASE_FORMATION]};
}
