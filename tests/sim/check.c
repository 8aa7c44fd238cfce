/* Invariants over the whole world, from its true state and not from any node's knowledge. */
#include "tests/sim/operator.h"

#include <stdlib.h>
#include <string.h>

struct dpt_timing sim_timing(const struct sim *sim)
{
    return dpt_timing_from(sim->profile.timeout_ms, sim->profile.drain_ms);
}

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
    uint32_t n = 0;
    memset(sim->covered, 0, sizeof sim->covered);
    for (int i = 0; i < sim->profile.machines; i++)
        sim->machines[i].hurt = false;
    for (int i = 0; i < sim->profile.machines * LOCALS_MAX; i++) {
        const struct machine *m = &sim->machines[i / LOCALS_MAX];
        const struct proc *proc = m->procs[i % LOCALS_MAX];
        if (proc == NULL || server_rank_of(sim, proc) < 0)
            continue;
        sim->covered[i].in = true;
        sim->covered[i].incarnation = proc->incarnation;
        sim->covered[i].spawn = proc->spawn;
        n++;
    }
    /* A rank that has died since is not there to cover others. */
    sim->is_covered = view->redundancy == DPT_RDZV_REDUNDANCY_WHOLE && n == view->world_size;
}

/* One that only saves ends no wait for nodes. */
static void note_run(struct sim *sim, const struct dpt_rdzv_run_view *view)
{
    for (size_t i = sim->n_groups; i-- > 0;)
        if (sim->groups[i]->final_save && strcmp(sim->groups[i]->digest, view->plan_digest) == 0)
            return;
    sim->ran_ms = sim->now_ms;
}

/* Each node that the server counts in a running generation is in exactly that generation, at that
 * rank, by that plan. */
