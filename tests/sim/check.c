/* Invariants over the whole world, from what is true in it and not from what anybody was told. */
#include "tests/sim/sim.h"

#include <string.h>

static bool is_in_generation(const struct proc *proc)
{
    return proc->stage == RS_READY || proc->stage == RS_COMPUTING || proc->stage == RS_REDUCING ||
           proc->stage == RS_APPLYING || proc->stage == RS_BOUNDARY || proc->stage == RS_SAVING ||
           proc->stage == RS_FINISHING || proc->stage == RS_FINISHED;
}

/* Called while the generation runs: looks when it begins to, and when that changes. */
static void note_covered(struct sim *sim, const struct dpt_rdzv_run_view *view)
{
    if (view->generation == sim->noted_generation && view->redundancy == sim->noted_redundancy)
        return;
    sim->noted_generation = view->generation;
    sim->noted_redundancy = view->redundancy;
    sim->is_covered = view->redundancy == DPT_RDZV_REDUNDANCY_WHOLE;
    memset(sim->covered, 0, sizeof sim->covered);
    for (int i = 0; i < sim->profile.machines; i++)
        sim->machines[i].hurt = false;
    for (int i = 0; i < sim->profile.machines * LOCALS_MAX; i++) {
        const struct machine *m = &sim->machines[i / LOCALS_MAX];
        const struct proc *proc = m->procs[i % LOCALS_MAX];
        int rank;
        if (proc == NULL || !dpt_rdzv_counts_in(sim->core, "sim", m->id, proc->incarnation,
                                                proc->local, proc->spawn, &rank))
            continue;
        sim->covered[i].in = true;
        sim->covered[i].incarnation = proc->incarnation;
        sim->covered[i].spawn = proc->spawn;
    }
}

/* Whom the server counts into a generation that runs stands in just that one, at just that rank,
 * by just that plan. */
void check_after_server(struct sim *sim)
{
    /* With hundreds of machines the look at everybody is taken at every 64th event. */
    if (sim->core == NULL || dpt_rdzv_runs(sim->core) == 0 ||
        (sim->profile.machines > 32 && sim->events % 64 != 0))
        return;
    struct dpt_rdzv_run_view view;
    dpt_rdzv_run_view(sim->core, 0, &view);
    if (view.phase != DPT_RDZV_RUNNING)
        return;
    note_covered(sim, &view);
    for (int i = 0; i < sim->profile.machines; i++)
        for (int k = 0; k < LOCALS_MAX; k++) {
            const struct proc *proc = sim->machines[i].procs[k];
            int rank;
            if (proc == NULL || !proc->alive || !is_in_generation(proc) ||
                !dpt_rdzv_counts_in(sim->core, "sim", sim->machines[i].id, proc->incarnation,
                                    proc->local, proc->spawn, &rank))
                continue;
            if (proc->generation != view.generation || proc->rank != rank ||
                (proc->group != NULL && strcmp(proc->group->digest, view.plan_digest) != 0))
                sim_fail(sim,
                         "%s.%u is counted in as rank %d of generation %llu, but is rank %d of "
                         "generation %llu",
                         sim->machines[i].id, proc->local, rank,
                         (unsigned long long)view.generation, proc->rank,
                         (unsigned long long)proc->generation);
        }
}

/* A process that the plan counts in, and that has reported for it; else NULL. */
static const struct proc *reporter(const struct sim *sim, int machine, int local,
                                   const Dpt__Plan *plan)
{
    const struct proc *proc = sim->machines[machine].procs[local];
    int rank;
    if (proc == NULL || !proc->alive || proc->stage != RS_QUIESCED ||
        proc->generation != plan->generation ||
        !dpt_rdzv_counts_in(sim->core, "sim", sim->machines[machine].id, proc->incarnation,
                            proc->local, proc->spawn, &rank))
        return NULL;
    return proc;
}

/* Whether those who are counted in could stand at `step` together. */
static bool could_stand(const struct sim *sim, const Dpt__Plan *plan, int64_t step)
{
    struct dpt_shard shards[2 * MACHINES_MAX * LOCALS_MAX];
    bool told = false;
    int n = 0;
    for (int i = 0; i < sim->profile.machines * LOCALS_MAX; i++) {
        const struct proc *proc = reporter(sim, i / LOCALS_MAX, i % LOCALS_MAX, plan);
        told = told || (proc != NULL && proc->outcome_step == step);
    }
    for (int i = 0; i < sim->profile.machines * LOCALS_MAX; i++) {
        const struct proc *proc = reporter(sim, i / LOCALS_MAX, i % LOCALS_MAX, plan);
        if (proc == NULL || proc->step < 0)
            continue;
        const bool pending =
            proc->pending_generation != 0 && proc->pending_generation <= plan->state_generation;
        const struct parts *parts = pending ? &proc->pending : &proc->held;
        if (proc->step != step &&
            !(told && !pending && proc->step == step - 1 && proc->gradient_step == step))
            continue;
        shards[n++] = parts->own;
        shards[n++] = parts->shadow;
    }
    return dpt_shards_cover(shards, n);
}

