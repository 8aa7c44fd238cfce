/* Runs and nodes that come and go. */
#include "rendezvous/core/apply.h"

#include "rendezvous/core/kept.h"
#include "rendezvous/core/tally.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NODES_MIN = 16 }; /* room for the first nodes of a run */

/* ---- runs ---- */

struct run *dpt_rdzv_run_create(struct dpt_rdzv *core, const Dpt__AgentState *message,
                                const uint8_t *key)
{
    const char *name = message->stamp->run;
    struct dpt_rdzv_record record = {.kind = DPT_RDZV_RECORD_RUN,
                                     .run = name,
                                     .step = -1,
                                     .spec = message->spec,
                                     .fingerprint = message->fingerprint,
                                     .data_digest = message->data_digest,
                                     .folder = message->checkpoint_dir_id};
    memcpy(record.key, key, sizeof record.key);
    dpt_rdzv_decide(core, record);
    if (core->out.no_memory)
        return NULL;
    struct run *run = dpt_rdzv_find_run(core, name);
    char timing[DPT_PROTO_TEXT_BYTES];
    dpt_timing_print(&run->timing, timing, sizeof timing);
    dpt_rdzv_log(run, DPT_LOG_INFO, "new run of %u to %u nodes, %s", run->spec.min_nodes,
                 run->spec.max_nodes, timing);
    if (run->spec.max_world > core->world_max)
        dpt_rdzv_log(run, DPT_LOG_WARN,
                     "its nodes may bring %u ranks, and this server takes %u in a run (dpt-rdzv "
                     "--max-ranks): further ranks are left out",
                     run->spec.max_world, core->world_max);
    return run;
}

/* A run that was stopped uses the number by which STOP named it, though it may have formed no
 * generation. */
uint64_t dpt_rdzv_highest_number(const struct run *run)
{
    const struct formation *formation = &run->formation;
    const uint64_t own = formation->generation_floor + run->kept.stopped;
    return dpt_rdzv_newer(run->generation, dpt_rdzv_newer(formation->generation_high, own));
}

bool dpt_rdzv_was_left(const struct run *run)
{
    const struct departed *newest = dpt_rdzv_departed_newest(&run->membership);
    return run->n_nodes == 0 && run->kept.n_nodes == 0 && newest != NULL && newest->released &&
           run->membership.n_awaited == 0;
}

void dpt_rdzv_forget_run(struct dpt_rdzv *core, size_t i)
{
    const struct run *run = core->runs[i];
    const bool ended = dpt_rdzv_has_ended(run), failed = run->phase == DPT_RDZV_FAILED;
    dpt_rdzv_record(run,
                    (struct dpt_rdzv_record){
                        .kind = DPT_RDZV_RECORD_FORGET,
                        .step = run->progress.saved_step,
                        .node = run->progress.saved_node,
                        .host = run->progress.saved_host,
                        .generation = dpt_rdzv_highest_number(run),
                        .number = dpt_rdzv_newer(run->kept.ran, run->formation.ran_before),
                        .flags = (ended ? DPT_RDZV_FLAG_ENDED : 0u) |
                                 (failed ? DPT_RDZV_FLAG_FAILED : 0u) |
                                 (run->kept.stopped ? DPT_RDZV_FLAG_STOPPED : 0u) |
                                 (!ended && dpt_rdzv_was_left(run) ? DPT_RDZV_FLAG_LEFT : 0u)});
}

/* ---- nodes ---- */

static void record_joined(const struct run *run, const Dpt__AgentState *message, const uint8_t *key)
{
    struct dpt_rdzv_record record = {.kind = DPT_RDZV_RECORD_JOINED,
                                     .generation = run->generation,
                                     .step = -1,
                                     .node = message->stamp->node,
                                     .host = message->host_name,
                                     .incarnation = message->stamp->incarnation};
    dpt_rdzv_secret_of(message, record.secret);
    memcpy(record.key, key, sizeof record.key);
    dpt_health_from_message(message->health, &record.health);
    dpt_rdzv_record(run, record);
}

static bool reserve_node(struct run *run)
{
    if (run->n_nodes < run->nodes_max)
        return true;
    const size_t more = run->nodes_max == 0 ? NODES_MIN : 2 * run->nodes_max;
    struct node **bigger = realloc(run->nodes, more * sizeof bigger[0]);
    if (bigger == NULL)
        return false;
    run->nodes = bigger;
    run->nodes_max = more;
    return true;
}