void check_after_server(struct sim *sim)
{
    operator_check(sim);
    /* With hundreds of machines all of them are checked only at every 64th event. */
    if (sim->core == NULL || (sim->profile.machines > 32 && sim->events % 64 != 0))
        return;
    struct dpt_rdzv_run_view view;
    if (!server_view(sim, &view) || view.phase != DPT_RDZV_RUNNING)
        return;
    note_covered(sim, &view);
    note_run(sim, &view);
    for (int i = 0; i < sim->profile.machines; i++)
        for (int k = 0; k < LOCALS_MAX; k++) {
            const struct proc *proc = sim->machines[i].procs[k];
            if (proc == NULL || !proc->alive || !is_in_generation(proc))
                continue;
            const int rank = server_rank_of(sim, proc);
            if (rank < 0)
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
    if (proc == NULL || !proc->alive || proc->stage != RS_QUIESCED ||
        proc->generation != plan->generation || server_rank_of(sim, proc) < 0)
        return NULL;
    return proc;
}

/* Whether the counted nodes could be at `step` together. */
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

/* It leaves because it was told to, and no node may still wait for it. */
static bool just_leaves(const struct sim *sim, const struct machine *m)
{
    const int64_t drain_ms = sim_timing(sim).drain_ms;
    return m->told_ms >= 0 && sim->now_ms - m->told_ms < drain_ms * 3 / 4 && !m->hurt &&
           !m->told_twice && !m->rescues;
}

/* The number of nodes, of those that covered each other, that are not in the plan with their state,
 * though they were not told to leave: their processes have ended, or gave it up for a plan that
 * rightly went back. A node that came later counts if a fault hit it, because the state may have
 * moved to it meanwhile. *ret_step: the newest step of one of the others. */
static int uncovered_nodes(const struct sim *sim, const Dpt__Plan *plan, int64_t *ret_step)
{
    int nodes = 0;
    *ret_step = -1;
    for (int i = 0; i < sim->profile.machines; i++) {
        bool missing = false, covered = false;
        for (int local = 0; local < LOCALS_MAX; local++) {
            const int at = i * LOCALS_MAX + local;
            const struct proc *proc = reporter(sim, i, local, plan);
            if (!sim->covered[at].in)
                continue;
            covered = true;
            if (proc == NULL || proc->spawn != sim->covered[at].spawn ||
                proc->incarnation != sim->covered[at].incarnation || proc->went_back)
                missing = true;
            else if (proc->step > *ret_step)
                *ret_step = proc->step;
        }
        nodes += covered ? missing && !just_leaves(sim, &sim->machines[i]) : sim->machines[i].hurt;
    }
    return nodes;
}

/* The newest checkpoint or rescue that all ranks of the plan can load, those included that have
 * received it already. */
static int64_t step_on_disk(const struct sim *sim, const Dpt__Plan *plan)
{
    int64_t least = -1, most = -1;
    for (int i = 0; i < sim->profile.machines * LOCALS_MAX; i++) {
        const struct machine *m = &sim->machines[i / LOCALS_MAX];
        const struct proc *proc = m->procs[i % LOCALS_MAX];
        if (proc == NULL || !proc->alive || proc->generation != plan->generation ||
            server_rank_of(sim, proc) < 0)
            continue;
        least = least < 0 || proc->checkpoint_seen < least ? proc->checkpoint_seen : least;
        most = proc->checkpoint_seen > most ? proc->checkpoint_seen : most;
    }
    return sim->profile.sharding == SHARDING_NONE ? most : least;
}

static int64_t newest_held(const struct machine *m)
{
    int64_t step = -1;
    for (int i = 0; i < LOCALS_MAX; i++)
        if (m->procs[i] != NULL && m->procs[i]->alive && m->procs[i]->step > step)
            step = m->procs[i]->step;
    return step;
}

/* A generation without the node was sent off after the last that it was in; whether its ranks have
 * heard so yet or not. */
static bool others_went_on(const struct sim *sim, const struct machine *m)
{
    uint64_t number = 0;
    struct dpt_rdzv_run_view view;
    for (int i = 0; i < LOCALS_MAX; i++)
        if (m->procs[i] != NULL && m->procs[i]->alive && m->procs[i]->group_number > number)
            number = m->procs[i]->group_number;
    return sim->newest_went > number || (server_view(sim, &view) && view.run_generation > number);
}

/* Nobody is expelled with a state that is nowhere else, unless others have gone on without it; or
 * it was given up because its own processes stood still or hung. */
void check_expelled(struct sim *sim, const struct machine *m)
{
    const int64_t held = newest_held(m);
    int64_t others = -1;
    for (int i = 0; i < sim->profile.machines; i++)
        if (&sim->machines[i] != m && newest_held(&sim->machines[i]) > others)
            others = newest_held(&sim->machines[i]);
    if (held > 0 && held > sim_saved_step(sim) && held > others && !m->was_stopped &&
        !others_went_on(sim, m))
        sim_fail(sim, "%s is expelled with step %lld, others hold %lld, saved is %lld", m->id,
                 (long long)held, (long long)others, (long long)sim_saved_step(sim));
}

/* It may not know the newest checkpoint, but neither the server nor one of its processes has
 * reported one that is as new as its state. */
void check_unsaved(struct sim *sim, const struct machine *m, const char *line)
{
    const char *at = strstr(line, "up to ");
    const long long step = at != NULL ? strtoll(at + 6, NULL, 10) : -1;
    if (step <= m->known_saved)
        sim_fail(sim, "%s says that step %lld is not saved, but knows that %lld is", m->id, step,
                 (long long)m->known_saved);
}

/* No fault has ever hidden the machine from the server, or the server from it. */
static bool was_always_seen(const struct sim *sim, const struct machine *m)
{
    return m->agent != NULL && m->conn != 0 && !m->was_hit && m->refused_ms < 0 &&
           !sim->host->server_hit && sim->profile.n_net_faults == 0;
}

/* "run stopped by an operator; saved step 40, and step 41 is not saved". The disk has the saved
 * step. Each step that is in a process which the server sees is saved, or the line names it. */
static void check_stopped(struct sim *sim, const char *text)
{
    static const char saved_word[] = "; saved step ", lost_word[] = ", and step ";
    const char *saved = strstr(text, saved_word), *lost = strstr(text, lost_word);
    const long long saved_step = saved != NULL ? strtoll(saved + strlen(saved_word), NULL, 10) : -1;
    const long long lost_step = lost != NULL ? strtoll(lost + strlen(lost_word), NULL, 10) : 0;
    sim->host->operator.stops++;
    sim->operator.own_stops++;
    if (saved == NULL || saved_step > sim_saved_step(sim))
        sim_fail(sim, "the disk has step %lld, but: %s", (long long)sim_saved_step(sim), text);
    for (int i = 0; i < sim->profile.machines; i++) {
        const struct machine *m = &sim->machines[i];
        const int64_t held = newest_held(m);
        if (was_always_seen(sim, m) && held > 0 && held > sim_saved_step(sim) && held > lost_step)
            sim_fail(sim, "%s holds step %lld, the disk has step %lld, but: %s", m->id,
                     (long long)held, (long long)sim_saved_step(sim), text);
    }
}

/* "node a lost: silent for 4.5 s". A node is lost only for an event of its own. A refused
 * connection for less than a lease is not enough, unless another machine made the generation fail:
 * then it is from twice the grace on, if the others hold the state. */
static bool may_be_lost(const struct sim *sim, const struct machine *m, const char *why)
{
    bool other = false;
    if (m->refused_ms < 0 || m->was_hit || sim->host->server_hit)
        return true;
    for (int i = 0; i < sim->profile.machines; i++)
        other = other || (&sim->machines[i] != m && sim->machines[i].was_hit);
    return other && sim->now_ms - m->refused_ms >= 2 * sim_timing(sim).grace_ms &&
           strcmp(why, "control connection broken, and the others hold the state") == 0;
}

void check_log(struct sim *sim, const char *text)
{
    static const char stopped[] = "run stopped by an operator";
    if (strncmp(text, stopped, strlen(stopped)) == 0)
        check_stopped(sim, text);
    for (int i = 0; i < sim->profile.machines; i++) {
        const struct machine *m = &sim->machines[i];
        char lost[DPT_PROTO_NAME_BYTES + 16];
        (void)snprintf(lost, sizeof lost, "node %s lost: ", m->id);
        if (strncmp(text, lost, strlen(lost)) == 0 && !may_be_lost(sim, m, text + strlen(lost)))
            sim_fail(sim, "%s was refused for less than a lease, and: %s", m->id, text);
    }
}

/* A run fails here for want of nodes alone. */
void check_failed(struct sim *sim, const char *text)
{
    if (strncmp(text, "it waited ", 10) != 0)
        return; /* the node that ends for it says so */
    if (sim->now_ms - sim->ran_ms < sim->profile.wait_ms)
        sim_fail(sim, "the run fails for want of nodes, but ran %lld ms ago: %s",
                 (long long)(sim->now_ms - sim->ran_ms), text);
    sim->failed = true;
}

void check_exit(struct sim *sim, const struct machine *m)
{
    const struct dpt_timing timing = sim_timing(sim);
    const bool has_unsaved = m->held_at_end > 0 && m->held_at_end > sim_saved_step(sim);
    sim->unsaved += m->said_unsaved;
    if (!has_unsaved)
        return;
    if (m->exit_code == DPT_EXIT_FAILED && !m->said_unsaved)
        sim_fail(sim, "%s ends with its run and takes step %lld along, of which %lld is saved",
                 m->id, (long long)m->held_at_end, (long long)sim_saved_step(sim));
    if (m->told_stop && !m->said_unsaved)
        sim_fail(sim,
                 "%s ends with a stopped run and takes step %lld along, of which %lld is saved",
                 m->id, (long long)m->held_at_end, (long long)sim_saved_step(sim));
    if (m->exit_code == DPT_EXIT_SERVER)
        sim_fail(sim, "%s ends for want of a server with step %lld, of which %lld is saved", m->id,
                 (long long)m->held_at_end, (long long)sim_saved_step(sim));
    if (sim->core == NULL && sim->now_ms - sim->down_ms > timing.drain_ms && !m->said_unsaved)
        sim_fail(sim, "%s takes step %lld along, of which %lld is saved, without a word", m->id,
                 (long long)m->held_at_end, (long long)sim_saved_step(sim));
}

/* A plan never goes back behind a state that those in it hold together; and with one node lost that
 * the others covered, behind nothing. Who leaves is not lost by that. */
void check_plan_sent(struct sim *sim, const Dpt__ServerState *message)
{
    const Dpt__Plan *plan = message->plan;
    int64_t checked_step = -1;
    for (int i = 0; i < sim->profile.machines * LOCALS_MAX; i++) {
        const struct proc *proc = reporter(sim, i / LOCALS_MAX, i % LOCALS_MAX, plan);
        if (proc == NULL || proc->step <= plan->resume_step || proc->step == checked_step)
            continue;
        checked_step = proc->step; /* neighbours have the same one: once is enough */
        if (could_stand(sim, plan, proc->step))
            sim_fail(sim, "generation %llu goes on from step %lld, but its ranks hold step %lld",
                     (unsigned long long)plan->generation, (long long)plan->resume_step,
                     (long long)proc->step);
    }
    if (plan->resume_step < step_on_disk(sim, plan))
        sim_fail(sim, "generation %llu goes on from step %lld, but step %lld is on disk",
                 (unsigned long long)plan->generation, (long long)plan->resume_step,
                 (long long)step_on_disk(sim, plan));
    int64_t step;
    const int lost = uncovered_nodes(sim, plan, &step);
    struct dpt_rdzv_run_view view;
    /* One may have begun and ended between two checks: the earlier cover is gone. */
    const bool is_newest = server_view(sim, &view) && view.run_generation <= sim->noted_generation;
    if (sim->is_covered && is_newest && lost <= 1 && plan->resume_step < step)
        sim_fail(sim, "generation %llu goes back from step %lld to %lld, with %d nodes lost",
                 (unsigned long long)plan->generation, (long long)step,
                 (long long)plan->resume_step, lost);
}

/* After a stop before the last step the machines start again, and the next run of the name makes
 * the other steps. */
void check_done(struct sim *sim, const Dpt__ServerState *message)
{
    if (message->last_holder && sim->checkpoint < sim->profile.steps)
        return;
    if (sim->checkpoint != sim->profile.steps)
        sim_fail(sim, "the run is DONE, but its newest checkpoint is of step %lld",
                 (long long)sim->checkpoint);
    sim->done_seen = true;
}

/* The faults are over and time has passed: every node has finished. */
void check_end(struct sim *sim)
{
    if (sim->failure[0] != '\0' || sim->failed)
        return;
    for (int i = 0; i < sim->profile.machines; i++) {
        const struct machine *m = &sim->machines[i];
        if (!m->ended) {
            struct dpt_rdzv_run_view view = {0};
            (void)server_view(sim, &view);
            if (sim->done_seen && view.phase == DPT_RDZV_WAITING)
                continue; /* came after the end and waits for others, as it should */
            sim_fail(sim, "%s has not ended; server: %s generation %llu, step %lld of %lld (%s)",
                     m->id, sim->core == NULL ? "down" : dpt_rdzv_phase_name(view.phase),
                     (unsigned long long)view.generation, (long long)sim->furthest,
                     (long long)sim->profile.steps, view.text);
            return;
        }
    }
    if (sim->furthest != sim->profile.steps || sim->checkpoint != sim->profile.steps)
        sim_fail(sim, "ended at step %lld with checkpoint %lld, wanted %lld",
                 (long long)sim->furthest, (long long)sim->checkpoint,
                 (long long)sim->profile.steps);
}
