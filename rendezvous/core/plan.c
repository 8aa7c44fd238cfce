/* Makes a plan: chooses the world and its state, assigns ranks. */
#include "rendezvous/core/advance.h"

#include "base/hash.h"
#include "rendezvous/core/queries.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A rank that may be in the world. */
struct candidate {
    struct rank *rank;
    size_t node_at;         /* index of its node in run->nodes */
    uint64_t in_generation; /* newest plan with a place for it; 0: none, or it only handed over
                               there */
    bool holds;             /* has its part of the state, or loads it */
    bool needed;            /* the first candidate that holds one of the shards of the state */
    bool only_hands_over;   /* its node leaves, or the limits leave it out */
    bool chosen;
};

enum { TAKES_PART = 1, TRAINS = 2 };

struct draft {
    struct candidate *list; /* (n) in order of preference; owned */
    size_t n;
    uint8_t *nodes_chosen; /* (run->n_nodes) bits: a rank of the node is chosen, and not as a
                              handover rank; memory of the outbox */
    struct resume resume;
    bool final_save;
    bool lacks_room;       /* no plan has room for the state and a rank that takes it */
    uint32_t world, nodes; /* chosen, without handover ranks */
};

/* ---- the world ---- */

/* The newest plan with a place for the rank; 0: none. 0 also for a handover rank of the present
 * plan: a handover rank has handed its part over, so the other ranks of that plan are preferred. */
static uint64_t newest_place(const struct run *run, const struct rank *rank)
{
    const bool has_handed_over =
        dpt_rdzv_rank_is_member(rank) &&
        (uint32_t)rank->plan_rank >= run->plan.world_size - run->plan.handover_ranks;
    return has_handed_over ? 0 : rank->plan_generation;
}

/* False: there are no candidates, or no memory. */
static bool list_candidates(const struct run *run, unsigned groups, struct draft *draft)
{
    draft->list = calloc(dpt_rdzv_count_ranks(run) + 1, sizeof draft->list[0]);
    draft->nodes_chosen = dpt_outbox_alloc(&run->core->out, run->n_nodes + 1);
    if (draft->list == NULL || draft->nodes_chosen == NULL) {
        run->core->out.no_memory = true;
        return false;
    }
    struct rank_cursor at = {0};
    for (struct rank *rank; (rank = dpt_rdzv_next_reported(run, groups, &at)) != NULL;)
        draft->list[draft->n++] =
            (struct candidate){.rank = rank,
                               .node_at = at.node,
                               .in_generation = newest_place(run, rank),
                               .holds = dpt_rdzv_has_state(run, &draft->resume, rank),
                               .only_hands_over = rank->node->leaving && !draft->final_save};
    return draft->n > 0;
}

/* The order of preference among equally needed ranks: ranks that hold state first, then ranks of a
 * newer plan, then ranks that joined earlier. Handover ranks come last. */
static int compare_candidates(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->only_hands_over != y->only_hands_over)
        return x->only_hands_over ? 1 : -1;
    if (x->holds != y->holds)
        return x->holds ? -1 : 1;
    if (x->in_generation != y->in_generation)
        return x->in_generation > y->in_generation ? -1 : 1;
    if (x->rank->node->joined != y->rank->node->joined)
        return x->rank->node->joined < y->rank->node->joined ? -1 : 1;
    return x->rank < y->rank ? -1 : 1; /* ranks of one node are in one array */
}

/* Marks, for each shard of a whole state, the first candidate that holds the shard. The limits may
 * leave out some holders, and not every choice of holders has a whole state. */
static bool mark_needed(struct dpt_rdzv *core, struct draft *draft)
{
    struct dpt_shard *held =
        dpt_outbox_alloc(&core->out, draft->n * DPT_PROTO_SHARDS_MAX * sizeof held[0]);
    int n = 0;
    if (held == NULL)
        return false;
    for (size_t i = 0; i < draft->n; i++)
        if (draft->list[i].holds)
            n += dpt_rdzv_parts_of(&draft->resume, draft->list[i].rank, held + n);
    const int of = dpt_shards_whole(held, n);
    bool *found = dpt_outbox_alloc(&core->out, (size_t)of + 1); /* by index of the shard */
    if (found == NULL)
        return false;
    for (size_t i = 0; i < draft->n; i++) {
        struct candidate *candidate = &draft->list[i];
        n = candidate->holds ? dpt_rdzv_parts_of(&draft->resume, candidate->rank, held) : 0;
        for (int k = 0; k < n; k++)
            if (held[k].of == of && !found[held[k].index])
                candidate->needed = found[held[k].index] = true;
    }
    return true;
}

