/* The watch's checks on the counters, lists and indexes that save the machine scans of all nodes.
 * A walk over all nodes must find the same. */
#include "rendezvous/core/run_state.h"
#include "tests/rendezvous/core/watch_internal.h"

#include <string.h>

/* Runs of more nodes are checked at one step of that many. */
enum { NODES_EACH_STEP = 24, STEPS_PER_CHECK = 64 };

/* Numbers of one run, as its counters have them or as a walk counts them. */
struct tally {
    int outside, foreign, running, busy, rebuilding, ready;
    uint32_t unreported, stopped, leaving, by_readiness[READY_COUNT];
};

static struct tally counted_tally(const struct run *run)
{
    const struct membership *membership = &run->membership;
    struct tally ret = {.outside = membership->n_outside,
                        .foreign = membership->n_foreign,
                        .running = run->plan.n_running,
                        .busy = run->plan.n_busy,
                        .rebuilding = run->plan.n_rebuilding,
                        .ready = run->plan.n_ready,
                        .unreported = membership->n_unreported,
                        .stopped = membership->n_stopped,
                        .leaving = membership->n_leaving};
    memcpy(ret.by_readiness, membership->n_ready, sizeof ret.by_readiness);
    return ret;
}

static void add_rank(const struct run *run, const struct rank *rank, struct tally *tally)
{
    const bool alive = dpt_rdzv_rank_is_alive(rank), member = dpt_rdzv_rank_is_member(rank);
    const bool runs = rank->phase == DPT__RANK_PHASE__RANK_RUNNING;
    tally->outside += alive && !member;
    tally->foreign += runs && !member;
    tally->running += runs && member;
    tally->busy += rank->busy && member;
    tally->rebuilding += rank->rebuilding && member;
    tally->ready += member && rank->phase == DPT__RANK_PHASE__RANK_READY &&
                    rank->generation == run->plan.generation;
    tally->unreported += alive && !dpt_rdzv_has_quiesced(rank) &&
                         (run->formation.soft || rank->asked == run->generation);
    const bool failed = rank->failed_generation != 0 && rank->failed_generation >= rank->generation;
    tally->stopped += failed || rank->phase == DPT__RANK_PHASE__RANK_READY ||
                      rank->phase == DPT__RANK_PHASE__RANK_QUIESCED;
}

static struct tally walked_tally(const struct run *run)
{
    struct tally ret = {0};
    for (size_t i = 0; i < run->n_nodes; i++) {
        const struct node *node = run->nodes[i];
        uint32_t alive = 0, before = ret.unreported;
        for (uint32_t k = 0; k < node->n_ranks; k++) {
            add_rank(run, &node->ranks[k], &ret);
            alive += dpt_rdzv_rank_is_alive(&node->ranks[k]);
        }
        const bool late = node->readiness == READY_LATE &&
                          run->core->now_ms - node->ready_since_ms >= run->timing.timeout_ms;
        ret.by_readiness[alive == 0               ? READY_NONE
                         : alive == node->n_ranks ? READY_ALL
                         : late                   ? READY_LATE
                                                  : READY_SOME]++;
        ret.leaving += node->leaving;
        if (ret.unreported - before != node->n_unreported)
            ret.unreported = UINT32_MAX / 2; /* the node's own part is wrong */
    }
    return ret;
}

/* A place has as many accusers as members accuse it, and the newest process of its local rank knows
 * the place. */
static bool are_places_right(const struct run *run)
{
    const struct plan *plan = &run->plan;
    struct rank_cursor at = {0};
    uint32_t accusers = 0, found = 0, places = 0;
    for (const struct rank *rank; (rank = dpt_rdzv_next_rank(run, &at)) != NULL;) {
        found += dpt_rdzv_accused_by(rank) != NULL;
        if (rank->place < 0)
            continue;
        places++;
        if ((uint32_t)rank->place >= plan->world_size ||
            plan->places[rank->place].node != rank->node ||
            plan->places[rank->place].local_rank != (uint32_t)(rank - rank->node->ranks))
            return false;
    }
    for (uint32_t i = 0; i < plan->world_size; i++) {
        accusers += plan->places[i].n_accusers;
        places -= plan->places[i].node != NULL;
    }
    return accusers == found && places == 0;
}

/* All nodes are in the list of quiet nodes, the longest silent one first; those with a broken
 * connection are in the other list. */
static bool are_lists_right(const struct run *run)
{
    const struct node_ends *lists = run->membership.lists;
    size_t quiet = 0, broken = 0;
    int64_t heard_ms = INT64_MIN;
    for (const struct node *node = lists[LIST_QUIET].first; node != NULL;
         node = node->hooks[LIST_QUIET].after) {
        if (node->link.heard_listened_ms < heard_ms || quiet++ > run->n_nodes)
            return false;
        heard_ms = node->link.heard_listened_ms;
    }
    for (const struct node *node = lists[LIST_BROKEN].first; node != NULL && broken <= run->n_nodes;
         node = node->hooks[LIST_BROKEN].after)
        broken += node->link.broken_ms >= 0 && node->link.conn == 0;
    for (size_t i = 0; i < run->n_nodes; i++)
        broken -= run->nodes[i]->link.broken_ms >= 0;
    return quiet == run->n_nodes && broken == 0;
}

static bool are_indexes_right(const struct dpt_rdzv *core)
{
    size_t nodes = 0, conns = 0;
    for (size_t i = 0; i < core->n_runs; i++) {
        const struct run *run = core->runs[i];
        if (run->ids.n != run->n_nodes)
            return false;
        for (size_t k = 0; k < run->n_nodes; k++) {
            const struct node *node = run->nodes[k];
            if (dpt_rdzv_index_find(&run->ids, node->id_hash) != node ||
                (node->link.conn != 0 &&
                 dpt_rdzv_index_find(&core->conns, node->link.conn) == NULL))
                return false;
            conns += node->link.conn != 0;
        }
        nodes += run->n_nodes;
    }
    return core->n_nodes == nodes && core->conns.n == conns;
}

void watch_tally(struct watch *watch, const struct dpt_rdzv *core)
{
    if (core->n_nodes > NODES_EACH_STEP && watch->n_steps++ % STEPS_PER_CHECK != 0)
        return;
    for (size_t i = 0; i < core->n_runs; i++) {
        const struct run *run = core->runs[i];
        const struct tally counted = counted_tally(run), walked = walked_tally(run);
        if (memcmp(&counted, &walked, sizeof counted) != 0)
            watch_broken(watch,
                         "run %s counts %d outside, %d foreign, %d running, %d ready, %u "
                         "unreported, %u stopped; a walk %d, %d, %d, %d, %u, %u",
                         run->name, counted.outside, counted.foreign, counted.running,
                         counted.ready, counted.unreported, counted.stopped, walked.outside,
                         walked.foreign, walked.running, walked.ready, walked.unreported,
                         walked.stopped);
        if (!are_places_right(run))
            watch_broken(watch, "run %s: ranks and places do not name one another", run->name);
        if (!are_lists_right(run))
            watch_broken(watch, "run %s: the lists of nodes are wrong", run->name);
    }
    if (!are_indexes_right(core))
        watch_broken(watch, "the indexes of nodes are wrong");
}
