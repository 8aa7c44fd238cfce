/* One generation's data plane: its members, the current reduction, and how a break spreads. */
#include "tests/sim/sim.h"
#include "worker/plan/world.h"

#include <stdlib.h>
#include <string.h>

/* ---- holders ---- */

static void deal(const struct sim *sim, struct group *group, const Dpt__Plan *plan)
{
    enum { RANKS_MAX = MACHINES_MAX * LOCALS_MAX };
    const int size = (int)(plan->world_size - plan->handover_ranks);
    int rank_at[RANKS_MAX], rack_at[RANKS_MAX], host_at[RANKS_MAX], node_at[RANKS_MAX];
    for (int i = 0; i < size; i++) {
        const Dpt__PlanRank *rank = plan->ranks[i];
        rank_at[rank->position] = i;
        rack_at[rank->position] = (int)rank->rack;
        host_at[rank->position] = (int)rank->host;
        node_at[rank->position] = (int)rank->node;
    }
    const struct dpt_world world = {.size = size,
                                    .host_of_position = host_at,
                                    .node_of_position = node_at,
                                    .rack_of_position = rack_at};
    const int shift = sim->profile.sharding == SHARDING_SHADOW ? dpt_shadow_shift(&world) : 0;
    for (int at = 0; at < size; at++) {
        const struct dpt_range node = dpt_world_node(&world, at);
        const int ward = dpt_shadow_source(&world, shift, at);
        struct parts *wants = &group->wants[rank_at[at]];
        *wants = (struct parts){.own = {0, 1}};
        if (sim->profile.sharding == SHARDING_HYBRID)
            wants->own = (struct dpt_shard){at - node.first, node.end - node.first};
        else if (sim->profile.sharding != SHARDING_NONE)
            wants->own = (struct dpt_shard){rank_at[at], size};
        if (ward >= 0)
            wants->shadow = (struct dpt_shard){rank_at[ward], size};
    }
}

/* After a loss every other run goes on without shadows, which come beside the steps. */
static void defer_shadows(const struct sim *sim, struct group *group, const Dpt__Plan *plan)
{
    const bool lost = strcmp(plan->cause_kind, "node_lost") == 0 ||
                      strcmp(plan->cause_kind, "rank_lost") == 0 ||
                      strcmp(plan->cause_kind, "comm_error") == 0;
    if (sim->seed % 2 == 0 || !lost || plan->load_checkpoint >= 0 || plan->from_seed)
        return;
    for (uint32_t i = 0; i < plan->world_size - plan->handover_ranks; i++) {
        struct parts *wants = &group->wants[i];
        group->late[i] = wants->shadow;
        group->rebuilds = group->rebuilds || !dpt_shard_is_none(wants->shadow);
        wants->shadow = (struct dpt_shard){0, 0};
    }
}

bool group_is_whole(const struct group *group)
{
    struct dpt_shard shards[2 * MACHINES_MAX * LOCALS_MAX];
    int n = 0;
    for (uint32_t i = 0; i < group->world; i++) {
        const struct proc *proc = group->members[i];
        if (proc == NULL || proc->takes_state || proc->step != group->resume_step)
            continue;
        shards[n++] = proc->held.own;
        shards[n++] = proc->held.shadow;
    }
    return dpt_shards_cover(shards, n);
}

static bool same_parts(const struct parts *a, const struct parts *b)
{
    return dpt_shard_equal(a->own, b->own) && dpt_shard_equal(a->shadow, b->shadow);
}