/* Ranks of the largest plan, handover ranks included: they make no mesh larger than a mesh is. */
static uint32_t plan_max(const struct run *run)
{
    return run->spec.max_world <= DPT_MESH_MAX ? (uint32_t)DPT_MESH_MAX : DPT_PROTO_WORLD_MAX;
}

/* Chooses the candidate if it fits into the world. A needed candidate beyond the limits, also the
 * server's, becomes a handover rank. A final save has no handover ranks and makes no step. So it
 * takes all needed candidates, and no candidate that would first have to get the state. */
static void choose_candidate(const struct run *run, struct draft *draft,
                             struct candidate *candidate, struct plan *plan)
{
    uint8_t *chosen = &draft->nodes_chosen[candidate->node_at];
    const bool saves = draft->final_save && candidate->needed;
    const bool fits_node = (*chosen & TRAINS) != 0 || draft->nodes < run->spec.max_nodes || saves;
    const bool full = draft->world + plan->handover_ranks == plan_max(run);
    const bool fits =
        fits_node && draft->world < (saves ? run->spec.max_world : dpt_rdzv_world_max(run));
    if (draft->final_save && !candidate->holds)
        return;
    candidate->only_hands_over =
        candidate->only_hands_over || (candidate->needed && !fits && !draft->final_save);
    if (full || (candidate->only_hands_over ? !candidate->holds : !fits))
        return;
    draft->nodes += !candidate->only_hands_over && (*chosen & TRAINS) == 0;
    plan->n_nodes += *chosen == 0;
    plan->handover_ranks += candidate->only_hands_over;
    draft->world += !candidate->only_hands_over;
    *chosen |= candidate->only_hands_over ? TAKES_PART : TAKES_PART | TRAINS;
    candidate->chosen = true;
}

/* True: the plan has a rank that trains or saves, and every part of the state. */
static bool is_world_whole(const struct run *run, const struct draft *draft)
{
    uint32_t needed = 0, missing = draft->world == 0;
    for (size_t i = 0; i < draft->n; i++) {
        needed += draft->list[i].needed;
        missing += draft->list[i].needed && !draft->list[i].chosen;
    }
    if (missing > 0)
        dpt_rdzv_log(run, DPT_LOG_WARN,
                     "%u ranks hold the state that generation %llu needs, and a plan of at most "
                     "%u has no room for them and a rank that takes it: nodes that leave save it, "
                     "or the others wait",
                     needed, (unsigned long long)run->generation, plan_max(run));
    return missing == 0;
}

static bool choose_world(const struct run *run, struct draft *draft, struct plan *plan)
{
    qsort(draft->list, draft->n, sizeof draft->list[0], compare_candidates);
    if (!mark_needed(run->core, draft))
        return false;
    for (int needed = 1; needed >= 0; needed--)
        for (size_t i = 0; i < draft->n; i++)
            if (draft->list[i].needed == needed)
                choose_candidate(run, draft, &draft->list[i], plan);
    plan->world_size = draft->world + plan->handover_ranks;
    draft->lacks_room = !is_world_whole(run, draft);
    return !draft->lacks_room;
}

/* ---- ranks ---- */

static void fill_place(struct place *place, const struct candidate *candidate)
{
    const struct rank *rank = candidate->rank;
    *place = (struct place){.node = rank->node,
                            .local_rank = (uint32_t)(rank - rank->node->ranks),
                            .spawn = rank->spawn,
                            .takes_state = !candidate->holds,
                            .only_hands_over = candidate->only_hands_over,
                            .checkpoint_slot = -1};
    memcpy(place->shm_addr, rank->shm_addr, sizeof place->shm_addr);
    memcpy(place->tcp_addr, rank->tcp_addr, sizeof place->tcp_addr);
}

/* Ranks of the last plan keep their number if it is below the world size. The other ranks get the
 * numbers that are left. If two candidates had the same number, the preferred one
 * (compare_candidates) keeps it. */
static void assign_ranks(const struct draft *draft, struct plan *plan)
{
    const uint32_t world = plan->world_size - plan->handover_ranks;
    uint32_t hole = 0, handover = world;
    for (int keeps = 1; keeps >= 0; keeps--)
        for (size_t i = 0; i < draft->n; i++) {
            const struct candidate *candidate = &draft->list[i];
            const struct rank *rank = candidate->rank;
            const uint32_t old = (uint32_t)rank->plan_rank;
            if (!candidate->chosen || (candidate->only_hands_over && !keeps))
                continue;
            if (candidate->only_hands_over) {
                fill_place(&plan->places[handover++], candidate);
                continue;
            }
            const struct place *wanted =
                rank->plan_generation != 0 && old < world ? &plan->places[old] : NULL;
            const bool is_kept =
                wanted != NULL && (wanted->node == NULL || dpt_rdzv_rank_at(wanted) == rank);
            if (is_kept != keeps)
                continue;
            while (!keeps && plan->places[hole].node != NULL)
                hole++;
            fill_place(&plan->places[keeps ? old : hole], candidate);
        }
}

