/* Counters and lists over the nodes of a run. They are kept up to date with each message, so that
 * no message and no TICK has to walk over all nodes. */
#include "rendezvous/core/tally.h"

/* ---- ranks ---- */

/* True: PREPARE waits for a report of the rank (docs/membership.md, "A generation"). A soft
 * preparation also waits for ranks that became ready after PREPARE. */
static bool is_unreported(const struct rank *rank)
{
    const struct run *run = rank->node->run;
    return (rank->asked == run->generation || run->formation.soft) &&
           dpt_rdzv_rank_is_alive(rank) && !dpt_rdzv_has_quiesced(rank);
}

/* A rank goes on to report the last generation that failed for it, also while it runs in a later
 * one. */
static bool has_stopped(const struct rank *rank)
{
    return (rank->failed_generation != 0 && rank->failed_generation >= rank->generation) ||
           rank->phase == DPT__RANK_PHASE__RANK_READY ||
           rank->phase == DPT__RANK_PHASE__RANK_QUIESCED;
}

void dpt_rdzv_count_rank(struct rank *rank, int by)
{
    struct run *run = rank->node->run;
    const bool runs = rank->phase == DPT__RANK_PHASE__RANK_RUNNING;
    if (is_unreported(rank)) {
        rank->node->n_unreported += (uint32_t)by;
        run->membership.n_unreported += (uint32_t)by;
    }
    run->membership.n_stopped += has_stopped(rank) ? (uint32_t)by : 0;
    if (!dpt_rdzv_rank_is_member(rank)) {
        run->membership.n_outside += dpt_rdzv_rank_is_alive(rank) ? by : 0;
        run->membership.n_foreign += runs ? by : 0;
        return;
    }
    struct place *accused = dpt_rdzv_accused_by(rank);
    if (accused != NULL)
        accused->n_accusers += (uint32_t)by;
    run->plan.n_running += runs ? by : 0;
    run->plan.n_busy += rank->busy ? by : 0;
    run->plan.n_rebuilding += rank->rebuilding ? by : 0;
    if (rank->phase == DPT__RANK_PHASE__RANK_READY && rank->generation == run->plan.generation)
        run->plan.n_ready += by;
}

void dpt_rdzv_count_all_ranks(struct run *run)
{
    struct plan *plan = &run->plan;
    struct rank_cursor at = {0};
    run->membership.n_outside = run->membership.n_foreign = 0;
    run->membership.n_unreported = run->membership.n_stopped = 0;
    plan->n_ready = plan->n_running = plan->n_busy = plan->n_rebuilding = 0;
    for (uint32_t i = 0; i < plan->world_size; i++)
        plan->places[i].n_accusers = 0;
    for (size_t i = 0; i < run->n_nodes; i++)
        run->nodes[i]->n_unreported = 0;
    run->progress.unsaved_known = false; /* a rank that has quiesced has done so in a generation */
    for (struct rank *rank; (rank = dpt_rdzv_next_rank(run, &at)) != NULL;)
        dpt_rdzv_count_rank(rank, 1);
}

/* ---- readiness ---- */

static void set_readiness(struct node *node, enum readiness readiness)
{
    struct membership *membership = &node->run->membership;
    membership->n_ready[node->readiness]--;
    membership->n_ready[readiness]++;
    node->readiness = readiness;
    if (readiness == READY_SOME &&
        (membership->n_ready[READY_SOME] == 1 || node->ready_since_ms < membership->some_since_ms))
        membership->some_since_ms = node->ready_since_ms;
}

void dpt_rdzv_note_readiness(struct node *node)
{
    uint32_t alive = 0;
    for (uint32_t i = 0; i < node->n_ranks; i++)
        alive += dpt_rdzv_rank_is_alive(&node->ranks[i]);
    const bool some = alive > 0 && alive < node->n_ranks;
    if (!some)
        node->ready_since_ms = -1;
    else if (node->ready_since_ms < 0)
        node->ready_since_ms = node->run->core->now_ms;
    if (!some)
        set_readiness(node, alive > 0 ? READY_ALL : READY_NONE);
    else if (node->readiness != READY_LATE)
        set_readiness(node, READY_SOME);
}

void dpt_rdzv_note_late_nodes(struct run *run)
{
    struct membership *membership = &run->membership;
    const int64_t late_ms = run->core->now_ms - run->timing.timeout_ms;
    if (membership->n_ready[READY_SOME] == 0 || membership->some_since_ms > late_ms)
        return;
    membership->some_since_ms = INT64_MAX;
    for (size_t i = 0; i < run->n_nodes; i++) {
        struct node *node = run->nodes[i];
        if (node->readiness != READY_SOME)
            continue;
        if (node->ready_since_ms <= late_ms)
            set_readiness(node, READY_LATE);
        else if (node->ready_since_ms < membership->some_since_ms)
            membership->some_since_ms = node->ready_since_ms;
    }
}

void dpt_rdzv_forget_late_nodes(struct run *run)
{
    for (size_t i = 0; i < run->n_nodes; i++)
        if (run->nodes[i]->readiness == READY_LATE)
            set_readiness(run->nodes[i], READY_SOME);
}

/* ---- lists ---- */

static bool is_listed(const struct node *node, enum node_list list)
{
    return node->hooks[list].before != NULL || node->run->membership.lists[list].first == node;
}

void dpt_rdzv_list_remove(struct node *node, enum node_list list)
{
    struct node_hook *hook = &node->hooks[list];
    struct node_ends *ends = &node->run->membership.lists[list];
    if (!is_listed(node, list))
        return;
    *(hook->before != NULL ? &hook->before->hooks[list].after : &ends->first) = hook->after;
    *(hook->after != NULL ? &hook->after->hooks[list].before : &ends->last) = hook->before;
    *hook = (struct node_hook){0};
}

void dpt_rdzv_list_last(struct node *node, enum node_list list)
{
    struct node_ends *ends = &node->run->membership.lists[list];
    dpt_rdzv_list_remove(node, list);
    node->hooks[list].before = ends->last;
    *(ends->last != NULL ? &ends->last->hooks[list].after : &ends->first) = node;
    ends->last = node;
}

/* ---- connections ---- */

void dpt_rdzv_set_conn(struct node *node, uint64_t conn)
{
    struct dpt_rdzv *core = node->run->core;
    if (node->link.conn == conn)
        return;
    if (node->link.conn != 0)
        dpt_rdzv_index_remove(&core->conns, node->link.conn, node);
    node->link.conn = conn;
    node->link.answered_ms = -1;
    if (conn != 0 && !dpt_rdzv_index_add(&core->conns, conn, node))
        core->out.no_memory = true;
}
