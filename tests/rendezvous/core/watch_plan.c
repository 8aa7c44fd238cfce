/* The watch's checks on plans: their members and their form. */
#include "rendezvous/proto/links.h"
#include "tests/rendezvous/core/watch_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Finds the members: asks the core for the rank of each process that ever reported. UINT32_MAX: two
 * processes have one rank. */
static uint32_t find_members(const struct watch *watch, struct seen_run *run,
                             const struct dpt_rdzv *core, bool *ret_kept)
{
    uint32_t found = 0;
    for (size_t i = 0; i < watch->n_nodes; i++) {
        const struct seen_node *node = &watch->nodes[i];
        if (strcmp(node->run, run->name) != 0)
            continue;
        *ret_kept = *ret_kept && node->n_procs <= PROCS_MAX;
        for (size_t k = 0; k < node->n_procs && k < PROCS_MAX; k++) {
            const struct seen_proc *proc = &node->procs[k];
            const struct dpt_rdzv_process process = {.run = run->name,
                                                     .node = node->id,
                                                     .incarnation = proc->incarnation,
                                                     .local_rank = proc->local,
                                                     .spawn = proc->spawn};
            const int rank = dpt_rdzv_rank_of(core, &process);
            if (rank < 0)
                continue;
            if ((uint32_t)rank >= run->n_members || run->members[rank].incarnation != 0)
                return UINT32_MAX;
            run->members[rank] =
                (struct member){.node = i,
                                .incarnation = proc->incarnation,
                                .local = proc->local,
                                .spawn = proc->spawn,
                                .finished = proc->finished == run->plan_generation};
            found++;
        }
    }
    return found;
}

void watch_members(struct watch *watch, struct seen_run *run, const struct dpt_rdzv *core,
                   const struct dpt_rdzv_run_view *view)
{
    bool kept = true;
    memcpy(run->digest, view->plan_digest, sizeof run->digest);
    /* One that was adopted may be re-formed in the same step. */
    uint64_t generation =
        view->phase == DPT_RDZV_PREPARING ? view->generation - 1 : view->generation;
    if (generation <= run->plan_generation)
        watch_broken(watch, "run %s: generation %llu has a second plan", run->name,
                     (unsigned long long)generation);
    run->plan_generation = generation;
    free(run->members);
    run->n_members = view->world_size;
    run->members = calloc(view->world_size + 1, sizeof run->members[0]);
    DPT_ASSERT(run->members != NULL);
    uint32_t found = find_members(watch, run, core, &kept);
    if (found == UINT32_MAX)
        watch_broken(watch, "run %s: two processes have one rank, or one none", run->name);
    else if (found != view->world_size && kept)
        watch_broken(watch, "run %s: %u of %u ranks of generation %llu are processes that spoke",
                     run->name, found, view->world_size, (unsigned long long)view->generation);
}

/* ---- the plan as it is sent ---- */

static bool take(uint64_t *seen, uint32_t at)
{
    bool fresh = (seen[at / 64] >> (at % 64) & 1) == 0;
    seen[at / 64] |= (uint64_t)1 << (at % 64);
    return fresh;
}

/* The ranks of a rack have adjacent positions, and so have those of a host in it and of a node. */
static void check_runs(struct watch *watch, const Dpt__Plan *plan)
{
    const Dpt__PlanRank *at[DPT_MESH_MAX]; /* by position */
    uint64_t racks[DPT_MESH_MAX / 64] = {0}, hosts[DPT_MESH_MAX / 64] = {0};
    uint64_t nodes[DPT_MESH_MAX / 64] = {0};
    const uint32_t world = plan->world_size - plan->handover_ranks;
    for (uint32_t i = 0; i < world; i++)
        at[plan->ranks[i]->position] = plan->ranks[i];
    for (uint32_t i = 0; i < world; i++) {
        const bool rack = i == 0 || at[i]->rack != at[i - 1]->rack;
        const bool host = i == 0 || at[i]->host != at[i - 1]->host;
        const bool node = i == 0 || at[i]->node != at[i - 1]->node;
        if (at[i]->rack >= plan->n_hosts || (rack && !host) || (host && !node) ||
            (rack && !take(racks, at[i]->rack)) || (host && !take(hosts, at[i]->host)) ||
            (node && !take(nodes, at[i]->node)))
            watch_broken(watch, "rank %u at position %u: rack %u, host %u, node %u are no runs",
                         at[i]->rank, i, at[i]->rack, at[i]->host, at[i]->node);
    }
}

