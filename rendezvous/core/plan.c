/* The plan of a generation: who is in it, with which rank, at which place, and from which state it
 * goes on. Made from the reports alone, in the order of docs/membership.md, "The plan". */
#include "base/hash.h"
#include "rendezvous/core/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct candidate {
    struct node *node;
    struct rank *rank;
    uint32_t local_rank;
    bool holds; /* can stand at the resume step by itself */
    bool chosen;
};

struct draft {
    struct candidate *list; /* owned */
    size_t n;
    int64_t resume_step;           /* of memory; -1: nobody holds state */
    int64_t load_checkpoint;       /* -1: memory wins */
    const struct rank *outcome_of; /* who has the outcome of resume_step; NULL: nobody told it */
    const struct run *run;
};

void dpt_rdzv_plan_fini(struct plan *plan)
{
    free(plan->places);
    free(plan->outcome);
    *plan = (struct plan){0};
}

/* ---- who could be in ---- */

/* The step a rank can stand at by itself: it applies an outcome it has. */
static int64_t reach(const struct rank *rank)
{
    if (rank->step_applied < 0)
        return -1;
    return rank->outcome_step > rank->step_applied ? rank->outcome_step : rank->step_applied;
}

enum group { GROUP_STAYING, GROUP_BENCHED, GROUP_LEAVING, GROUP_COUNT };

static enum group group_of(const struct dpt_rdzv *core, const struct node *node)
{
    return node->leaving                     ? GROUP_LEAVING
           : dpt_rdzv_is_benched(core, node) ? GROUP_BENCHED
                                             : GROUP_STAYING;
}

struct census {
    uint32_t nodes[GROUP_COUNT];
    int64_t reach[GROUP_COUNT];
    int64_t checkpoint[GROUP_COUNT];
};

static struct census take_census(const struct dpt_rdzv *core, const struct run *run)
{
    struct census census = {.reach = {-1, -1, -1}, .checkpoint = {-1, -1, -1}};
    for (size_t i = 0; i < run->n_nodes; i++) {
        const struct node *node = run->nodes[i];
        enum group group = group_of(core, node);
        bool any = false;
        for (uint32_t k = 0; k < node->n_ranks; k++) {
            const struct rank *rank = &node->ranks[k];
            if (!dpt_rdzv_has_quiesced(run, rank))
                continue;
            any = true;
            if (reach(rank) > census.reach[group])
                census.reach[group] = reach(rank);
            if (rank->checkpoint_step > census.checkpoint[group])
                census.checkpoint[group] = rank->checkpoint_step;
        }
        census.nodes[group] += any;
    }
    return census;
}

/* Has the gradients of the step after step_applied: it was sent off with those who ran last. */
static bool keeps_gradients(const struct run *run, const struct rank *rank)
{
    return rank->step_applied >= 0 && run->run_generation != 0 &&
           rank->run_generation == run->run_generation;
}

/* Somebody who stays can be brought to `step` by being handed its outcome. */
static bool outcome_suffices(const struct dpt_rdzv *core, const struct run *run, int64_t step)
{
    bool told = false, taken = false;
    for (size_t i = 0; i < run->n_nodes; i++)
        for (uint32_t k = 0; k < run->nodes[i]->n_ranks; k++) {
            const struct rank *rank = &run->nodes[i]->ranks[k];
            if (!dpt_rdzv_has_quiesced(run, rank))
                continue;
            told = told || (rank->outcome_step == step && rank->outcome_bytes > 0);
            taken = taken || (group_of(core, run->nodes[i]) == GROUP_STAYING &&
                              rank->step_applied == step - 1 && keeps_gradients(run, rank));
        }
    return told && taken;
}

/* Which groups are admitted. The benched and the leaving come in again when only they hold what
 * the others lack: state is never given up for them. False: too few nodes. */
