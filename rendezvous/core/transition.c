/* Entering a phase (diagram in core.h). */
#include "rendezvous/core/apply.h"
#include "rendezvous/core/queries.h"
#include "rendezvous/core/rules.h"
#include "rendezvous/core/tally.h"

void dpt_rdzv_enter_phase(struct run *run, enum dpt_rdzv_phase phase)
{
    struct formation *formation = &run->formation;
    run->phase = phase;
    run->phase_ms = run->core->now_ms;
    run->changed = true;
    run->progress.unsaved_known = false; /* a generation that has run counts shards */
    if (phase == DPT_RDZV_WAITING && formation->waits_since_ms < 0)
        formation->waits_since_ms = run->core->now_ms;
    /* An adopted generation enters RUNNING without PLANNED. */
    const bool formed = phase == DPT_RDZV_PLANNED || phase == DPT_RDZV_RUNNING;
    if (phase == DPT_RDZV_SETTLING || (formed && !run->plan.final_save))
        formation->waits_since_ms = -1;
}

/* Takes a number above all generations that this server, earlier runs of this name or any agent
 * have used. */
static void advance_generation(struct run *run)
{
    const struct formation *formation = &run->formation;
    const uint64_t used = dpt_rdzv_newer(formation->generation_high, formation->generation_floor);
    dpt_rdzv_record(
        run, (struct dpt_rdzv_record){.kind = DPT_RDZV_RECORD_GENERATION,
                                      .generation = 1 + dpt_rdzv_newer(run->generation, used),
                                      .step = run->progress.step,
                                      .step_ms = run->progress.step_ms_median,
                                      .cause = dpt_rdzv_cause_name(formation->cause.kind),
                                      .detect_ms = formation->cause.detect_ms,
                                      .text = formation->cause.text,
                                      .flags = formation->soft ? DPT_RDZV_FLAG_SOFT : 0u});
}

static void ask_for_reports(struct run *run)
{
    struct rank_cursor at = {0};
    for (size_t i = 0; i < run->n_nodes; i++)
        run->nodes[i]->link.spoken_ms = 0;
    for (struct rank *rank; (rank = dpt_rdzv_next_rank(run, &at)) != NULL;)
        if (dpt_rdzv_rank_is_alive(rank))
            rank->asked = run->generation;
    dpt_rdzv_count_all_ranks(run);
}

void dpt_rdzv_prepare_number(struct run *run)
{
    advance_generation(run);
    dpt_rdzv_enter_phase(run, DPT_RDZV_PREPARING);
    ask_for_reports(run);
}

void dpt_rdzv_prepare(struct run *run, enum prepare how, struct cause cause)
{
    struct formation *formation = &run->formation;
    const bool soft = how == PREPARE_SOFT, preparing = run->phase == DPT_RDZV_PREPARING;
    if (dpt_rdzv_has_ended(run))
        return;
    if ((!preparing && run->phase != DPT_RDZV_PLANNED) || cause.kind > formation->cause.kind)
        formation->cause = cause;
    const bool failed = !soft && cause.kind >= CAUSE_COMM_ERROR;
    formation->after_failure = failed || (preparing && formation->after_failure);
    if (!soft)
        run->plan.in_force = false; /* its ranks abort, so no commit is granted any more */
    if (preparing && (soft || !formation->soft))
        return;
    formation->soft = soft && run->plan.in_force;
    formation->adopt_until_ms = -1;
    dpt_rdzv_prepare_number(run);
    dpt_rdzv_log(run, DPT_LOG_INFO, "forming generation %llu%s: %s",
                 (unsigned long long)run->generation,
                 formation->soft ? " at the next step boundary" : "", cause.text);
}

/* ---- the end ---- */

static void end_run(struct run *run, enum dpt_rdzv_phase phase, const char *text)
{
    run->plan.in_force = false;
    dpt_rdzv_enter_phase(run, phase);
    dpt_rdzv_record(run, (struct dpt_rdzv_record){.kind = DPT_RDZV_RECORD_END,
                                                  .generation = run->generation,
                                                  .step = run->progress.step,
                                                  .step_ms = run->progress.step_ms_median,
                                                  .text = text});
}

void dpt_rdzv_fail_run(struct run *run, const char *text)
{
    if (dpt_rdzv_has_ended(run))
        return;
    end_run(run, DPT_RDZV_FAILED, text);
    dpt_rdzv_log(run, DPT_LOG_ERROR, "run failed: %s", text);
}

void dpt_rdzv_stop_run(struct run *run)
{
    const int64_t unsaved = dpt_rdzv_step_without_checkpoint(run);
    end_run(run, DPT_RDZV_DONE, "");
    if (unsaved == 0)
        dpt_rdzv_log(run, DPT_LOG_INFO, "run stopped by an operator; saved step %lld",
                     (long long)run->progress.saved_step);
    else
        dpt_rdzv_log(run, DPT_LOG_WARN,
                     "run stopped by an operator; saved step %lld, and step %lld is not saved",
                     (long long)run->progress.saved_step, (long long)unsaved);
}

void dpt_rdzv_finish_run(struct run *run)
{
    const uint64_t generations = run->generation - run->formation.generation_floor;
    end_run(run, DPT_RDZV_DONE, "");
    dpt_rdzv_log(run, DPT_LOG_INFO, "run done after %lld steps in %llu generation%s",
                 (long long)run->progress.final_step, (unsigned long long)generations,
                 generations == 1 ? "" : "s");
}