/* ---- nonce, digest, outcome ---- */

static void add_to_hash(struct dpt_hash128 *hash, const void *data, size_t bytes)
{
    struct dpt_hash128 parts[2] = {*hash, dpt_hash128(data, bytes)};
    *hash = dpt_hash128(parts, sizeof parts);
}

/* One event may cause plans of several runs, so the nonce also depends on the run. */
static void fill_plan_nonce(const struct run *run, struct plan *plan)
{
    struct dpt_hash128 hash = dpt_hash128(run->core->random, DPT_PROTO_NONCE_BYTES);
    const uint64_t words[2] = {dpt_rdzv_id_hash(run->name), plan->generation};
    add_to_hash(&hash, words, sizeof words);
    memcpy(plan->nonce, &hash, sizeof plan->nonce);
}

static struct dpt_hash128 add_place_to_hash(struct dpt_hash128 hash, const struct place *place)
{
    const char *const texts[] = {place->node->id, place->shm_addr, place->tcp_addr};
    const uint64_t numbers[] = {place->node->incarnation,
                                place->local_rank,
                                place->spawn,
                                place->position,
                                place->host,
                                place->node_index,
                                place->takes_state,
                                place->writes_log,
                                (uint64_t)place->checkpoint_slot,
                                place->rack};
    hash = dpt_hash128_join(hash, dpt_hash128(numbers, sizeof numbers));
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        hash = dpt_hash128_join(hash, dpt_hash128(texts[i], strlen(texts[i])));
    return hash;
}

/* The digest covers everything that all ranks must agree on, so equal digests are equal plans. */
static void fill_plan_digest(const struct run *run, struct plan *plan)
{
    char text[DPT_PROTO_TEXT_BYTES];
    struct dpt_hash128 hash = dpt_hash128(plan->nonce, sizeof plan->nonce);
    int bytes =
        snprintf(text, sizeof text, "%llu %u %u %u %u %u %lld %lld %lld %llu %d %d %d",
                 (unsigned long long)plan->generation, plan->world_size, plan->n_nodes,
                 plan->n_hosts, plan->checkpoint_writers, plan->handover_ranks,
                 (long long)plan->resume_step, (long long)plan->load_checkpoint,
                 (long long)plan->steps_done_before, (unsigned long long)plan->state_generation,
                 plan->from_seed, plan->final_save, (int)run->formation.cause.kind);
    add_to_hash(&hash, text, (size_t)bytes);
    if (plan->outcome != NULL)
        add_to_hash(&hash, plan->outcome, plan->outcome_bytes);
    for (uint32_t i = 0; i < plan->world_size; i++)
        hash = add_place_to_hash(hash, &plan->places[i]);
    dpt_hash128_hex(hash, plan->digest);
}

/* Copies the outcome into the plan if a rank needs it. False: no memory. */
static bool copy_outcome_to_plan(const struct draft *draft, struct plan *plan)
{
    const struct rank *from = draft->resume.outcome_of;
    bool needed = false;
    for (size_t i = 0; i < draft->n; i++)
        needed = needed || (draft->list[i].chosen && draft->list[i].holds &&
                            draft->list[i].rank->step_applied == draft->resume.step - 1);
    if (!needed || from == NULL)
        return true;
    plan->outcome_bytes = from->outcome->n_bytes;
    plan->outcome = malloc(plan->outcome_bytes);
    if (plan->outcome == NULL)
        return false;
    memcpy(plan->outcome, from->outcome->bytes, plan->outcome_bytes);
    return true;
}

/* ---- causes ---- */

/* Names in the cause the first node that had no place in the plan before, with its new ranks. */
static void name_joined_node(struct run *run, const struct plan *plan)
{
    char node_text[NODE_TEXT_BYTES];
    for (uint32_t i = 0; i < plan->world_size && run->formation.cause.kind == CAUSE_JOINED; i++) {
        const struct place *place = &plan->places[i];
        if (dpt_rdzv_rank_is_member(&place->node->ranks[place->local_rank]))
            continue;
        dpt_rdzv_print_node(plan, place->node, node_text);
        (void)snprintf(run->formation.cause.text, sizeof run->formation.cause.text, "%s joined",
                       node_text);
        return;
    }
}

