/* Queries on runs, nodes, ranks and plans. */
#include "rendezvous/core/run_state.h"

#include "base/hash.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- ranks ---- */

struct rank *dpt_rdzv_next_rank(const struct run *run, struct rank_cursor *at)
{
    for (; at->node < run->n_nodes; *at = (struct rank_cursor){.node = at->node + 1})
        if (at->rank < run->nodes[at->node]->n_ranks)
            return &run->nodes[at->node]->ranks[at->rank++];
    return NULL;
}

bool dpt_rdzv_is_no_key(const uint8_t *key)
{
    static const uint8_t none[DPT_RDZV_KEY_BYTES];
    return memcmp(key, none, sizeof none) == 0;
}

size_t dpt_rdzv_count_ranks(const struct run *run)
{
    size_t n = 0;
    for (size_t i = 0; i < run->n_nodes; i++)
        n += run->nodes[i]->n_ranks;
    return n;
}

const struct rank *dpt_rdzv_rank_at(const struct place *place)
{
    if (place->node == NULL || place->local_rank >= place->node->n_ranks ||
        place->node->ranks[place->local_rank].spawn != place->spawn)
        return NULL;
    return &place->node->ranks[place->local_rank];
}

bool dpt_rdzv_rank_is_alive(const struct rank *rank)
{
    return rank->spawn != 0 && rank->phase != DPT__RANK_PHASE__RANK_STARTING &&
           rank->phase != DPT__RANK_PHASE__RANK_DEAD;
}

bool dpt_rdzv_rank_is_member(const struct rank *rank)
{
    const uint64_t generation = rank->node->run->plan.generation;
    return generation != 0 && rank->plan_generation == generation;
}

bool dpt_rdzv_has_finished(const struct rank *rank)
{
    return dpt_rdzv_rank_is_member(rank) && rank->node->run->plan.places[rank->plan_rank].finished;
}

bool dpt_rdzv_has_quiesced(const struct rank *rank)
{
    return rank->phase == DPT__RANK_PHASE__RANK_QUIESCED &&
           rank->generation == rank->node->run->generation;
}

struct place *dpt_rdzv_accused_by(const struct rank *rank)
{
    const struct plan *plan = &rank->node->run->plan;
    if (rank->failed_generation != plan->generation || !dpt_rdzv_rank_is_member(rank) ||
        rank->suspect < 0 || (uint32_t)rank->suspect >= plan->world_size ||
        plan->places[rank->suspect].node == rank->node)
        return NULL;
    return &plan->places[rank->suspect];
}

/* ---- nodes ---- */

bool dpt_rdzv_node_is_member(const struct node *node)
{
    for (uint32_t i = 0; i < node->n_ranks; i++)
        if (dpt_rdzv_rank_is_member(&node->ranks[i]))
            return true;
    return false;
}

bool dpt_rdzv_may_hold_newest(const struct node *node)
{
    const uint64_t ran = node->run->formation.run_generation;
    if (node->returned || (ran == 0 && node->generation > 0))
        return true;
    for (uint32_t i = 0; i < node->n_ranks; i++)
        if (node->ranks[i].plan_generation != 0 && node->ranks[i].plan_generation >= ran)
            return true;
    return false;
}

void dpt_rdzv_print_node(const struct plan *plan, const struct node *node,
                         char ret[NODE_TEXT_BYTES])
{
    int first = -1, last = -1;
    const bool newest = plan == &node->run->plan; /* its ranks know their places */
    for (uint32_t i = 0; i < (newest ? node->n_ranks : plan->world_size); i++) {
        const int at = newest ? node->ranks[i].place : plan->places[i].node == node ? (int)i : -1;
        first = at >= 0 && (first < 0 || at < first) ? at : first;
        last = at > last ? at : last;
    }
    char ranks[48] = "";
    if (first >= 0 && first == last)
        (void)snprintf(ranks, sizeof ranks, ", rank %d", first);
    else if (first >= 0)
        (void)snprintf(ranks, sizeof ranks, ", ranks %d to %d", first, last);
    if (node->host_name[0] != '\0')
        (void)snprintf(ret, NODE_TEXT_BYTES, "node %s (host %s%s)", node->id, node->host_name,
                       ranks);
    else
        (void)snprintf(ret, NODE_TEXT_BYTES, "node %s", node->id);
}

/* ---- runs ---- */