static void check_seats(struct watch *watch, const Dpt__Plan *plan)
{
    uint64_t positions[DPT_MESH_MAX / 64] = {0}, slots[DPT_MESH_MAX / 64] = {0};
    uint64_t hosts[DPT_MESH_MAX / 64] = {0};
    uint32_t n_slots = 0, n_hosts = 0, n_take = 0;
    const uint32_t world = plan->world_size - plan->handover_ranks;
    if (plan->handover_ranks >= plan->world_size || plan->n_ranks != plan->world_size ||
        !dpt_links_are_mesh(plan->world_size)) {
        watch_broken(watch, "a plan of %u ranks lists %zu", plan->world_size, plan->n_ranks);
        return;
    }
    for (uint32_t i = 0; i < plan->world_size; i++) {
        const Dpt__PlanRank *rank = plan->ranks[i];
        if (rank->rank != i || rank->position >= plan->world_size || rank->host >= plan->n_hosts ||
            rank->node >= plan->n_nodes || (i < world) != (rank->position < world) ||
            !take(positions, rank->position)) {
            watch_broken(watch, "ranks or positions of generation %llu are not dense",
                         (unsigned long long)plan->generation);
            return;
        }
        n_hosts += take(hosts, rank->host);
        if (rank->checkpoint_slot >= 0) {
            n_slots++;
            if ((uint32_t)rank->checkpoint_slot >= plan->checkpoint_writers ||
                !take(slots, (uint32_t)rank->checkpoint_slot))
                watch_broken(watch, "rank %u has checkpoint slot %d of %u", i,
                             rank->checkpoint_slot, plan->checkpoint_writers);
        }
        n_take += rank->takes_state ? 1 : 0;
        if (rank->takes_state && i >= world)
            watch_broken(watch, "handover rank %u has nothing to hand over", i);
    }
    if (n_take == plan->world_size)
        watch_broken(watch, "all %u ranks of generation %llu take state, and nobody has it", n_take,
                     (unsigned long long)plan->generation);
    check_runs(watch, plan);
    if (n_slots != plan->checkpoint_writers || n_hosts != plan->n_hosts)
        watch_broken(watch, "%u of %u checkpoint slots, %u of %u hosts", n_slots,
                     plan->checkpoint_writers, n_hosts, plan->n_hosts);
}

static struct seat seat_of(const Dpt__PlanRank *rank)
{
    return (struct seat){.known = true,
                         .position = rank->position,
                         .rack = rank->rack,
                         .host = rank->host,
                         .node = rank->node,
                         .takes_state = rank->takes_state,
                         .checkpoint_slot = rank->checkpoint_slot,
                         .writes_log = rank->writes_log};
}

static bool same_seat(const struct seat *a, const struct seat *b)
{
    return a->position == b->position && a->rack == b->rack && a->host == b->host &&
           a->node == b->node && a->takes_state == b->takes_state &&
           a->checkpoint_slot == b->checkpoint_slot && a->writes_log == b->writes_log;
}

static void note_nonce(struct watch *watch, const Dpt__Plan *plan)
{
    struct seen_nonce nonce;
    DPT_ASSERT(plan->nonce.len == sizeof nonce.bytes);
    memcpy(nonce.bytes, plan->nonce.data, sizeof nonce.bytes);
    for (size_t i = 0; i < watch->n_nonces; i++)
        if (memcmp(&watch->nonces[i], &nonce, sizeof nonce) == 0)
            watch_broken(watch, "the nonce of generation %llu was another plan's",
                         (unsigned long long)plan->generation);
    if (watch->n_nonces == watch->nonces_max) {
        watch->nonces_max = watch->nonces_max == 0 ? 16 : 2 * watch->nonces_max;
        watch->nonces = realloc(watch->nonces, watch->nonces_max * sizeof nonce);
        DPT_ASSERT(watch->nonces != NULL);
    }
    watch->nonces[watch->n_nonces++] = nonce;
}