static bool admit(const struct dpt_rdzv *core, const struct run *run, bool ret_in[GROUP_COUNT])
{
    struct census census = take_census(core, run);
    ret_in[GROUP_STAYING] = true;
    ret_in[GROUP_BENCHED] = census.nodes[GROUP_STAYING] < dpt_rdzv_min_nodes(run) ||
                            census.reach[GROUP_BENCHED] > census.reach[GROUP_STAYING];
    uint32_t nodes = census.nodes[GROUP_STAYING];
    int64_t best = census.reach[GROUP_STAYING], checkpoint = census.checkpoint[GROUP_STAYING];
    if (ret_in[GROUP_BENCHED]) {
        nodes += census.nodes[GROUP_BENCHED];
        if (census.reach[GROUP_BENCHED] > best)
            best = census.reach[GROUP_BENCHED];
        if (census.checkpoint[GROUP_BENCHED] > checkpoint)
            checkpoint = census.checkpoint[GROUP_BENCHED];
    }
    int64_t theirs = census.reach[GROUP_LEAVING];
    ret_in[GROUP_LEAVING] =
        theirs > best && theirs > checkpoint && !outcome_suffices(core, run, theirs);
    return nodes > 0 && nodes >= dpt_rdzv_min_nodes(run);
}

/* ---- from which state ---- */

static bool gather(struct dpt_rdzv *core, const struct run *run, const bool in[GROUP_COUNT],
                   struct draft *draft)
{
    size_t max = 0;
    for (size_t i = 0; i < run->n_nodes; i++)
        max += run->nodes[i]->n_ranks;
    draft->list = calloc(max + 1, sizeof draft->list[0]);
    if (draft->list == NULL) {
        core->out.no_memory = true;
        return false;
    }
    for (size_t i = 0; i < run->n_nodes; i++)
        for (uint32_t k = 0; k < run->nodes[i]->n_ranks; k++) {
            struct node *node = run->nodes[i];
            if (in[group_of(core, node)] && dpt_rdzv_has_quiesced(run, &node->ranks[k]))
                draft->list[draft->n++] =
                    (struct candidate){.node = node, .rank = &node->ranks[k], .local_rank = k};
        }
    return draft->n > 0;
}

/* Stands at the resume step by itself: has applied it, or has what it takes to apply it. */
static bool holds(const struct draft *draft, const struct rank *rank)
{
    if (draft->resume_step < 0 || rank->step_applied < 0)
        return false;
    return reach(rank) == draft->resume_step ||
           (rank->step_applied == draft->resume_step - 1 && draft->outcome_of != NULL &&
            keeps_gradients(draft->run, rank));
}

/* The highest step that anybody has applied or has the outcome of; the reports of those
 * who leave count. Memory wins against a checkpoint that is not newer. */
static void choose_state(const struct run *run, struct draft *draft)
{
    int64_t checkpoint = -1;
    for (size_t i = 0; i < draft->n; i++) {
        const struct rank *rank = draft->list[i].rank;
        if (reach(rank) > draft->resume_step)
            draft->resume_step = reach(rank);
        if (rank->checkpoint_step > checkpoint)
            checkpoint = rank->checkpoint_step;
    }
    for (size_t i = 0; i < run->n_nodes; i++)
        for (uint32_t k = 0; k < run->nodes[i]->n_ranks; k++) {
            const struct rank *rank = &run->nodes[i]->ranks[k];
            if (!dpt_rdzv_has_quiesced(run, rank) || rank->outcome_bytes == 0)
                continue;
            bool ahead = rank->outcome_step == draft->resume_step + 1;
            for (size_t j = 0; ahead && j < draft->n; j++)
                if (draft->list[j].rank->step_applied == draft->resume_step &&
                    keeps_gradients(run, draft->list[j].rank)) {
                    draft->resume_step++;
                    break;
                }
            if (rank->outcome_step == draft->resume_step)
                draft->outcome_of = rank;
        }
    if (checkpoint > draft->resume_step) {
        draft->load_checkpoint = draft->resume_step = checkpoint;
        draft->outcome_of = NULL;
        for (size_t i = 0; i < draft->n; i++)
            draft->list[i].holds = draft->list[i].rank->checkpoint_step == checkpoint;
        return;
    }
    for (size_t i = 0; i < draft->n; i++)
        draft->list[i].holds = holds(draft, draft->list[i].rank);
}

/* ---- world and ranks ---- */

