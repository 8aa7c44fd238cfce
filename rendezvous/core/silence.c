/* Leases, broken control connections, and a server that hears no node (docs/membership.md,
 * "Losses"). */
#include "rendezvous/core/queries.h"
#include "rendezvous/core/tally.h"

#include <stdio.h>

/* Outsiders prove that the network works only if they send at least this often. */
enum { OUTSIDER_GAP_MS = 1000 };

/* ---- the time in which silence counts ---- */

/* True: for forget_ms the server has heard outsiders and no node. So the network works, and the
 * nodes are gone. Without this rule a run whose nodes are dead would never end
 * (hears_no_node_test.c, test_dead_among_strangers). */
static bool are_nodes_gone(const struct run *run)
{
    const struct hearing *hearing = &run->core->hearing;
    return hearing->outsiders_since_ms >= 0 &&
           run->core->now_ms - hearing->outsiders_since_ms >= run->timing.forget_ms &&
           run->core->now_ms - hearing->outsider_ms <= run->timing.gap_ms;
}

/* True: the server receives from no node, because it is cut off or starved. Silence then proves
 * nothing. Without this rule a server
 * that is cut off for a lease would lose all nodes, though they train on (hears_no_node_test.c,
 * test_hears_no_node_for_long). */
static bool hears_no_node(const struct run *run)
{
    return run->core->now_ms - run->core->hearing.heard_ms > run->timing.gap_ms &&
           !are_nodes_gone(run);
}

int64_t dpt_rdzv_beat_ms(const struct run *run)
{
    return dpt_timing_beat_ms(&run->timing, run->core->n_nodes, run->core->pace.overload);
}

int64_t dpt_rdzv_listened_ms(const struct run *run)
{
    return run->membership.listened_ms + (hears_no_node(run)
                                              ? run->timing.gap_ms
                                              : run->core->now_ms - run->core->hearing.heard_ms);
}

void dpt_rdzv_heard_node(struct run *run, struct node *node)
{
    struct link *link = &node->link;
    for (size_t i = 0; i < run->core->n_runs; i++)
        run->core->runs[i]->membership.listened_ms = dpt_rdzv_listened_ms(run->core->runs[i]);
    if (run->core->hearing.told_none)
        dpt_rdzv_log(run, DPT_LOG_INFO, "node %s is heard, the first for %.1f s", node->id,
                     (double)(run->core->now_ms - run->core->hearing.heard_ms) / 1000);
    run->core->hearing.told_none = false;
    run->core->hearing.heard_ms = run->core->now_ms;
    run->core->hearing.outsiders_since_ms = -1;
    if (link->reported_broken)
        dpt_rdzv_log(run, DPT_LOG_INFO, "node %s: control connection is back", node->id);
    link->reported_broken = link->denied = false;
    link->broken_ms = -1;
    dpt_rdzv_list_remove(node, LIST_BROKEN);
    dpt_rdzv_list_remove(node, LIST_DENIED);
    /* A silence longer than most_ms counts as most_ms, because during the rest the node may have
     * quiesced or may have been out of reach. */
    const int64_t beat_ms = dpt_rdzv_beat_ms(run);
    const int64_t most_ms =
        beat_ms * 3 / 2 > run->timing.gap_ms ? beat_ms * 3 / 2 : run->timing.gap_ms;
    const int64_t since_ms = link->heard_ms > run->phase_ms ? link->heard_ms : run->phase_ms;
    const int64_t more_ms = run->core->now_ms - since_ms;
    link->spoken_ms += more_ms < most_ms ? more_ms : most_ms;
    link->heard_ms = run->core->now_ms;
    link->heard_listened_ms = run->membership.listened_ms;
    dpt_rdzv_list_last(node, LIST_QUIET);
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
    for (struct node *node; (node = dpt_rdzv_index_find(&core->conns, conn)) != NULL;) {
        dpt_rdzv_set_conn(node, 0);
        node->link.broken_ms = core->now_ms;
        dpt_rdzv_list_last(node, LIST_BROKEN);
    }
}

/* ---- no node of a run is heard ---- */

int64_t dpt_rdzv_heard_ms_ago(const struct run *run)
{
    const struct node *latest = run->membership.lists[LIST_QUIET].last;
    return latest == NULL ? -1 : run->core->now_ms - latest->link.heard_ms;
}

