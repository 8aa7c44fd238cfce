/* The plan of a generation: who is in it, with which rank, at which place. Made from the reports
 * alone, in the order of docs/membership.md, "The plan"; from which state it goes on is state.c's
 * choice. */
#include "base/hash.h"
#include "rendezvous/core/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct candidate {
    struct node *node;
    struct rank *rank;
    uint32_t local_rank;
    uint64_t in_generation; /* newest plan with a place for it; 0: none, or only a guest's */
    bool holds;             /* has (its part of) the state, or loads it */
    bool needed;            /* the first that holds some shard of the state */
    bool guest;             /* only hands over: its node leaves, or is beyond the limits */
    bool chosen;
};

struct draft {
    struct candidate *list; /* owned */
    size_t n;
    struct source source;
    bool farewell;
    uint32_t world, nodes; /* chosen, without guests */
};

void dpt_rdzv_plan_fini(struct plan *plan)
{
    free(plan->places);
    free(plan->outcome);
    *plan = (struct plan){0};
}

/* A guest has handed over what it held: the others of its plan are preferred to it. */
static uint64_t in_generation(const struct run *run, const struct rank *rank)
{
    const bool was_guest = dpt_rdzv_rank_is_member(run, rank) &&
                           (uint32_t)rank->plan_rank >= run->plan.world_size - run->plan.guests;
    return was_guest ? 0 : rank->plan_generation;
}

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
            struct rank *rank = &node->ranks[k];
            if (!in[dpt_rdzv_group_of(core, node)] || !dpt_rdzv_has_quiesced(run, rank))
                continue;
            draft->list[draft->n++] =
                (struct candidate){.node = node,
                                   .rank = rank,
                                   .local_rank = k,
                                   .in_generation = in_generation(run, rank),
                                   .holds = dpt_rdzv_has_state(run, &draft->source, rank),
                                   .guest = node->leaving && !draft->farewell};
        }
    return draft->n > 0;
}

/* ---- world and ranks ---- */

/* Order of preference when not all ranks can be in, after those that are needed: ranks that hold
 * state, ranks of the last world, ranks that came first. Guests come last, beyond all limits. */
static int compare_candidates(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->guest != y->guest)
        return x->guest ? 1 : -1;
    if (x->holds != y->holds)
        return x->holds ? -1 : 1;
    if (x->in_generation != y->in_generation)
        return x->in_generation > y->in_generation ? -1 : 1;
    if (x->node->joined != y->node->joined)
        return x->node->joined < y->node->joined ? -1 : 1;
    return x->local_rank < y->local_rank ? -1 : 1;
}

/* Marks, for each shard of a whole state, the first candidate that holds it. The state of a step is
 * the same in every generation, so spares that an earlier one left at this step hold it, too. Then
 * the limits may leave out some holders, and not every choice of holders has a whole state. */
static bool mark_needed(struct dpt_rdzv *core, struct draft *draft)
{
    struct dpt_shard *held =
        dpt_outbox_alloc(&core->out, draft->n * DPT_PROTO_SHARDS_MAX * sizeof held[0]);
    int n = 0;
    if (held == NULL)
        return false;
    for (size_t i = 0; i < draft->n; i++)
        if (draft->list[i].holds)
            n += dpt_rdzv_parts_of(&draft->source, draft->list[i].rank, held + n);
    const int of = dpt_shards_whole(held, n);
    n = 0;
    for (size_t i = 0; i < draft->n; i++) {
        struct candidate *candidate = &draft->list[i];
        if (!candidate->holds)
            continue;
        const int before = n;
        n += dpt_rdzv_parts_of(&draft->source, candidate->rank, held + n);
        for (int k = before; k < n; k++)
            candidate->needed = candidate->needed ||
                                (held[k].of == of && !dpt_shard_is_among(held, before, held[k]));
    }
    return true;
}

static bool node_is_chosen(const struct draft *draft, const struct node *node, bool as_guest)
{
    for (size_t i = 0; i < draft->n; i++)
        if (draft->list[i].chosen && draft->list[i].node == node &&
            (as_guest || !draft->list[i].guest))
            return true;
    return false;
}

/* A needed candidate beyond the limits becomes a guest. A farewell has no guests, and makes no
 * step: it takes needed candidates of any number of nodes. */
static void choose(const struct run *run, struct draft *draft, struct candidate *candidate,
                   struct plan *plan)
{
    const bool fits_node = node_is_chosen(draft, candidate->node, false) ||
                           draft->nodes < run->spec.max_nodes ||
                           (draft->farewell && candidate->needed);
    const bool over = draft->world + plan->guests == DPT_PROTO_WORLD_MAX;
    const bool fits = fits_node && draft->world < run->spec.max_world;
    if (draft->farewell && !candidate->holds)
        return; /* it would have to be given first what it shall save */
    candidate->guest = candidate->guest || (candidate->needed && !fits && !draft->farewell);
    if (over || (candidate->guest ? !candidate->holds : !fits))
        return;
    draft->nodes += !candidate->guest && !node_is_chosen(draft, candidate->node, false);
    plan->n_nodes += !node_is_chosen(draft, candidate->node, true);
    plan->guests += candidate->guest;
    draft->world += !candidate->guest;
    candidate->chosen = true;
}

