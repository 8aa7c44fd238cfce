/* Leases, broken control connections, and a server that hears no node (docs/membership.md,
 * "Losses"). */
#include "rendezvous/core/queries.h"

/* Outsiders prove that the network works only if they send at least this often. */
enum { OUTSIDER_GAP_MS = 1000 };

/* ---- the time in which silence counts ---- */

/* True: for forget_ms the server has heard outsiders and no node. So the network works, and the
 * nodes are gone. Without this rule a run whose nodes are dead would never end (deaf_test.c,
 * test_dead_among_strangers). */
static bool are_nodes_gone(const struct run *run)
{
    const struct hearing *hearing = &run->core->hearing;
    return hearing->outsiders_since_ms >= 0 &&
           run->core->now_ms - hearing->outsiders_since_ms >= run->timing.forget_ms &&
           run->core->now_ms - hearing->outsider_ms <= run->timing.gap_ms;
}

/* True: the server is cut off or starved, and silence proves nothing. Without this rule a server
 * that is cut off for a lease would lose all nodes, though they train on (deaf_test.c,
 * test_deaf_for_long). */
static bool is_deaf(const struct run *run)
{
    return run->core->now_ms - run->core->hearing.heard_ms > run->timing.gap_ms &&
           !are_nodes_gone(run);
}

int64_t dpt_rdzv_listened_ms(const struct run *run)
{
    return run->membership.listened_ms +
           (is_deaf(run) ? run->timing.gap_ms : run->core->now_ms - run->core->hearing.heard_ms);
}

void dpt_rdzv_heard_node(struct run *run, struct node *node)
{
    struct link *link = &node->link;
    for (size_t i = 0; i < run->core->n_runs; i++)
        run->core->runs[i]->membership.listened_ms = dpt_rdzv_listened_ms(run->core->runs[i]);
    run->core->hearing.heard_ms = run->core->now_ms;
    run->core->hearing.outsiders_since_ms = -1;
    if (link->reported_broken)
        dpt_rdzv_log(run, DPT_LOG_INFO, "node %s: control connection is back", node->id);
    link->reported_broken = false;
    link->broken_ms = -1;
    /* A silence longer than gap_ms counts as gap_ms, because during the rest the node may have
     * quiesced or may have been out of reach. */
    const int64_t since_ms = link->heard_ms > run->phase_ms ? link->heard_ms : run->phase_ms;
    const int64_t more_ms = run->core->now_ms - since_ms;
    link->spoken_ms += more_ms < run->timing.gap_ms ? more_ms : run->timing.gap_ms;
    link->heard_ms = run->core->now_ms;
    link->heard_listened_ms = run->membership.listened_ms;
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
    for (size_t i = 0; i < core->n_runs; i++)
        for (size_t k = 0; k < core->runs[i]->n_nodes; k++) {
            struct link *link = &core->runs[i]->nodes[k]->link;
            if (link->conn != conn)
                continue;
            link->conn = 0;
            link->broken_ms = core->now_ms;
            core->runs[i]->membership.lease_floor_ms = 0;
        }
}

/* ---- one node ---- */

int64_t dpt_rdzv_lease_left_ms(const struct node *node)
{
    const int64_t silent_ms = dpt_rdzv_listened_ms(node->run) - node->link.heard_listened_ms;
    return node->run->timing.lease_ms - silent_ms;
}

/* The time at which the grace of a broken connection ends. It does not end before the server has
 * heard a node after the break, because the grace may be shorter than the gap, nor while the server
 * is deaf: then all connections may have broken (deaf_test.c, test_all_break_within_a_gap and
 * test_deaf_after_a_node_died). */
static int64_t grace_end_ms(const struct node *node)
{
    const struct run *run = node->run;
    const int64_t broken_ms = node->link.broken_ms;
    const bool unheard = run->core->hearing.heard_ms <= broken_ms || is_deaf(run);
    if (broken_ms < 0 || (unheard && !dpt_rdzv_has_ended(run)))
        return INT64_MAX;
    return broken_ms + run->timing.grace_ms;
}

bool dpt_rdzv_is_suspect(const struct node *node)
{
    return node->run->core->now_ms >= grace_end_ms(node);
}

const struct place *dpt_rdzv_accused_by(const struct rank *rank)
{
    const struct plan *plan = &rank->node->run->plan;
    if (rank->failed_generation != plan->generation || !dpt_rdzv_rank_is_member(rank) ||
        rank->suspect < 0 || (uint32_t)rank->suspect >= plan->world_size ||
        plan->places[rank->suspect].node == rank->node)
        return NULL;
    return &plan->places[rank->suspect];
}

/* True: the process of the place has quiesced for a later PREPARE, so it has closed its data
 * connections itself. A peer that had not received PREPARE yet accuses it without reason. */
static bool has_left_plan(const struct run *run, const struct place *place)
{
    const struct rank *rank = dpt_rdzv_rank_at(place);
    return rank != NULL && rank->phase == DPT__RANK_PHASE__RANK_QUIESCED &&
           rank->generation > run->plan.generation;
}

bool dpt_rdzv_is_loss_confirmed(const struct node *node)
{
    const struct run *run = node->run;
    struct rank_cursor at = {0};
    if (run->phase == DPT_RDZV_PREPARING && !run->formation.soft && run->formation.after_failure)
        for (const struct rank *rank; (rank = dpt_rdzv_next_rank(run, &at)) != NULL;) {
            const struct place *accused = dpt_rdzv_accused_by(rank);
            if (accused != NULL && accused->node == node && !has_left_plan(run, accused))
                return true;
        }
    return dpt_rdzv_has_ended(run);
}

bool dpt_rdzv_node_is_ready(const struct node *node)
{
    const int64_t since_ms = node->ready_since_ms;
    if (dpt_rdzv_is_suspect(node))
        return false;
    if (since_ms >= 0)
        return node->run->core->now_ms - since_ms >= node->run->timing.timeout_ms;
    /* Here all ranks are alive, or none is. */
    return node->n_ranks > 0 && dpt_rdzv_rank_is_alive(&node->ranks[0]);
}

int64_t dpt_rdzv_silence_due_ms(struct run *run, int64_t latest_ms)
{
    int64_t due_ms = latest_ms, heard_ms = INT64_MAX;
    bool broken = false;
    if (run->membership.lease_floor_ms > latest_ms)
        return latest_ms; /* after most messages no node has to be checked */
    for (size_t i = 0; i < run->n_nodes; i++) {
        const struct node *node = run->nodes[i];
        const struct link *link = &node->link;
        const int64_t lease_ms = run->core->now_ms + dpt_rdzv_lease_left_ms(node) + 1;
        const int64_t grace_ms = grace_end_ms(node);
        due_ms = lease_ms < due_ms ? lease_ms : due_ms;
        if (grace_ms < due_ms && (!link->reported_broken || dpt_rdzv_is_loss_confirmed(node)))
            due_ms = grace_ms;
        heard_ms = link->heard_ms < heard_ms ? link->heard_ms : heard_ms;
        broken = broken || link->broken_ms >= 0;
    }
    run->membership.lease_floor_ms =
        broken || run->n_nodes == 0 ? 0 : heard_ms + run->timing.lease_ms;
    return due_ms;
}