static struct group *find_group(struct sim *sim, const Dpt__Plan *plan)
{
    for (size_t i = sim->n_groups; i-- > 0;)
        if (sim->groups[i]->generation == plan->generation &&
            strcmp(sim->groups[i]->digest, plan->digest) == 0)
            return sim->groups[i];
    if (sim->n_groups == GROUPS_MAX) {
        sim_fail(sim, "more than %d generations", GROUPS_MAX);
        return NULL;
    }
    for (size_t i = 0; i < sim->n_groups; i++) {
        if (sim->groups[i]->generation == plan->generation &&
            sim->groups[i]->server_life == sim->server_life)
            sim_fail(sim, "two plans of generation %llu", (unsigned long long)plan->generation);
        if (memcmp(sim->groups[i]->nonce, plan->nonce.data, plan->nonce.len) == 0)
            sim_fail(sim, "generations %llu and %llu have one nonce",
                     (unsigned long long)sim->groups[i]->generation,
                     (unsigned long long)plan->generation);
    }
    struct group *group = calloc(1, sizeof *group);
    DPT_ASSERT(group != NULL);
    sim->groups[sim->n_groups++] = group;
    group->number = sim->n_groups;
    group->run_life = sim->run_life;
    group->server_life = sim->server_life;
    memcpy(group->nonce, plan->nonce.data, sizeof group->nonce);
    sim->formations++;
    group->generation = plan->generation;
    (void)snprintf(group->digest, sizeof group->digest, "%s", plan->digest);
    group->world = plan->world_size;
    group->handover_ranks = plan->handover_ranks;
    group->final_save = plan->final_save;
    sim->hosted += plan->handover_ranks > 0;
    sim->final_saves += plan->final_save ? 1 : 0;
    deal(sim, group, plan);
    defer_shadows(sim, group, plan);
    group->resume_step = group->step = plan->resume_step;
    group->load_checkpoint = plan->load_checkpoint;
    group->writers = plan->checkpoint_writers;
    return group;
}

/* ---- the break of a data plane ---- */

static bool is_together(const struct proc *proc)
{
    return proc->stage == RS_BUILDING || proc->stage == RS_READY || proc->stage == RS_COMPUTING ||
           proc->stage == RS_REDUCING || proc->stage == RS_FINISHING || proc->stage == RS_SAVING;
}

static void tell_break(struct sim *sim, const struct group *group, const struct proc *peer,
                       int64_t longest_ms, int suspect)
{
    sim_push(sim, (struct event){.at_ms = sim_delay(sim, 1, longest_ms),
                                 .kind = EV_RANK_BROKEN,
                                 .machine = peer->machine,
                                 .life = peer->life,
                                 .local = peer->local,
                                 .spawn = peer->spawn,
                                 .token = group->generation,
                                 .number = suspect});
}

void group_leave(struct sim *sim, struct proc *proc)
{
    struct group *group = proc->group;
    proc->group = NULL;
    if (group == NULL)
        return;
    group->members[proc->rank] = NULL;
    bool agreed = group->agreed_reform && proc->alive && proc->step == group->step;
    if (agreed || group->finished)
        return;
    if (!group->broken)
        group->culprit = proc->rank;
    group->broken = true;
    for (uint32_t i = 0; i < group->world; i++) {
        struct proc *peer = group->members[i];
        if (peer == NULL || !peer->alive || !is_together(peer))
            continue;
        tell_break(sim, group, peer, 60, group->culprit);
    }
}

bool group_is_apart(const struct sim *sim, int a, int b)
{
    const struct profile *profile = &sim->profile;
    return (a == profile->bad_pair_a && b == profile->bad_pair_b) ||
           (b == profile->bad_pair_a && a == profile->bad_pair_b) ||
           (sim->split_at > 0 && (a < sim->split_at) != (b < sim->split_at));
}

/* The rank of a member that `proc` cannot reach; -1: none. */
static int rank_out_of_reach(const struct sim *sim, const struct group *group,
                             const struct proc *proc)
{
    for (uint32_t i = 0; i < group->world; i++)
        if (group->members[i] != NULL &&
            group_is_apart(sim, group->members[i]->machine, proc->machine))
            return (int)i;
    return -1;
}