bool dpt_rdzv_is_unheard(const struct run *run)
{
    return dpt_rdzv_heard_ms_ago(run) > run->timing.lease_ms && !dpt_rdzv_has_ended(run);
}

/* Nothing follows from this silence (hears_no_node), so without the line nobody would learn that
 * all nodes may be dead. */
void dpt_rdzv_tell_unheard(const struct run *run)
{
    struct dpt_rdzv *core = run->core;
    const int64_t silent_ms = core->now_ms - core->hearing.heard_ms;
    char text[DPT_PROTO_TEXT_BYTES];
    if (core->hearing.told_none || silent_ms <= run->timing.lease_ms || !dpt_rdzv_is_unheard(run))
        return;
    core->hearing.told_none = true;
    (void)snprintf(
        text, sizeof text,
        "no node is heard for %.1f s: this server is cut off, or all nodes are gone. For that "
        "alone none is judged lost. Look at the machines and at the network of this server; if the "
        "nodes are gone, start workers: once one is heard, silent nodes are lost after a lease",
        (double)silent_ms / 1000);
    dpt_outbox_log(&core->out,
                   (struct dpt_rdzv_log_line){.level = DPT_LOG_WARN, .run = "", .text = text});
}

/* ---- one node ---- */

/* A denied node is not silent: the server refuses it. So its lease ends although the server hears
 * no other node. */
int64_t dpt_rdzv_lease_left_ms(const struct node *node)
{
    const struct link *link = &node->link;
    const int64_t silent_ms = link->denied
                                  ? node->run->core->now_ms - link->heard_ms
                                  : dpt_rdzv_listened_ms(node->run) - link->heard_listened_ms;
    return node->run->timing.lease_ms - silent_ms;
}

/* The time at which the grace of a broken connection ends. It does not end before the server has
 * heard a node after the break, because the grace may be shorter than the gap, nor while the server
 * receives from no node: then all connections may have broken (hears_no_node_test.c,
 * test_all_break_within_a_gap and test_hears_no_node_after_a_node_died). */
static int64_t grace_end_ms(const struct node *node)
{
    const struct run *run = node->run;
    const int64_t broken_ms = node->link.broken_ms;
    const bool unheard = run->core->hearing.heard_ms <= broken_ms || hears_no_node(run);
    if (broken_ms < 0 || (unheard && !dpt_rdzv_has_ended(run)))
        return INT64_MAX;
    return broken_ms + run->timing.grace_ms;
}

bool dpt_rdzv_is_suspect(const struct node *node)
{
    return node->run->core->now_ms >= grace_end_ms(node);
}

/* True: a member accuses the rank of the place. The accusation does not count if that rank has
 * quiesced for a later PREPARE, so it has closed its data connections itself. A peer that had not
 * received PREPARE yet accuses it without reason. */
static bool is_accused(const struct run *run, const struct place *place)
{
    const struct rank *rank = dpt_rdzv_rank_at(place);
    return place->n_accusers > 0 &&
           (rank == NULL || rank->phase != DPT__RANK_PHASE__RANK_QUIESCED ||
            rank->generation <= run->plan.generation);
}

static bool is_after_failure(const struct run *run)
{
    return run->phase == DPT_RDZV_PREPARING && !run->formation.soft && run->formation.after_failure;
}

bool dpt_rdzv_is_loss_confirmed(const struct node *node)
{
    const struct run *run = node->run;
    if (is_after_failure(run))
        for (uint32_t i = 0; i < node->n_ranks; i++)
            if (node->ranks[i].place >= 0 &&
                is_accused(run, &run->plan.places[node->ranks[i].place]))
                return true;
    return dpt_rdzv_has_ended(run);
}

/* ---- suspect nodes that nobody accuses ---- */

/* When the loss of the node is weighed: a grace after its own grace, and then once a grace.
 * INT64_MAX: it is not. A node whose connection had broken long before the generation failed took
 * part in its steps meanwhile, so it is alive. */