bool dpt_rdzv_has_ended(const struct run *run)
{
    return run->phase == DPT_RDZV_DONE || run->phase == DPT_RDZV_FAILED;
}

uint32_t dpt_rdzv_min_nodes(const struct run *run)
{
    struct rank_cursor at = {0};
    const int64_t final_step = run->progress.final_step;
    for (const struct rank *rank; final_step >= 0 && (rank = dpt_rdzv_next_rank(run, &at)) != NULL;)
        if (rank->step_applied == final_step)
            return 1;
    return run->spec.min_nodes;
}

uint32_t dpt_rdzv_restarts_left(const struct run *run)
{
    const uint32_t most = run->spec.max_restarts, used = run->budget.used;
    return most > used ? most - used : 0;
}

uint32_t dpt_rdzv_world_max(const struct run *run)
{
    const uint32_t mine = run->core->world_max;
    return run->spec.max_world < mine ? run->spec.max_world : mine;
}

uint64_t dpt_rdzv_state_generation(const struct run *run)
{
    uint64_t newest = dpt_rdzv_newer(run->formation.run_generation, run->kept.ran);
    struct rank_cursor at = {0};
    for (const struct rank *rank; (rank = dpt_rdzv_next_rank(run, &at)) != NULL;)
        newest = dpt_rdzv_newer(newest, rank->ran_generation);
    return newest;
}

bool dpt_rdzv_pending_counts(const struct rank *rank, uint64_t state_generation)
{
    return rank->pending_generation != 0 && rank->pending_generation <= state_generation;
}

int dpt_rdzv_shards_of(const struct rank *rank, uint64_t state_generation,
                       struct dpt_shard ret[DPT_PROTO_SHARDS_MAX])
{
    const bool pending = dpt_rdzv_pending_counts(rank, state_generation);
    int n = 0;
    if (rank->n_shards == 0)
        ret[n++] = (struct dpt_shard){0, 1};
    for (int i = 0; i < rank->n_shards; i++)
        if (rank->pending[i] == pending)
            ret[n++] = rank->shards[i];
    return n;
}

/* ---- identity, durable state ---- */

uint64_t dpt_rdzv_id_hash(const char *id)
{
    return dpt_hash128(id, strlen(id)).lo;
}

void dpt_rdzv_secret_of(const Dpt__AgentState *message, uint8_t ret[DPT_PROTO_SECRET_BYTES])
{
    memset(ret, 0, DPT_PROTO_SECRET_BYTES);
    if (message->secret.len > 0) /* check.c has checked the length */
        memcpy(ret, message->secret.data, DPT_PROTO_SECRET_BYTES);
}

int64_t dpt_rdzv_granted_step(const struct run *run)
{
    const bool granted =
        run->plan.generation != 0 && run->kept.granted_generation == run->plan.generation;
    return granted ? run->kept.granted_step : -1;
}

bool dpt_rdzv_is_own_epoch(const struct dpt_rdzv *core, uint64_t epoch)
{
    const size_t n = core->n_epochs < EPOCHS_MAX ? core->n_epochs : EPOCHS_MAX;
    for (size_t i = 0; epoch != 0 && i < n; i++)
        if (core->epochs[i] == epoch)
            return true;
    return false;
}

/* ---- causes, log lines ---- */

const char *dpt_rdzv_cause_name(enum cause_kind kind)
{
    static const char *const names[CAUSE_COUNT] = {"start",          "joined",     "left",
                                                   "server_restart", "comm_error", "stalled",
                                                   "rank_lost",      "node_lost"};
    return (unsigned)kind < CAUSE_COUNT ? names[kind] : "?";
}

struct cause dpt_rdzv_cause(enum cause_kind kind, int64_t detect_ms, const char *fmt, ...)
{
    struct cause cause = {.kind = kind, .detect_ms = detect_ms < 0 ? 0 : detect_ms};
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(cause.text, sizeof cause.text, fmt, ap);
    va_end(ap);
    return cause;
}

void dpt_rdzv_log(const struct run *run, enum dpt_log_level level, const char *fmt, ...)
{
    char text[DPT_PROTO_TEXT_BYTES * 2];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    dpt_outbox_log(&run->core->out, (struct dpt_rdzv_log_line){.level = level,
                                                               .run = run->name,
                                                               .generation = run->generation,
                                                               .text = text});
}
