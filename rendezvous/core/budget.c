/* Steps earn restarts, losses use them (docs/membership.md, "Restart budget"). */
#include "rendezvous/core/rules.h"

#include "rendezvous/core/queries.h"

#include <stdio.h>

enum { REFILL_STEPS = 10 }; /* steps that give one restart back */

/* Only steps that the run had never reached count. */
static void refill_budget(struct budget *budget, int64_t steps)
{
    budget->refill_steps += steps;
    const int64_t earned = budget->refill_steps / REFILL_STEPS;
    budget->refill_steps %= REFILL_STEPS;
    budget->used -= earned < budget->used ? (uint32_t)earned : budget->used;
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
        refill_budget(&run->budget, progress->step_best < 0 ? 0 : step - progress->step_best);
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

void dpt_rdzv_count_crashes(struct run *run, uint32_t crashes, const char *what)
{
    struct budget *budget = &run->budget;
    if (dpt_rdzv_has_ended(run))
        return;
    budget->used = crashes > UINT32_MAX - budget->used ? UINT32_MAX : budget->used + crashes;
    budget->refill_steps = 0;
    run->changed = true;
    dpt_rdzv_record(run, DPT_RDZV_RECORD_CRASH, run->generation, run->progress.step);
    if (budget->used <= run->spec.max_restarts)
        return;
    char text[DPT_PROTO_TEXT_BYTES];
    (void)snprintf(text, sizeof text,
                   "%u crash%s without enough progress between; the first: %.400s", budget->used,
                   budget->used == 1 ? "" : "es",
                   budget->error_ms >= 0 ? budget->first_error : what);
    dpt_rdzv_fail_run(run, text);
}

void dpt_rdzv_count_incident(struct run *run, const char *what)
{
    if (run->budget.incident_generation == run->plan.generation)
        return;
    run->budget.incident_generation = run->plan.generation;
    dpt_rdzv_count_crashes(run, 1, what);
}