static int64_t weighed_at_ms(const struct node *node)
{
    const struct run *run = node->run;
    const int64_t grace_ms = run->timing.grace_ms, suspect_ms = grace_end_ms(node);
    if (!is_after_failure(run) || node->n_unreported == 0 || suspect_ms == INT64_MAX ||
        node->link.broken_ms < run->phase_ms - grace_ms)
        return INT64_MAX;
    const int64_t again_ms = run->formation.weighed_ms + grace_ms;
    return again_ms > suspect_ms + grace_ms ? again_ms : suspect_ms + grace_ms;
}

/* True: the nodes that are not assumed to be away are enough, and hold the newest state. */
static bool do_others_suffice(const struct run *run)
{
    const unsigned groups = dpt_rdzv_admitted_groups(run);
    return groups != 0 && (groups & GROUP_EXCLUDED) == 0 &&
           dpt_rdzv_step_held(run, groups) >= run->progress.steps_done;
}

bool dpt_rdzv_does_without_suspects(struct run *run)
{
    uint32_t n = run->membership.n_unreported;
    if (!is_after_failure(run) || n == 0)
        return false;
    struct node *const first = run->membership.lists[LIST_BROKEN].first;
    for (struct node *node = first; node != NULL; node = node->hooks[LIST_BROKEN].after) {
        node->exclusion.assumed = run->core->now_ms >= weighed_at_ms(node);
        n -= node->exclusion.assumed ? node->n_unreported : 0;
    }
    if (n == 0)
        run->formation.weighed_ms = run->core->now_ms;
    const bool without = n == 0 && do_others_suffice(run);
    for (struct node *node = first; node != NULL; node = node->hooks[LIST_BROKEN].after)
        node->exclusion.assumed = false;
    return without;
}

/* ---- readiness and deadlines ---- */

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

uint32_t dpt_rdzv_count_ready(const struct run *run)
{
    const struct membership *membership = &run->membership;
    uint32_t n = 0;
    if (membership->n_leaving > 0) {
        for (size_t i = 0; i < run->n_nodes; i++)
            n += dpt_rdzv_node_is_ready(run->nodes[i]) && !run->nodes[i]->leaving;
        return n;
    }
    n = membership->n_ready[READY_LATE] + membership->n_ready[READY_ALL];
    for (const struct node *node = membership->lists[LIST_BROKEN].first; node != NULL;
         node = node->hooks[LIST_BROKEN].after)
        n -= node->readiness >= READY_LATE && dpt_rdzv_is_suspect(node);
    return n;
}

bool dpt_rdzv_is_any_unready(const struct run *run)
{
    const struct membership *membership = &run->membership;
    uint32_t n = membership->n_ready[READY_NONE] + membership->n_ready[READY_SOME];
    for (const struct node *node = membership->lists[LIST_BROKEN].first; node != NULL;
         node = node->hooks[LIST_BROKEN].after)
        n -= node->readiness < READY_LATE && dpt_rdzv_is_suspect(node);
    return n > 0;
}

static void note_lease_end(const struct node *node, int64_t *due_ms)
{
    const int64_t end_ms = node->run->core->now_ms + dpt_rdzv_lease_left_ms(node) + 1;
    if (end_ms < *due_ms)
        *due_ms = end_ms;
}

int64_t dpt_rdzv_silence_due_ms(const struct run *run, int64_t latest_ms)
{
    const struct membership *membership = &run->membership;
    const struct node *quiet = membership->lists[LIST_QUIET].first;
    const struct node *denied = membership->lists[LIST_DENIED].first;
    int64_t due_ms = latest_ms;
    if (quiet != NULL)
        note_lease_end(quiet, &due_ms);
    if (denied != NULL)
        note_lease_end(denied, &due_ms);
    for (const struct node *node = membership->lists[LIST_BROKEN].first; node != NULL;
         node = node->hooks[LIST_BROKEN].after) {
        const int64_t grace_ms = grace_end_ms(node);
        if (grace_ms >= due_ms) /* the list is in the order of breaks */
            break;
        const int64_t weighed_ms = weighed_at_ms(node);
        if (!node->link.reported_broken || dpt_rdzv_is_loss_confirmed(node))
            due_ms = grace_ms;
        else if (weighed_ms < due_ms)
            due_ms = weighed_ms;
    }
    return due_ms;
}