void group_split(struct sim *sim)
{
    for (size_t g = 0; g < sim->n_groups; g++) {
        struct group *group = sim->groups[g];
        bool is_split = false;
        for (uint32_t i = 0; !group->broken && !group->finished && i < group->world; i++) {
            const struct proc *proc = group->members[i];
            if (proc == NULL || !proc->alive)
                continue;
            const int suspect = rank_out_of_reach(sim, group, proc);
            /* A rank that applies a step looks at group->broken afterwards. */
            if (suspect >= 0 && is_together(proc))
                tell_break(sim, group, proc, sim->profile.timeout_ms, suspect);
            is_split = is_split || suspect >= 0;
        }
        /* No step completes any more. A member that knows nothing of the split hears of it from its
         * peers. */
        group->culprit = is_split ? -1 : group->culprit;
        group->broken = group->broken || is_split;
    }
}

/* ---- building ---- */

/* What was put in place for a generation that perhaps was not sent off. */
static void settle_pending(struct sim *sim, struct proc *proc, const Dpt__Plan *plan)
{
    if (proc->pending_generation == 0)
        return;
    if (proc->pending_generation <= plan->state_generation) {
        proc->held = proc->pending;
        proc->gradient_step = -1; /* belonged to the earlier state */
    } else {
        sim->dropped++;
    }
    proc->pending_generation = 0;
}

/* The state that a rank must really have when it is told "you have the state". */
static void take_own_state(struct sim *sim, struct proc *proc, const Dpt__Plan *plan)
{
    const char *id = sim->machines[proc->machine].id;
    int64_t resume = plan->resume_step;
    proc->has_state = true;
    proc->went_back = proc->went_back || plan->load_checkpoint >= 0 || plan->from_seed;
    if (plan->load_checkpoint >= 0) {
        if (plan->load_checkpoint > sim_saved_step(sim))
            sim_fail(sim, "%s.%u is told to load checkpoint %lld, newest is %lld", id, proc->local,
                     (long long)plan->load_checkpoint, (long long)sim_saved_step(sim));
        proc->step = plan->load_checkpoint;
        proc->outcome_step = proc->gradient_step = -1;
        proc->held = proc->group->wants[proc->rank];
        proc->weights = model_weights(proc->step);
        sim->loaded++;
    } else if (plan->from_seed) {
        proc->step = 0;
        proc->outcome_step = proc->gradient_step = -1;
        proc->weights = model_weights(0);
        proc->held = proc->group->wants[proc->rank];
    } else if (proc->step == resume - 1 && proc->step >= 0) {
        uint64_t outcome = proc->outcome;
        if (proc->outcome_step != resume) {
            if (plan->outcome.len != sizeof outcome) {
                sim_fail(sim, "%s.%u is to apply step %lld but was handed no outcome", id,
                         proc->local, (long long)resume);
                return;
            }
            memcpy(&outcome, plan->outcome.data, sizeof outcome);
            sim->handed++;
        }
        if (proc->gradient_step != resume || outcome != model_outcome(resume))
            sim_fail(sim, "%s.%u is to apply step %lld but holds gradients of step %lld", id,
                     proc->local, (long long)resume, (long long)proc->gradient_step);
        struct rng rng = {proc->weights ^ outcome};
        proc->weights = rng_next(&rng);
        proc->step = proc->outcome_step = resume;
        proc->outcome = outcome;
    }
    if (proc->step != resume || proc->weights != model_weights(proc->step))
        sim_fail(sim, "%s.%u is told to go on from step %lld but holds %lld", id, proc->local,
                 (long long)resume, (long long)proc->step);
}