/* Who is preferred when not all can be in: who holds state, who was in, who came first. */
static int compare_candidates(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->holds != y->holds)
        return x->holds ? -1 : 1;
    if (x->rank->plan_generation != y->rank->plan_generation)
        return x->rank->plan_generation > y->rank->plan_generation ? -1 : 1;
    if (x->node->joined != y->node->joined)
        return x->node->joined < y->node->joined ? -1 : 1;
    return x->local_rank < y->local_rank ? -1 : 1;
}

static bool node_is_chosen(const struct draft *draft, const struct node *node)
{
    for (size_t i = 0; i < draft->n; i++)
        if (draft->list[i].chosen && draft->list[i].node == node)
            return true;
    return false;
}

static uint32_t choose_world(const struct run *run, struct draft *draft, uint32_t *ret_nodes)
{
    uint32_t world = 0, nodes = 0;
    qsort(draft->list, draft->n, sizeof draft->list[0], compare_candidates);
    for (size_t i = 0; i < draft->n && world < run->spec.max_world; i++) {
        bool known = node_is_chosen(draft, draft->list[i].node);
        if (!known && nodes == run->spec.max_nodes)
            continue;
        nodes += !known;
        draft->list[i].chosen = true;
        world++;
    }
    *ret_nodes = nodes;
    return world;
}

/* Survivors below the new world size keep their rank; the others fill the holes. The list is in
 * order of the newest plan, so that of two who claim a rank the one who was in last keeps it. */
static void seat(struct place *places, uint32_t rank, const struct candidate *candidate)
{
    struct place *place = &places[rank];
    *place = (struct place){.node = candidate->node,
                            .local_rank = candidate->local_rank,
                            .spawn = candidate->rank->spawn,
                            .heal_from = candidate->holds ? -1 : 0,
                            .checkpoint_slot = -1};
    memcpy(place->shm_addr, candidate->rank->shm_addr, sizeof place->shm_addr);
    memcpy(place->tcp_addr, candidate->rank->tcp_addr, sizeof place->tcp_addr);
}

static void assign_ranks(const struct draft *draft, struct plan *plan)
{
    uint32_t hole = 0;
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < draft->n; i++) {
            const struct candidate *candidate = &draft->list[i];
            uint32_t old = (uint32_t)candidate->rank->plan_rank;
            if (!candidate->chosen)
                continue;
            bool keeps = candidate->rank->plan_generation != 0 && old < plan->world_size &&
                         (plan->places[old].node == NULL ||
                          (plan->places[old].node == candidate->node &&
                           plan->places[old].local_rank == candidate->local_rank));
            if (pass == 0 && keeps) {
                seat(plan->places, old, candidate);
            } else if (pass == 1 && !keeps) {
                while (plan->places[hole].node != NULL)
                    hole++;
                seat(plan->places, hole, candidate);
            }
        }
}

/* Hosts by their lowest rank; positions host by host, inside a host by rank. */
static void assign_positions(struct plan *plan)
{
    uint32_t position = 0;
    plan->n_hosts = 0;
    for (uint32_t i = 0; i < plan->world_size; i++)
        plan->places[i].host = UINT32_MAX;
    for (uint32_t i = 0; i < plan->world_size; i++) {
        if (plan->places[i].host != UINT32_MAX)
            continue;
        for (uint32_t k = i; k < plan->world_size; k++) {
            if (strcmp(plan->places[k].node->host, plan->places[i].node->host) != 0)
                continue;
            plan->places[k].host = plan->n_hosts;
            plan->places[k].position = position++;
        }
        plan->n_hosts++;
    }
}

/* Who lacks the state (marked by seat) takes it from a holder: of its own host if there is one,
 * spread evenly. */
static void assign_healing(struct plan *plan, bool anybody_holds)
{
    int32_t holders[DPT_PROTO_WORLD_MAX], near[DPT_PROTO_WORLD_MAX];
    uint32_t n_holders = 0, turn = 0;
    for (uint32_t i = 0; i < plan->world_size; i++)
        if (plan->places[i].heal_from < 0)
            holders[n_holders++] = (int32_t)i;
    for (uint32_t i = 0; i < plan->world_size; i++) {
        struct place *place = &plan->places[i];
        if (place->heal_from < 0)
            continue;
        if (!anybody_holds) {
            place->heal_from = -1; /* all begin from the seed */
            continue;
        }
        uint32_t n_near = 0;
        for (uint32_t k = 0; k < n_holders; k++)
            if (plan->places[holders[k]].host == place->host)
                near[n_near++] = holders[k];
        place->heal_from = n_near > 0 ? near[turn % n_near] : holders[turn % n_holders];
        turn++;
    }
}