struct node *dpt_rdzv_node_create(struct run *run, const Dpt__AgentState *message,
                                  const uint8_t *key)
{
    const struct kept_node *kept = dpt_rdzv_find_kept(run, message->stamp->node);
    const bool expected = dpt_rdzv_kept_as(run, message) != NULL;
    const bool back =
        dpt_rdzv_is_own_epoch(run->core, message->stamp->epoch) && message->stamp->generation > 0;
    struct node *node = reserve_node(run) ? calloc(1, sizeof *node) : NULL;
    if (node == NULL ||
        !dpt_rdzv_index_add(&run->ids, dpt_rdzv_id_hash(message->stamp->node), node)) {
        free(node);
        run->core->out.no_memory = true;
        return NULL;
    }
    if (kept != NULL && !expected)
        dpt_rdzv_remove_kept(run, kept, false, "it came back as a new incarnation");
    if (!expected)
        record_joined(run, message, key);
    node->run = run;
    node->expected = expected;
    (void)snprintf(node->id, sizeof node->id, "%s", message->stamp->node);
    node->id_hash = dpt_rdzv_id_hash(node->id);
    node->incarnation = message->stamp->incarnation;
    dpt_rdzv_secret_of(message, node->secret);
    memcpy(node->key, key, sizeof node->key);
    node->joined = ++run->membership.joins;
    node->joined_ms = node->link.heard_ms = run->core->now_ms;
    node->link.heard_listened_ms = run->membership.listened_ms;
    node->link.broken_ms = node->ready_since_ms = -1;
    node->crashes = message->crashes; /* earlier crashes do not count */
    run->nodes[run->n_nodes++] = node;
    run->core->n_nodes++;
    run->membership.n_ready[READY_NONE]++;
    dpt_rdzv_list_last(node, LIST_QUIET);
    dpt_rdzv_log(run, DPT_LOG_INFO, "node %s %s (%zu of %u to %u)", node->id,
                 back ? "is back with its state" : "joined", run->n_nodes, run->spec.min_nodes,
                 run->spec.max_nodes);
    return node;
}

void dpt_rdzv_note_loss(const struct rank *rank)
{
    struct run *run = rank->node->run;
    struct progress *progress = &run->progress;
    if (progress->n_losses == LOSSES_MAX || rank->step_applied < 0 || rank->n_shards == 0)
        return;
    struct loss *loss = &progress->losses[progress->n_losses++];
    memcpy(loss->node, rank->node->id, sizeof loss->node);
    loss->n_shards = dpt_rdzv_shards_of(rank, dpt_rdzv_state_generation(run), loss->shards);
}

void dpt_rdzv_remove_kept(struct run *run, const struct kept_node *node, bool cut_off,
                          const char *why)
{
    const bool awaited = cut_off && dpt_rdzv_kept_may_hold_newest(run, node);
    dpt_rdzv_record(run, (struct dpt_rdzv_record){.kind = DPT_RDZV_RECORD_REMOVED,
                                                  .generation = run->generation,
                                                  .step = run->progress.step,
                                                  .node = node->id,
                                                  .incarnation = node->incarnation,
                                                  .text = why,
                                                  .flags = (cut_off ? DPT_RDZV_FLAG_CUT_OFF : 0u) |
                                                           (awaited ? DPT_RDZV_FLAG_AWAITED : 0u)});
}

static void record_removed(const struct run *run, const struct node *node,
                           const struct removal *removal)
{
    const bool cut_off = node->link.cut_off;
    const bool awaited = cut_off && dpt_rdzv_may_hold_newest(node);
    dpt_rdzv_record(run, (struct dpt_rdzv_record){
                             .kind = DPT_RDZV_RECORD_REMOVED,
                             .generation = run->generation,
                             .step = run->progress.step,
                             .node = node->id,
                             .host = node->host_name,
                             .incarnation = node->incarnation,
                             .number = node->link.counter_seen,
                             .count = removal->n_nodes,
                             .text = removal->why,
                             .flags = (cut_off ? DPT_RDZV_FLAG_CUT_OFF : 0u) |
                                      (awaited ? DPT_RDZV_FLAG_AWAITED : 0u) |
                                      (removal->released ? DPT_RDZV_FLAG_RELEASED : 0u) |
                                      (removal->last_holder ? DPT_RDZV_FLAG_LAST_HOLDER : 0u)});
}

/* The place of the node in run->nodes, by bisection: the nodes are in order of joining. */
static size_t position_of(const struct run *run, const struct node *node)
{
    size_t low = 0, high = run->n_nodes;
    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;
        *(run->nodes[middle]->joined <= node->joined ? &low : &high) = middle;
    }
    DPT_ASSERT(run->nodes[low] == node);
    return low;
}

void dpt_rdzv_remove_node(struct run *run, struct node *node, const struct removal *removal)
{
    struct membership *membership = &run->membership;
    record_removed(run, node, removal);
    run->progress.unsaved_known = false;
    for (uint32_t i = 0; i < node->n_ranks; i++) {
        if (dpt_rdzv_rank_is_alive(&node->ranks[i]))
            dpt_rdzv_note_loss(&node->ranks[i]);
        dpt_rdzv_count_rank(&node->ranks[i], -1);
    }
    for (uint32_t i = 0; i < node->n_ranks; i++)
        if (node->ranks[i].place >= 0)
            run->plan.places[node->ranks[i].place].node = NULL;
    membership->n_leaving -= node->leaving;
    membership->n_ready[node->readiness]--;
    for (int list = 0; list < LIST_COUNT; list++)
        dpt_rdzv_list_remove(node, (enum node_list)list);
    if (run->speaker == node)
        run->speaker = NULL;
    const size_t at = position_of(run, node);
    memmove(&run->nodes[at], &run->nodes[at + 1], (run->n_nodes - at - 1) * sizeof run->nodes[0]);
    run->n_nodes--;
    dpt_rdzv_index_remove(&run->ids, node->id_hash, node);
    dpt_rdzv_node_destroy(node);
}