/* Everybody has arrived: connections are made. A bad pair finds out now. */
static void all_arrived(struct sim *sim, struct group *group)
{
    for (uint32_t i = 0; i < group->world; i++) {
        struct proc *proc = group->members[i];
        if (proc == NULL)
            return; /* a member left again: the break spreads */
    }
    for (uint32_t i = 0; i < group->world; i++)
        for (uint32_t k = 0; k < group->world; k++) {
            struct proc *a = group->members[i], *b = group->members[k];
            if (!group_is_apart(sim, a->machine, b->machine))
                continue;
            sim_push(sim, (struct event){.at_ms = sim_delay(sim, 20, 200),
                                         .kind = EV_RANK_BROKEN,
                                         .machine = a->machine,
                                         .life = a->life,
                                         .local = a->local,
                                         .spawn = a->spawn,
                                         .token = group->generation,
                                         .number = b->rank});
        }
    for (uint32_t i = 0; i < group->world; i++) {
        struct proc *proc = group->members[i];
        if (proc->takes_state)
            model_set_timer(sim, proc, 20, 300);
        else
            model_set_timer(sim, proc, 5, 50);
    }
}

/* Two members have one rack in the plan exactly if their machines are in one rack. */
static void check_rack(struct sim *sim, const struct group *group, const struct proc *proc,
                       const Dpt__Plan *plan)
{
    for (uint32_t i = 0; i < group->world; i++)
        if (group->members[i] != NULL &&
            (plan->ranks[i]->rack == plan->ranks[proc->rank]->rack) !=
                (machine_rack(sim, group->members[i]->machine) == machine_rack(sim, proc->machine)))
            sim_fail(sim, "generation %llu: ranks %u and %d have racks %u and %u",
                     (unsigned long long)plan->generation, i, proc->rank, plan->ranks[i]->rack,
                     plan->ranks[proc->rank]->rack);
}

void group_join(struct sim *sim, struct proc *proc, const Dpt__Plan *plan)
{
    const Dpt__PlanRank *own = NULL;
    struct group *group = find_group(sim, plan);
    for (size_t i = 0; i < plan->n_ranks; i++) {
        if (plan->ranks[i]->rank != i)
            sim_fail(sim, "ranks of generation %llu are not dense",
                     (unsigned long long)plan->generation);
        if (plan->ranks[i]->local_rank == (int32_t)proc->local)
            own = plan->ranks[i];
    }
    if (own == NULL || group == NULL || plan->n_ranks != group->world) {
        sim_fail(sim, "%s.%u has no place in its plan", sim->machines[proc->machine].id,
                 proc->local);
        return;
    }
    if (group->members[own->rank] != NULL) {
        sim_fail(sim, "rank %u of generation %llu is held twice", own->rank,
                 (unsigned long long)plan->generation);
        return;
    }
    proc->group = group;
    proc->group_number = group->number;
    proc->group_life = group->run_life;
    proc->rank = (int)own->rank;
    proc->takes_state = own->takes_state;
    proc->checkpoint_slot = own->checkpoint_slot;
    proc->writes_log = own->writes_log;
    proc->has_state = false;
    proc->stage = RS_BUILDING;
    group->members[own->rank] = proc;
    check_rack(sim, group, proc, plan);
    settle_pending(sim, proc, plan);
    if (!own->takes_state)
        take_own_state(sim, proc, plan);
    if (++group->arrived == group->world)
        all_arrived(sim, group);
    if (group->broken)
        sim_push(sim, (struct event){.at_ms = sim_delay(sim, 20, 200),
                                     .kind = EV_RANK_BROKEN,
                                     .machine = proc->machine,
                                     .life = proc->life,
                                     .local = proc->local,
                                     .spawn = proc->spawn,
                                     .token = group->generation,
                                     .number = -1});
}

/* One rank's part of the formation is complete: it has its state. */
void group_arrived(struct sim *sim, struct proc *proc)
{
    struct group *group = proc->group;
    const struct parts *wants = &group->wants[proc->rank];
    const bool only_hands_over = (uint32_t)proc->rank >= group->world - group->handover_ranks;
    for (uint32_t i = 0; i < group->world; i++)
        if (group->members[i] == NULL)
            return; /* a member is gone: the break spreads */
    if (!group_is_whole(group)) {
        sim_fail(sim, "generation %llu goes on from step %lld, which its ranks do not hold whole",
                 (unsigned long long)group->generation, (long long)group->resume_step);
        return;
    }
    if (proc->takes_state) {
        proc->step = group->resume_step;
        proc->weights = model_weights(proc->step); /* the holders were checked */
        proc->outcome_step = proc->gradient_step = -1;
        proc->held = *wants;
        sim->healed++;
    } else if (!only_hands_over && !same_parts(wants, &proc->held)) {
        proc->pending = *wants;
        proc->pending_generation = group->generation;
        sim->moved++;
    }
    proc->takes_state = false;
    proc->has_state = true;
    proc->stage = RS_READY;
    model_report(sim, proc);
}