/* Adds the lost steps to the cause of the generation. */
static void add_lost_steps(struct run *run, const struct resume *resume)
{
    char text[DPT_PROTO_TEXT_BYTES], *cause = run->formation.cause.text;
    dpt_rdzv_print_loss(run, resume, text);
    if (text[0] == '\0')
        return;
    dpt_rdzv_log(run, DPT_LOG_WARN, "%s", text);
    const size_t used = strlen(cause);
    (void)snprintf(cause + used, sizeof run->formation.cause.text - used, "; %s", text);
}

/* The newest checkpoint may be in the folder of a machine that is not here, and the run goes on
 * from an older one: also a run that was started again under its name. */
static void warn_of_newer_checkpoint(const struct run *run, const struct resume *resume)
{
    const struct progress *progress = &run->progress;
    const struct forgotten_run *earlier = dpt_rdzv_find_forgotten(run->core, run->name);
    const bool in_memory = resume->step > 0 && resume->load_checkpoint < 0;
    int64_t saved_step = progress->saved_step;
    const char *node = progress->saved_node, *host = progress->saved_host;
    if (earlier != NULL && earlier->saved_step > saved_step) {
        saved_step = earlier->saved_step;
        node = earlier->saved_node;
        host = earlier->saved_host;
    }
    if (in_memory || saved_step <= 0 || resume->step >= saved_step)
        return;
    dpt_rdzv_log(run, DPT_LOG_WARN,
                 "the run goes on from step %lld, below its saved step %lld%s%s%s%s: no folder "
                 "here has that checkpoint. To use it, stop the run and start it with that node, "
                 "or copy the folder",
                 (long long)(resume->step > 0 ? resume->step : 0), (long long)saved_step,
                 node[0] != '\0' ? " of node " : "", node, host[0] != '\0' ? " on host " : "",
                 host);
}

/* ---- the plan ---- */

static bool fill_plan(const struct run *run, struct draft *draft, struct plan *plan)
{
    const struct resume *resume = &draft->resume;
    if (!choose_world(run, draft, plan))
        return false;
    /* By a plan without handover ranks the ranks train. */
    if (dpt_rdzv_is_held(run) && !draft->final_save && plan->handover_ranks == 0)
        return false;
    plan->places = calloc(plan->world_size, sizeof plan->places[0]);
    if (plan->places == NULL || !copy_outcome_to_plan(draft, plan)) {
        run->core->out.no_memory = true;
        return false;
    }
    plan->generation = run->generation;
    plan->in_force = true;
    plan->load_checkpoint = resume->load_checkpoint;
    plan->state_generation = resume->state_generation;
    plan->steps_done_before = run->progress.steps_done;
    plan->resume_step = resume->step > 0 ? resume->step : 0;
    plan->from_seed = resume->step < 0;
    plan->final_save = draft->final_save;
    assign_ranks(draft, plan);
    for (uint32_t i = 0; plan->from_seed && i < plan->world_size; i++)
        plan->places[i].takes_state = false;
    if (!dpt_rdzv_arrange_places(run->core, plan))
        return false;
    fill_plan_nonce(run, plan);
    fill_plan_digest(run, plan);
    return true;
}

/* Makes the plan of the nodes of these groups. False: there is none. */
static bool draft_plan(const struct run *run, unsigned groups, struct draft *draft,
                       struct plan *ret)
{
    *ret = (struct plan){0};
    draft->resume = dpt_rdzv_choose_state(run, groups);
    const bool made = list_candidates(run, groups, draft) && fill_plan(run, draft, ret);
    free(draft->list);
    draft->list = NULL;
    if (!made)
        dpt_rdzv_plan_fini(ret);
    return made;
}

bool dpt_rdzv_make_plan(struct run *run)
{
    const bool waits = dpt_rdzv_is_held(run) && !dpt_rdzv_handover_is_due(run);
    const unsigned groups = waits ? 0 : dpt_rdzv_admitted_groups(run);
    struct draft draft = {0};
    struct plan plan;
    bool made = groups != 0 && draft_plan(run, groups, &draft, &plan);
    if (!made && dpt_rdzv_final_save_is_due(run)) {
        draft = (struct draft){.final_save = true};
        made = draft_plan(run, GROUP_ALL, &draft, &plan);
    }
    if (!made) {
        if (draft.lacks_room) /* the next generation begins at once, and may lack it, too */
            run->formation.plan_after_ms = run->core->now_ms + run->timing.lease_ms;
        return false;
    }
    name_joined_node(run, &plan);
    dpt_rdzv_put_in_force(run, &plan);
    add_lost_steps(run, &draft.resume);
    warn_of_newer_checkpoint(run, &draft.resume);
    run->progress.step = plan.resume_step;
    return true;
}