/* One writer of metrics a distinct folder; a checkpoint is written by every rank when all see one
 * folder, else by those who see rank 0's. */
static void assign_writers(struct plan *plan)
{
    const char *folder = plan->places[0].node->checkpoint_dir_id;
    for (uint32_t i = 0; i < plan->world_size; i++) {
        const struct node *node = plan->places[i].node;
        bool first = node->log_dir_id[0] != '\0';
        for (uint32_t k = 0; first && k < i; k++)
            first = strcmp(plan->places[k].node->log_dir_id, node->log_dir_id) != 0;
        plan->places[i].writes_log = first;
        if (folder[0] != '\0' && strcmp(node->checkpoint_dir_id, folder) == 0)
            plan->places[i].checkpoint_slot = (int32_t)plan->checkpoint_writers++;
    }
}

/* ---- the whole ---- */

static void hash_in(struct dpt_hash128 *hash, const void *data, size_t bytes)
{
    struct dpt_hash128 parts[2] = {*hash, dpt_hash128(data, bytes)};
    *hash = dpt_hash128(parts, sizeof parts);
}

static void make_nonce(const struct dpt_rdzv *core, const struct run *run, struct plan *plan)
{
    uint64_t words[4] = {core->seed, core->epoch, dpt_rdzv_id_hash(run->name), plan->generation};
    struct dpt_hash128 hash = dpt_hash128(words, sizeof words);
    memcpy(plan->nonce, &hash, sizeof plan->nonce);
}

/* Over everything that all must agree on, so that equal digests are equal plans. */
static void make_digest(const struct run *run, struct plan *plan)
{
    struct dpt_hash128 hash = dpt_hash128(plan->nonce, sizeof plan->nonce);
    int64_t numbers[] = {(int64_t)plan->generation,
                         plan->world_size,
                         plan->n_nodes,
                         plan->n_hosts,
                         plan->resume_step,
                         plan->load_checkpoint,
                         plan->checkpoint_writers,
                         plan->steps_done_before,
                         (int64_t)run->cause.kind};
    hash_in(&hash, numbers, sizeof numbers);
    if (plan->outcome != NULL)
        hash_in(&hash, plan->outcome, plan->outcome_bytes);
    for (uint32_t i = 0; i < plan->world_size; i++) {
        const struct place *place = &plan->places[i];
        int64_t seat_numbers[] = {i,
                                  place->local_rank,
                                  place->spawn,
                                  place->position,
                                  place->host,
                                  place->heal_from,
                                  place->checkpoint_slot,
                                  place->writes_log,
                                  (int64_t)place->node->incarnation};
        hash_in(&hash, seat_numbers, sizeof seat_numbers);
        hash_in(&hash, place->node->id, strlen(place->node->id));
        hash_in(&hash, place->shm_addr, strlen(place->shm_addr));
        hash_in(&hash, place->tcp_addr, strlen(place->tcp_addr));
    }
    dpt_hash128_hex(hash, plan->digest);
}

/* The outcome travels only when somebody needs it. */
static bool copy_outcome(struct dpt_rdzv *core, const struct draft *draft, struct plan *plan)
{
    bool needed = false;
    for (size_t i = 0; i < draft->n; i++)
        needed = needed || (draft->list[i].chosen && draft->list[i].holds &&
                            draft->list[i].rank->step_applied == draft->resume_step - 1);
    if (!needed || draft->load_checkpoint >= 0 || draft->outcome_of == NULL)
        return true;
    plan->outcome = malloc(draft->outcome_of->outcome_bytes);
    if (plan->outcome == NULL) {
        core->out.no_memory = true;
        return false;
    }
    memcpy(plan->outcome, draft->outcome_of->outcome, draft->outcome_of->outcome_bytes);
    plan->outcome_bytes = draft->outcome_of->outcome_bytes;
    return true;
}