/* ---- the step's small all-gather ---- */

void group_contribute(struct sim *sim, struct proc *proc)
{
    struct group *group = proc->group;
    if (proc->step != group->step || group->contributions[proc->rank]) {
        sim_fail(sim, "rank %d reduces step %lld while the others reduce step %lld", proc->rank,
                 (long long)proc->step + 1, (long long)group->step + 1);
        return;
    }
    proc->stage = RS_REDUCING;
    proc->gradient_step = proc->step + 1;
    if (group->contributed == 0) {
        group->reform = false;
        group->all_leaving = true;
    }
    group->contributions[proc->rank] = true;
    group->reform =
        group->reform || (proc->prepare_soft && proc->prepare_generation > proc->generation);
    group->all_leaving = group->all_leaving && proc->leaving;
    if (++group->contributed < group->world || group->broken)
        return;
    if (group->number < sim->newest_went && group->run_life == sim->run_life)
        for (uint32_t i = 0; sim->core != NULL && i < group->world; i++) {
            struct proc *peer = group->members[i];
            if (peer != NULL && server_rank_of(sim, peer) >= 0)
                sim_fail(
                    sim,
                    "generation %llu steps although a newer one was sent off with rank %d of it",
                    (unsigned long long)group->generation, peer->rank);
        }
    group->step++;
    group->contributed = 0;
    memset(group->contributions, 0, sizeof group->contributions);
    group->agreed_reform = group->reform;
    group->agreed_leaving = group->all_leaving;
    for (uint32_t i = 0; i < group->world; i++)
        if (group->members[i] != NULL) /* some see the completion late: deaths fall between */
            model_set_timer(sim, group->members[i], 1,
                            sim->trace == NULL && rng_chance(&sim->rng, 50) ? 300 : 20);
}

/* ---- saving together ---- */

void group_part_written(struct sim *sim, struct proc *proc)
{
    struct group *group = proc->group;
    if (!group->saved) {
        if (proc->checkpoint_slot >= 0 && !proc->save_then_quiesce) {
            proc->save_then_quiesce = true; /* its part is written, once */
            group->parts++;
        }
        if (sim->checkpoint >= proc->step || group->writers == 0)
            group->saved = true;
        for (uint32_t i = 0; i < group->world; i++)
            if (!group->saved && group->members[i] != NULL &&
                group->members[i]->checkpoint_slot == 0 &&
                group->members[i]->want_grant != proc->step) {
                group->members[i]->want_grant = proc->step;
                model_report(sim, group->members[i]);
            }
    }
    if (!group->saved)
        return;
    if (proc->step >= sim->profile.steps)
        group->finished = true;
    for (uint32_t i = 0; i < group->world; i++)
        if (group->members[i] != NULL &&
            (group->members[i]->stage == RS_FINISHING || group->members[i]->stage == RS_SAVING))
            model_set_timer(sim, group->members[i], 1, 20);
}

/* From its first step on the generations before it are over. */
void group_went(struct sim *sim, struct group *group)
{
    for (size_t i = 0; i < sim->n_groups && !group->went; i++)
        if (sim->groups[i]->number < group->number && sim->groups[i]->superseded_ms == 0) {
            sim->groups[i]->superseded_ms = sim->now_ms;
            sim->groups[i]->superseded_life = group->server_life;
        }
    group->went = true;
}
