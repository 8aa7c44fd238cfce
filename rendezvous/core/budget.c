/* Steps earn restarts, losses use them (docs/membership.md, "Restart budget"). */
#include "rendezvous/core/rules.h"

#include "rendezvous/core/apply.h"
#include "rendezvous/core/queries.h"

#include <stdio.h>
#include <string.h>

enum { REFILL_STEPS = 10 }; /* steps that give one restart back */

/* Only steps that the run had never reached count. */
static void refill_budget(struct run *run, int64_t steps)
{
    struct budget *budget = &run->budget;
    budget->refill_steps += steps;
    const int64_t earned = budget->refill_steps / REFILL_STEPS;
    budget->refill_steps %= REFILL_STEPS;
    if (earned > 0 && budget->used > 0 && !dpt_rdzv_has_ended(run))
        dpt_rdzv_record(run, (struct dpt_rdzv_record){.kind = DPT_RDZV_RECORD_REFILL,
                                                      .generation = run->generation,
                                                      .step = run->progress.step,
                                                      .count = earned < budget->used
                                                                   ? budget->used - (uint32_t)earned
                                                                   : 0});
    if (budget->used == 0) {
        budget->refill_steps = 0;
        budget->error_ms = -1; /* an error that was overcome does not explain a later end */
    }
}

void dpt_rdzv_note_step(struct run *run, const struct rank *rank)
{
    struct progress *progress = &run->progress;
    const int64_t step = rank->step_applied;
    if (!dpt_rdzv_rank_is_alive(rank))
        return;
    if (rank->step_ms_median > 0)
        progress->step_ms_median = rank->step_ms_median;
    if (rank->phase == DPT__RANK_PHASE__RANK_FINISHED && step > progress->final_step)
        progress->final_step = step;
    if (step > progress->step_best) {
        refill_budget(run, progress->step_best < 0 ? 0 : step - progress->step_best);
        progress->step_best = step;
    }
    if (step > progress->steps_done)
        progress->steps_done = step;
    if (step <= progress->step)
        return;
    if (run->plan.in_force && dpt_rdzv_rank_is_member(rank) && progress->step >= 0) {
        progress->stepped = true;
        run->formation.failed = run->formation.slow = 0;
    }
    progress->step = step;
    progress->step_ms = dpt_rdzv_listened_ms(run);
}

/* `incident`: the plan's generation to which the incident belongs; 0: none. */
static void use_restarts(struct run *run, uint32_t crashes, uint64_t incident, const char *what)
{
    struct budget *budget = &run->budget;
    const uint32_t room = UINT32_MAX - budget->used;
    if (dpt_rdzv_has_ended(run))
        return;
    dpt_rdzv_record(
        run, (struct dpt_rdzv_record){.kind = DPT_RDZV_RECORD_CRASH,
                                      .generation = incident,
                                      .step = run->progress.step,
                                      .count = budget->used + (crashes < room ? crashes : room),
                                      .text = what});
    budget->refill_steps = 0;
    if (budget->used <= run->spec.max_restarts)
        return;
    char text[DPT_PROTO_TEXT_BYTES];
    (void)snprintf(text, sizeof text,
                   "%u crash%s without enough progress between; the first: %.400s", budget->used,
                   budget->used == 1 ? "" : "es",
                   budget->error_ms >= 0 ? budget->first_error : what);
    dpt_rdzv_fail_run(run, text);
}

void dpt_rdzv_count_crashes(struct run *run, uint32_t crashes, const char *what)
{
    use_restarts(run, crashes, 0, what);
}

void dpt_rdzv_note_error(struct run *run, int64_t at_ms, const char *text)
{
    struct budget *budget = &run->budget;
    if (dpt_rdzv_has_ended(run) || (budget->error_ms >= 0 && at_ms >= budget->error_ms))
        return;
    budget->error_ms = at_ms;
    if (strcmp(budget->first_error, text) != 0) /* each message repeats the error of its node */
        dpt_rdzv_record(run, (struct dpt_rdzv_record){.kind = DPT_RDZV_RECORD_ERROR,
                                                      .generation = run->generation,
                                                      .step = run->progress.step,
                                                      .text = text});
}

void dpt_rdzv_count_incident(struct run *run, const char *what)
{
    if (run->budget.incident_generation == run->plan.generation)
        return;
    use_restarts(run, 1, run->plan.generation, what);
}