static bool fill_plan(struct dpt_rdzv *core, struct run *run, struct draft *draft,
                      struct plan *plan)
{
    choose_state(run, draft);
    plan->world_size = choose_world(run, draft, &plan->n_nodes);
    plan->places = calloc(plan->world_size, sizeof plan->places[0]);
    if (plan->places == NULL || !copy_outcome(core, draft, plan)) {
        core->out.no_memory = true;
        return false;
    }
    plan->generation = run->generation;
    plan->in_force = true;
    plan->load_checkpoint = draft->load_checkpoint;
    plan->steps_done_before = run->steps_done;
    plan->resume_step = draft->resume_step > 0 ? draft->resume_step : 0;
    assign_ranks(draft, plan);
    assign_positions(plan);
    assign_healing(plan, draft->resume_step >= 0);
    assign_writers(plan);
    make_nonce(core, run, plan);
    make_digest(run, plan);
    return true;
}

static void put_in_force(struct dpt_rdzv *core, struct run *run, struct plan *plan)
{
    dpt_rdzv_plan_fini(&run->plan);
    run->plan = *plan;
    for (uint32_t i = 0; i < plan->world_size; i++) {
        struct rank *rank = &plan->places[i].node->ranks[plan->places[i].local_rank];
        rank->plan_generation = plan->generation;
        rank->plan_rank = (int32_t)i;
    }
    run->grant_step = -1;
    run->stepped = false;
    run->step_ms = core->now_ms;
    run->changed = true;
}

bool dpt_rdzv_make_plan(struct dpt_rdzv *core, struct run *run)
{
    bool in[GROUP_COUNT];
    if (!admit(core, run, in))
        return false;
    struct draft draft = {.resume_step = -1, .load_checkpoint = -1, .run = run};
    struct plan plan = {0};
    bool made = gather(core, run, in, &draft) && fill_plan(core, run, &draft, &plan);
    free(draft.list);
    if (!made) {
        dpt_rdzv_plan_fini(&plan);
        return false;
    }
    put_in_force(core, run, &plan);
    run->step = plan.resume_step;
    return true;
}

bool dpt_rdzv_adopt_plan(struct dpt_rdzv *core, struct run *run, uint64_t generation,
                         const char *digest, uint32_t world_size)
{
    if (world_size == 0 || world_size > DPT_PROTO_WORLD_MAX)
        return false;
    struct plan plan = {.generation = generation,
                        .in_force = true,
                        .adopted = true,
                        .world_size = world_size,
                        .load_checkpoint = -1,
                        .places = calloc(world_size, sizeof plan.places[0])};
    if (plan.places == NULL) {
        core->out.no_memory = true;
        return false;
    }
    uint32_t found = 0;
    for (size_t i = 0; i < run->n_nodes; i++) {
        struct node *node = run->nodes[i];
        uint32_t before = found;
        for (uint32_t k = 0; k < node->n_ranks; k++) {
            const struct rank *rank = &node->ranks[k];
            bool runs = rank->phase == DPT__RANK_PHASE__RANK_RUNNING ||
                        rank->phase == DPT__RANK_PHASE__RANK_FINISHED;
            if (!runs || rank->generation != generation || strcmp(node->plan_digest, digest) != 0 ||
                rank->told_rank < 0 || (uint32_t)rank->told_rank >= world_size ||
                plan.places[rank->told_rank].node != NULL)
                continue;
            plan.places[rank->told_rank] =
                (struct place){.node = node, .local_rank = k, .spawn = rank->spawn};
            found++;
        }
        plan.n_nodes += found > before;
    }
    if (found < world_size) {
        dpt_rdzv_plan_fini(&plan);
        return false;
    }
    memcpy(plan.digest, digest, strlen(digest) + 1);
    run->generation = generation;
    run->run_generation = generation;
    run->cause = dpt_rdzv_cause(CAUSE_SERVER_RESTART, 0, "adopted from an earlier server");
    put_in_force(core, run, &plan);
    for (uint32_t i = 0; i < world_size; i++) {
        struct rank *rank = &plan.places[i].node->ranks[plan.places[i].local_rank];
        rank->run_generation = generation;
        plan.places[i].finished = rank->phase == DPT__RANK_PHASE__RANK_FINISHED;
    }
    return true;
}