/* Every node gets the same plan. */
static void check_alike(struct watch *watch, struct seen_run *run, const Dpt__Plan *plan)
{
    const int64_t numbers[11] = {
        plan->world_size,        plan->n_nodes,         plan->n_hosts,
        plan->resume_step,       plan->load_checkpoint, plan->checkpoint_writers,
        plan->steps_done_before, plan->handover_ranks,  (int64_t)plan->state_generation,
        plan->from_seed,         plan->final_save};
    if (plan->generation != run->sent_generation) {
        note_nonce(watch, plan);
        run->sent_generation = plan->generation;
        (void)snprintf(run->sent_digest, sizeof run->sent_digest, "%s", plan->digest);
        memcpy(run->sent_numbers, numbers, sizeof numbers);
        free(run->seats);
        run->n_seats = plan->world_size;
        run->seats = calloc(plan->world_size + 1, sizeof run->seats[0]);
        DPT_ASSERT(run->seats != NULL);
    }
    bool alike = strcmp(plan->digest, run->sent_digest) == 0 &&
                 memcmp(numbers, run->sent_numbers, sizeof numbers) == 0 &&
                 run->n_seats == plan->world_size;
    for (size_t i = 0; alike && i < plan->n_ranks; i++) {
        if (plan->ranks[i]->rank >= plan->world_size) {
            watch_broken(watch, "a plan of %u ranks lists rank %u", plan->world_size,
                         plan->ranks[i]->rank);
            return;
        }
        struct seat seat = seat_of(plan->ranks[i]), *seen = &run->seats[plan->ranks[i]->rank];
        alike = !seen->known || same_seat(&seat, seen);
        *seen = seat;
    }
    if (!alike)
        watch_broken(watch, "two plans of generation %llu", (unsigned long long)plan->generation);
}

/* The ranks of the receiver are its processes that are members. */
static void check_own(struct watch *watch, const struct seen_run *run, const struct dpt_rdzv *core,
                      const Dpt__Stamp *stamp, const Dpt__Plan *plan)
{
    if (strcmp(run->view.plan_digest, plan->digest) != 0)
        watch_broken(watch, "a plan that is not in force is sent to node %s", stamp->node);
    for (size_t i = 0; i < plan->n_ranks; i++) {
        const Dpt__PlanRank *own = plan->ranks[i];
        const struct dpt_rdzv_process process = {.run = stamp->run,
                                                 .node = stamp->node,
                                                 .incarnation = stamp->incarnation,
                                                 .local_rank = (uint32_t)own->local_rank,
                                                 .spawn = own->spawn};
        if (own->local_rank >= 0 && dpt_rdzv_rank_of(core, &process) != (int)own->rank)
            watch_broken(watch, "node %s is told that its process %d (spawn %u) is rank %u",
                         stamp->node, own->local_rank, own->spawn, own->rank);
    }
}

/* The plan as its receiver decodes it: the server writes some fields as encoded bytes. Owned. */
static Dpt__Plan *decode_plan(const Dpt__Plan *sent)
{
    const size_t bytes = dpt__plan__get_packed_size(sent);
    uint8_t *packed = malloc(bytes + 1);
    DPT_ASSERT(packed != NULL);
    (void)dpt__plan__pack(sent, packed);
    Dpt__Plan *plan = dpt__plan__unpack(NULL, bytes, packed);
    free(packed);
    return plan;
}

void watch_plan(struct watch *watch, struct seen_run *run, const struct dpt_rdzv *core,
                const Dpt__ServerState *message)
{
    Dpt__Plan *plan = decode_plan(message->plan);
    if (plan == NULL) {
        watch_broken(watch, "no agent can decode the plan of node %s", message->stamp->node);
        return;
    }
    if (plan->generation != message->stamp->generation)
        watch_broken(watch, "a plan of generation %llu in a message of %llu",
                     (unsigned long long)plan->generation,
                     (unsigned long long)message->stamp->generation);
    if (dpt_links_are_mesh(plan->world_size))
        check_seats(watch, plan);
    if (watch->broken[0] == '\0') {
        check_alike(watch, run, plan);
        check_own(watch, run, core, message->stamp, plan);
    }
    dpt__plan__free_unpacked(plan, NULL);
}