static bool choose_world(struct dpt_rdzv *core, const struct run *run, struct draft *draft,
                         struct plan *plan)
{
    qsort(draft->list, draft->n, sizeof draft->list[0], compare_candidates);
    if (!mark_needed(core, draft))
        return false;
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < draft->n; i++)
            if (draft->list[i].needed == (pass == 0))
                choose(run, draft, &draft->list[i], plan);
    plan->world_size = draft->world + plan->guests;
    return true;
}

/* Survivors below the new world size keep their rank; the others fill the holes. The list is in
 * order of the newest plan, so that of two who claim a rank the one who was in last keeps it. */
static void seat(struct place *places, uint32_t rank, const struct candidate *candidate)
{
    struct place *place = &places[rank];
    *place = (struct place){.node = candidate->node,
                            .local_rank = candidate->local_rank,
                            .spawn = candidate->rank->spawn,
                            .takes_state = !candidate->holds,
                            .guest = candidate->guest,
                            .checkpoint_slot = -1};
    memcpy(place->shm_addr, candidate->rank->shm_addr, sizeof place->shm_addr);
    memcpy(place->tcp_addr, candidate->rank->tcp_addr, sizeof place->tcp_addr);
}

static void assign_ranks(const struct draft *draft, struct plan *plan)
{
    const uint32_t world = plan->world_size - plan->guests;
    uint32_t hole = 0, guest = world;
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < draft->n; i++) {
            const struct candidate *candidate = &draft->list[i];
            uint32_t old = (uint32_t)candidate->rank->plan_rank;
            if (!candidate->chosen)
                continue;
            if (candidate->guest) {
                if (pass == 0)
                    seat(plan->places, guest++, candidate);
                continue;
            }
            bool keeps = candidate->rank->plan_generation != 0 && old < world &&
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

/* Hosts and nodes by their lowest rank. */
static void number_hosts_and_nodes(struct plan *plan)
{
    uint32_t n_nodes = 0;
    plan->n_hosts = 0;
    for (uint32_t i = 0; i < plan->world_size; i++)
        plan->places[i].host = plan->places[i].node_index = UINT32_MAX;
    for (uint32_t i = 0; i < plan->world_size; i++) {
        struct place *first = &plan->places[i];
        const bool new_host = first->host == UINT32_MAX, new_node = first->node_index == UINT32_MAX;
        for (uint32_t k = i; (new_host || new_node) && k < plan->world_size; k++) {
            struct place *place = &plan->places[k];
            if (new_node && place->node == first->node)
                place->node_index = n_nodes;
            if (new_host && strcmp(place->node->host, first->node->host) == 0)
                place->host = plan->n_hosts;
        }
        plan->n_hosts += new_host;
        n_nodes += new_node;
    }
}

/* Host by host, on a host node by node, in a node by rank; and the guests' after all others'. */
static void assign_positions(struct plan *plan)
{
    uint32_t position = 0;
    number_hosts_and_nodes(plan);
    for (uint32_t host = 0; host < plan->n_hosts; host++)
        for (uint32_t i = 0; i < plan->world_size; i++) {
            const struct place *first = &plan->places[i];
            bool placed = first->host != host || first->guest;
            for (uint32_t k = 0; k < i && !placed; k++)
                placed = plan->places[k].node == first->node && !plan->places[k].guest;
            for (uint32_t k = i; k < plan->world_size && !placed; k++)
                if (plan->places[k].node == first->node && !plan->places[k].guest)
                    plan->places[k].position = position++;
        }
    for (uint32_t i = 0; i < plan->world_size; i++)
        if (plan->places[i].guest)
            plan->places[i].position = position++;
}

/* One writer of metrics a distinct folder; a checkpoint is written by every rank when all see one
 * folder, else by those who see rank 0's. */
static void assign_writers(struct plan *plan)
{
    const char *folder = plan->places[0].node->checkpoint_dir_id;
    for (uint32_t i = 0; i < plan->world_size - plan->guests; i++) {
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

/* One event may bring about plans of several runs: each has a nonce of its own. */
static void make_nonce(const struct dpt_rdzv *core, const struct run *run, struct plan *plan)
{
    struct dpt_hash128 hash = dpt_hash128(core->random, DPT_PROTO_NONCE_BYTES);
    const uint64_t words[2] = {dpt_rdzv_id_hash(run->name), plan->generation};
    hash_in(&hash, words, sizeof words);
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
                         (int64_t)plan->state_generation,
                         plan->guests,
                         plan->from_seed,
                         plan->farewell,
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
                                  place->node_index,
                                  place->takes_state,
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
    const struct rank *from = draft->source.outcome_of;
    bool needed = false;
    for (size_t i = 0; i < draft->n; i++)
        needed = needed || (draft->list[i].chosen && draft->list[i].holds &&
                            draft->list[i].rank->step_applied == draft->source.step - 1);
    if (!needed || from == NULL)
        return true;
    plan->outcome = malloc(from->outcome_bytes);
    if (plan->outcome == NULL) {
        core->out.no_memory = true;
        return false;
    }
    memcpy(plan->outcome, from->outcome, from->outcome_bytes);
    plan->outcome_bytes = from->outcome_bytes;
    return true;
}

/* The node of the lowest rank that has no place in the plan before; NULL: none. */
static const struct node *first_newcomer(const struct run *run, const struct plan *plan)
{
    for (uint32_t i = 0; i < plan->world_size; i++) {
        const struct place *place = &plan->places[i];
        if (!dpt_rdzv_rank_is_member(run, &place->node->ranks[place->local_rank]))
            return place->node;
    }
    return NULL;
}

/* A node that joined has ranks only by the plan. */
static void tell_joined(struct run *run, const struct node *node)
{
    char who[WHO_BYTES];
    if (run->cause.kind != CAUSE_JOINED || node == NULL)
        return;
    dpt_rdzv_who(run, node, who);
    (void)snprintf(run->cause.text, sizeof run->cause.text, "%s joined", who);
}

/* What is lost is said where the generation is explained. */
static void tell_loss(struct dpt_rdzv *core, struct run *run, const struct source *source)
{
    char text[DPT_PROTO_TEXT_BYTES];
    dpt_rdzv_tell_loss(run, source, text);
    if (text[0] == '\0')
        return;
    dpt_outbox_log(&core->out, DPT_LOG_WARN, run->name, run->generation, "%s", text);
    const size_t used = strlen(run->cause.text);
    (void)snprintf(run->cause.text + used, sizeof run->cause.text - used, "; %s", text);
}

static bool fill_plan(struct dpt_rdzv *core, struct run *run, struct draft *draft,
                      struct plan *plan)
{
    const struct source *source = &draft->source;
    if (!choose_world(core, run, draft, plan))
        return false;
    plan->places = calloc(plan->world_size, sizeof plan->places[0]);
    if (plan->places == NULL || !copy_outcome(core, draft, plan)) {
        core->out.no_memory = true;
        return false;
    }
    plan->generation = run->generation;
    plan->in_force = true;
    plan->load_checkpoint = source->load_checkpoint;
    plan->state_generation = source->state_generation;
    plan->steps_done_before = run->steps_done;
    plan->resume_step = source->step > 0 ? source->step : 0;
    plan->from_seed = source->step < 0;
    plan->farewell = draft->farewell;
    assign_ranks(draft, plan);
    for (uint32_t i = 0; plan->from_seed && i < plan->world_size; i++)
        plan->places[i].takes_state = false;
    assign_positions(plan);
    assign_writers(plan);
    make_nonce(core, run, plan);
    make_digest(run, plan);
    return true;
}

static void put_in_force(struct dpt_rdzv *core, struct run *run, struct plan *plan)
{
    const struct node *joined = first_newcomer(run, plan);
    dpt_rdzv_plan_fini(&run->plan);
    run->plan = *plan;
    tell_joined(run, joined);
    for (uint32_t i = 0; i < plan->world_size; i++) {
        struct rank *rank = &plan->places[i].node->ranks[plan->places[i].local_rank];
        rank->plan_generation = plan->generation;
        rank->plan_rank = (int32_t)i;
    }
    run->grant_step = -1;
    run->stepped = run->redundant = false;
    run->step_ms = core->now_ms;
    run->changed = true;
}

bool dpt_rdzv_make_plan(struct dpt_rdzv *core, struct run *run)
{
    bool in[GROUP_COUNT];
    const bool farewell = !dpt_rdzv_admit(core, run, in);
    if (farewell) {
        if (!dpt_rdzv_farewell_is_due(core, run))
            return false;
        in[GROUP_STAYING] = in[GROUP_BENCHED] = in[GROUP_LEAVING] = true;
    }
    struct draft draft = {.source = dpt_rdzv_choose_state(core, run, in), .farewell = farewell};
    struct plan plan = {0};
    bool made = gather(core, run, in, &draft) && fill_plan(core, run, &draft, &plan);
    free(draft.list);
    if (!made) {
        dpt_rdzv_plan_fini(&plan);
        return false;
    }
    put_in_force(core, run, &plan);
    tell_loss(core, run, &draft.source);
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
        const struct rank *rank = &plan.places[i].node->ranks[plan.places[i].local_rank];
        plan.places[i].finished = rank->phase == DPT__RANK_PHASE__RANK_FINISHED;
    }
    run->redundant = dpt_rdzv_is_redundant(core, run);
    run->rebuilding = dpt_rdzv_is_rebuilding(run);
    return true;
}
