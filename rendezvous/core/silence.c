/* Leases, broken control connections and the deaf server (docs/membership.md, "Who is lost"). */
#include "rendezvous/core/silence.h"

enum { OUTSIDER_GAP_MS = 1000 }; /* an outsider that speaks less often proves nothing */

/* ---- a deaf server ---- */

/* Outsiders have been heard for so long, and no node, that the nodes are gone rather than cut off.
 * Without this a run whose nodes all died would keep its name for ever. */
static bool are_nodes_gone(const struct dpt_rdzv *core, const struct run *run)
{
    const struct hearing *hearing = &core->hearing;
    return hearing->outsiders_since_ms >= 0 &&
           core->now_ms - hearing->outsiders_since_ms >= run->timing.forget_ms &&
           core->now_ms - hearing->outsider_ms <= run->timing.gap_ms;
}

bool dpt_rdzv_is_deaf(const struct dpt_rdzv *core, const struct run *run)
{
    return core->now_ms - core->hearing.heard_ms > run->timing.gap_ms && !are_nodes_gone(core, run);
}

/* The node has as much time to be heard again as the server was deaf; in all at most a lease. */
static void extend_lease(const struct dpt_rdzv *core, const struct run *run, struct link *link,
                         int64_t deaf_ms)
{
    const int64_t room_ms = run->timing.lease_ms - link->forgiven_ms;
    const int64_t more_ms = deaf_ms < room_ms ? deaf_ms : room_ms;
    if (more_ms <= 0)
        return;
    link->forgiven_ms += more_ms;
    link->extended_ms = core->now_ms + more_ms;
    if (link->broken_ms >= 0)
        link->broken_ms = core->now_ms;
}

/* The server hears again: what was not heard meanwhile, steps included, says nothing. */
static void end_deafness(struct dpt_rdzv *core)
{
    const int64_t deaf_ms = core->now_ms - core->hearing.heard_ms;
    for (size_t i = 0; i < core->n_runs; i++) {
        struct run *run = core->runs[i];
        if (!dpt_rdzv_is_deaf(core, run))
            continue;
        run->progress.step_ms += deaf_ms;
        for (size_t k = 0; k < run->n_nodes; k++)
            extend_lease(core, run, &run->nodes[k]->link, deaf_ms);
    }
    core->hearing.heard_ms = core->now_ms;
    core->hearing.outsiders_since_ms = -1;
}

void dpt_rdzv_heard_node(struct dpt_rdzv *core, const struct run *run, struct node *node)
{
    struct link *link = &node->link;
    end_deafness(core);
    if (link->reported_broken)
        dpt_rdzv_log(core, run, DPT_LOG_INFO, "node %s: control connection is back", node->id);
    link->reported_broken = false;
    link->broken_ms = -1;
    /* A longer silence counts for a gap: the node may have quiesced, or not been reached, in it. */
    const int64_t since_ms = link->heard_ms > run->phase_ms ? link->heard_ms : run->phase_ms;
    const int64_t more_ms = core->now_ms - since_ms;
    link->spoken_ms += more_ms < run->timing.gap_ms ? more_ms : run->timing.gap_ms;
    link->heard_ms = core->now_ms;
    link->extended_ms = link->forgiven_ms = 0;
}

void dpt_rdzv_heard_outsider(struct dpt_rdzv *core)
{
    struct hearing *hearing = &core->hearing;
    if (hearing->outsiders_since_ms < 0 || core->now_ms - hearing->outsider_ms > OUTSIDER_GAP_MS)
        hearing->outsiders_since_ms = core->now_ms;
    hearing->outsider_ms = core->now_ms;
}

void dpt_rdzv_connection_broke(struct dpt_rdzv *core, uint64_t conn)
{
    int64_t heard_ms = INT64_MIN, broken_ms = core->hearing.heard_ms;
    for (size_t i = 0; i < core->n_runs; i++)
        for (size_t k = 0; k < core->runs[i]->n_nodes; k++) {
            struct link *link = &core->runs[i]->nodes[k]->link;
            if (link->conn == conn) {
                link->conn = 0;
                link->broken_ms = core->now_ms;
                core->runs[i]->membership.lease_floor_ms = 0;
            }
            if (link->conn != 0 && link->heard_ms > heard_ms)
                heard_ms = link->heard_ms;
            if (link->broken_ms >= 0 && link->broken_ms < broken_ms)
                broken_ms = link->broken_ms;
        }
    core->hearing.heard_ms = heard_ms > INT64_MIN ? heard_ms : broken_ms;
}