/* It goes because it was told to, and not for so long that nobody may wait for it any more. */
static bool just_leaves(const struct sim *sim, const struct machine *m)
{
    const int64_t drain_ms = dpt_timing_from(sim->profile.timeout_ms).drain_ms;
    return m->told_ms >= 0 && sim->now_ms - m->told_ms < drain_ms * 3 / 4 && !m->hurt;
}

/* How many nodes of those that covered each other are not in the plan with what they had, though
 * nobody told them to go; *ret_step: the newest step that one of the others stands at. */
static int uncovered_nodes(const struct sim *sim, const Dpt__Plan *plan, int64_t *ret_step)
{
    int nodes = 0;
    *ret_step = -1;
    for (int i = 0; i < sim->profile.machines; i++) {
        bool missing = false;
        for (int local = 0; local < LOCALS_MAX; local++) {
            const int at = i * LOCALS_MAX + local;
            const struct proc *proc = reporter(sim, i, local, plan);
            if (!sim->covered[at].in)
                continue;
            if (proc == NULL || proc->spawn != sim->covered[at].spawn ||
                proc->incarnation != sim->covered[at].incarnation)
                missing = true;
            else if (proc->step > *ret_step)
                *ret_step = proc->step;
        }
        nodes += missing && !just_leaves(sim, &sim->machines[i]);
    }
    return nodes;
}

/* A plan never goes back behind a state that those in it hold together; and with one node lost that
 * the others covered, behind nothing. Who leaves is not lost by that. */
void check_plan_sent(struct sim *sim, const Dpt__ServerState *message)
{
    const Dpt__Plan *plan = message->plan;
    for (int i = 0; i < sim->profile.machines * LOCALS_MAX; i++) {
        const struct proc *proc = reporter(sim, i / LOCALS_MAX, i % LOCALS_MAX, plan);
        if (proc != NULL && proc->step > plan->resume_step && could_stand(sim, plan, proc->step))
            sim_fail(sim, "generation %llu goes on from step %lld, but its ranks hold step %lld",
                     (unsigned long long)plan->generation, (long long)plan->resume_step,
                     (long long)proc->step);
    }
    int64_t step;
    const int lost = uncovered_nodes(sim, plan, &step);
    if (sim->is_covered && lost <= 1 && plan->resume_step < step)
        sim_fail(sim, "generation %llu goes back from step %lld to %lld, with %d nodes lost",
                 (unsigned long long)plan->generation, (long long)step,
                 (long long)plan->resume_step, lost);
}

/* The faults are over and time was given: everybody has finished. */
void check_end(struct sim *sim)
{
    if (sim->failure[0] != '\0')
        return;
    for (int i = 0; i < sim->profile.machines; i++) {
        const struct machine *m = &sim->machines[i];
        if (!m->ended) {
            struct dpt_rdzv_run_view view = {0};
            if (sim->core != NULL && dpt_rdzv_runs(sim->core) > 0)
                dpt_rdzv_run_view(sim->core, 0, &view);
            if (sim->done_seen && view.phase == DPT_RDZV_WAITING)
                continue; /* came after the end and waits for others, as it should */
            sim_fail(sim, "%s has not ended; server: %s generation %llu, step %lld of %lld (%s)",
                     m->id, sim->core == NULL ? "down" : dpt_rdzv_phase_name(view.phase),
                     (unsigned long long)view.generation, (long long)sim->furthest,
                     (long long)sim->profile.steps, view.text);
            return;
        }
        if (m->exit_code != DPT_EXIT_DONE && m->exit_code != DPT_EXIT_EXPELLED) /* left late */
            sim_fail(sim, "%s ended with code %d: %s", m->id, m->exit_code, m->exit_text);
    }
    if (sim->furthest != sim->profile.steps || sim->checkpoint != sim->profile.steps)
        sim_fail(sim, "ended at step %lld with checkpoint %lld, wanted %lld",
                 (long long)sim->furthest, (long long)sim->checkpoint,
                 (long long)sim->profile.steps);
}