/* ---- one node ---- */

int64_t dpt_rdzv_lease_end_ms(const struct dpt_rdzv *core, const struct run *run,
                              const struct node *node)
{
    if (dpt_rdzv_is_deaf(core, run))
        return INT64_MAX - 1;
    const int64_t end_ms = node->link.heard_ms + run->timing.lease_ms;
    return end_ms > node->link.extended_ms ? end_ms : node->link.extended_ms;
}

/* Until somebody is heard after the connection broke, all connections may have broken. */
static int64_t grace_end_ms(const struct dpt_rdzv *core, const struct run *run,
                            const struct node *node)
{
    const int64_t broken_ms = node->link.broken_ms;
    const bool unheard = core->hearing.heard_ms <= broken_ms || dpt_rdzv_is_deaf(core, run);
    if (broken_ms < 0 || (unheard && !dpt_rdzv_has_ended(run)))
        return INT64_MAX;
    return broken_ms + run->timing.grace_ms;
}

bool dpt_rdzv_is_suspect(const struct dpt_rdzv *core, const struct run *run,
                         const struct node *node)
{
    return core->now_ms >= grace_end_ms(core, run, node);
}

/* The process of this place has quiesced for a later PREPARE and has closed its data connections
 * itself: a peer that had not heard PREPARE names it without reason. */
static bool has_left_plan(const struct run *run, const struct place *place)
{
    const struct rank *rank = dpt_rdzv_rank_at(place);
    return rank != NULL && rank->phase == DPT__RANK_PHASE__RANK_QUIESCED &&
           rank->generation > run->plan.generation;
}

bool dpt_rdzv_is_named_by_peer(const struct run *run, const struct node *node)
{
    const struct plan *plan = &run->plan;
    const bool failed =
        run->phase == DPT_RDZV_PREPARING && !run->formation.soft && run->formation.after_failure;
    if (dpt_rdzv_has_ended(run) || !failed || !dpt_rdzv_node_is_member(run, node))
        return dpt_rdzv_has_ended(run);
    struct rank_cursor at = {0};
    for (const struct rank *rank; (rank = dpt_rdzv_next_rank(run, &at)) != NULL;)
        if (rank->node != node && rank->failed_generation == plan->generation &&
            dpt_rdzv_rank_is_member(run, rank) && rank->suspect >= 0 &&
            (uint32_t)rank->suspect < plan->world_size &&
            plan->places[rank->suspect].node == node &&
            !has_left_plan(run, &plan->places[rank->suspect]))
            return true;
    return false;
}

bool dpt_rdzv_node_is_ready(const struct dpt_rdzv *core, const struct run *run, struct node *node)
{
    uint32_t alive = 0;
    if (dpt_rdzv_is_suspect(core, run, node))
        return false;
    for (uint32_t i = 0; i < node->n_ranks; i++)
        alive += dpt_rdzv_rank_is_alive(&node->ranks[i]);
    if (alive == 0 || alive == node->n_ranks) {
        node->ready_since_ms = -1;
        return alive > 0;
    }
    if (node->ready_since_ms < 0)
        node->ready_since_ms = core->now_ms;
    return core->now_ms - node->ready_since_ms >= run->timing.timeout_ms;
}

int64_t dpt_rdzv_silence_due_ms(const struct dpt_rdzv *core, struct run *run, int64_t latest_ms)
{
    int64_t due_ms = latest_ms, heard_ms = INT64_MAX;
    bool broken = false;
    if (run->membership.lease_floor_ms > latest_ms)
        return latest_ms; /* most heartbeats: no node need be looked at */
    for (size_t i = 0; i < run->n_nodes; i++) {
        const struct node *node = run->nodes[i];
        const int64_t lease_ms = dpt_rdzv_lease_end_ms(core, run, node) + 1;
        const int64_t grace_ms = node->link.reported_broken && !dpt_rdzv_is_named_by_peer(run, node)
                                     ? INT64_MAX
                                     : grace_end_ms(core, run, node);
        due_ms = lease_ms < due_ms ? lease_ms : due_ms;
        due_ms = grace_ms < due_ms ? grace_ms : due_ms;
        heard_ms = node->link.heard_ms < heard_ms ? node->link.heard_ms : heard_ms;
        broken = broken || node->link.broken_ms >= 0;
    }
    run->membership.lease_floor_ms =
        broken || run->n_nodes == 0 ? 0 : heard_ms + run->timing.lease_ms;
    return due_ms;
}
