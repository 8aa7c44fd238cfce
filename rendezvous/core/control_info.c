/* Facts about runs and nodes for an operator. */
#include "rendezvous/core/control.h"

#include "rendezvous/core/kept.h"
#include "rendezvous/core/queries.h"
#include "rendezvous/core/restart.h"

#include <stdio.h>
#include <string.h>

/* ---- runs ---- */

void dpt_rdzv_reply_add_run(Dpt__ControlReply *reply, struct run *run)
{
    struct outbox *out = &run->core->out;
    Dpt__RunInfo *to = dpt_outbox_alloc(out, sizeof *to);
    if (to == NULL || reply->n_runs == DPT_PROTO_RUNS_MAX)
        return;
    dpt__run_info__init(to);
    to->run = dpt_outbox_text(out, run->name);
    to->user = dpt_outbox_text(out, run->spec.user);
    to->phase = dpt_rdzv_phase_told(run);
    to->paused = run->kept.paused;
    to->stopping = run->kept.stopped;
    to->held = dpt_rdzv_is_held_now(run);
    to->generation = run->generation;
    to->world_size = run->plan.in_force ? run->plan.world_size : 0;
    to->n_nodes = (uint32_t)run->n_nodes;
    to->min_nodes = run->spec.min_nodes;
    to->max_nodes = run->spec.max_nodes;
    to->step = run->progress.step;
    to->saved_step = run->progress.saved_step;
    to->saved_node = dpt_outbox_text(out, run->progress.saved_node);
    to->saved_host = dpt_outbox_text(out, run->progress.saved_host);
    to->restarts_left = dpt_rdzv_restarts_left(run);
    to->step_ms_median = run->progress.step_ms_median;
    to->phase_ms = run->core->now_ms - run->phase_ms;
    to->heard_ms_ago = dpt_rdzv_heard_ms_ago(run);
    to->unheard = dpt_rdzv_is_unheard(run);
    to->cause = dpt_outbox_text(out, run->formation.cause.text);
    to->text = dpt_outbox_text(out, run->end_text);
    reply->runs[reply->n_runs++] = to;
}

bool dpt_rdzv_is_held_now(struct run *run)
{
    return run->phase == DPT_RDZV_WAITING && dpt_rdzv_is_held(run) &&
           run->formation.adopt_until_ms < 0 && !dpt_rdzv_awaits_members(run);
}

bool dpt_rdzv_is_dumped(const struct run *run)
{
    struct rank_cursor at = {0};
    if (run->core->now_ms - run->requests.dump_ms >= DUMP_MS)
        return true;
    for (const struct rank *rank; (rank = dpt_rdzv_next_rank(run, &at)) != NULL;)
        if (rank->spawn > 0 && rank->phase != DPT__RANK_PHASE__RANK_DEAD &&
            rank->work.stacks.of != run->requests.dump)
            return false;
    return true;
}

/* ---- nodes ---- */

bool dpt_rdzv_knows_node(const struct run *run, const char *node)
{
    const uint64_t id_hash = dpt_rdzv_id_hash(node);
    if (dpt_rdzv_find_kept(run, node) != NULL ||
        dpt_rdzv_find_denied(run->core, run->name, node) < run->core->denied.n)
        return true;
    for (size_t i = 0; i < run->membership.n_departed_room; i++)
        if (run->membership.departed[i].incarnation != 0 &&
            run->membership.departed[i].id_hash == id_hash)
            return true;
    return false;
}

/* The list, while it is filled. */
struct listing {
    struct dpt_rdzv *core;
    Dpt__ControlReply *reply;
    uint32_t first, seen; /* entries to leave out; entries so far */
};

/* A new entry; NULL: it is left out, or there is no memory. */
static Dpt__NodeInfo *add_entry(struct listing *listing, const char *run, const char *node)
{
    struct outbox *out = &listing->core->out;
    Dpt__ControlReply *reply = listing->reply;
    if (listing->seen++ < listing->first)
        return NULL;
    if (reply->n_nodes == DPT_PROTO_REPLY_NODES_MAX) {
        reply->nodes_left++;
        return NULL;
    }
    Dpt__NodeInfo *to = dpt_outbox_alloc(out, sizeof *to);
    if (to == NULL)
        return NULL;
    dpt__node_info__init(to);
    to->run = dpt_outbox_text(out, run);
    to->node = dpt_outbox_text(out, node);
    to->step = to->first_rank = -1;
    reply->nodes[reply->n_nodes++] = to;
    return to;
}

static Dpt__NodeRole role_of(const struct run *run, const struct node *node)
{
    if (node->leaving)
        return DPT__NODE_ROLE__NODE_LEAVES;
    if (!run->plan.in_force)
        return DPT__NODE_ROLE__NODE_WAITS;
    return dpt_rdzv_node_is_member(node)    ? DPT__NODE_ROLE__NODE_TRAINS
           : run->phase == DPT_RDZV_RUNNING ? DPT__NODE_ROLE__NODE_SPARE
                                            : DPT__NODE_ROLE__NODE_WAITS;
}

static void add_health(struct listing *listing, Dpt__NodeInfo *to, const struct kept_node *kept)
{
    if (kept == NULL || !kept->health.checked)
        return;
    to->health = dpt_outbox_alloc(&listing->core->out, sizeof *to->health);
    if (to->health != NULL)
        dpt_health_to_message(&kept->health, to->health);
}

/* The host's part of "HOST:PORT" or "[IPV6]:PORT", without brackets; "": there is none. */
static char *address_of(struct outbox *out, const char *tcp_addr)
{
    char host[DPT_PROTO_ADDR_BYTES];
    const char *port = strrchr(tcp_addr, ':');
    const bool brackets = tcp_addr[0] == '[' && port != NULL && port[-1] == ']';
    const int length = port == NULL ? 0 : (int)(port - tcp_addr);
    (void)snprintf(host, sizeof host, "%.*s", brackets ? length - 2 : length,
                   brackets ? tcp_addr + 1 : tcp_addr);
    return dpt_outbox_text(out, host);
}

static void add_node(struct listing *listing, const struct node *node)
{
    const struct run *run = node->run;
    Dpt__NodeInfo *to = add_entry(listing, run->name, node->id);
    if (to == NULL)
        return;
    to->host_name = dpt_outbox_text(&listing->core->out, node->host_name);
    to->rack = dpt_outbox_text(&listing->core->out, node->location.rack);
    to->address = address_of(&listing->core->out, node->n_ranks > 0 ? node->ranks[0].tcp_addr : "");
    to->role = role_of(run, node);
    to->n_ranks = node->n_ranks;
    to->incarnation = node->incarnation;
    to->heard_ms_ago = listing->core->now_ms - node->link.heard_ms;
    to->connected = node->link.conn != 0;
    add_health(listing, to, dpt_rdzv_find_kept(run, node->id));
    for (uint32_t k = 0; k < node->n_ranks; k++) {
        const struct rank *rank = &node->ranks[k];
        if (rank->step_applied > to->step)
            to->step = rank->step_applied;
        if (run->plan.in_force && dpt_rdzv_rank_is_member(rank) &&
            (to->first_rank < 0 || rank->plan_rank < to->first_rank))
            to->first_rank = rank->plan_rank;
    }
}

static void add_nodes_of(struct listing *listing, const struct run *run)
{
    for (size_t i = 0; i < run->n_nodes; i++)
        add_node(listing, run->nodes[i]);
    for (const struct kept_node *kept = run->kept.first;
         kept != NULL && run->kept.n_nodes > run->n_nodes; kept = kept->after) {
        if (dpt_rdzv_find_node(run, kept->id) != NULL)
            continue;
        Dpt__NodeInfo *to = add_entry(listing, run->name, kept->id);
        if (to == NULL)
            continue;
        to->role = DPT__NODE_ROLE__NODE_AWAITED;
        to->incarnation = kept->incarnation;
        add_health(listing, to, kept);
    }
}

void dpt_rdzv_reply_add_nodes(struct dpt_rdzv *core, Dpt__ControlReply *reply,
                              const struct run *run, uint32_t first)
{
    struct listing listing = {.core = core, .reply = reply, .first = first};
    reply->nodes = dpt_outbox_alloc(&core->out, DPT_PROTO_REPLY_NODES_MAX * sizeof reply->nodes[0]);
    if (reply->nodes == NULL)
        return;
    for (size_t i = 0; i < core->n_runs; i++)
        if (run == NULL || run == core->runs[i])
            add_nodes_of(&listing, core->runs[i]);
    for (size_t i = 0; i < core->denied.n; i++) {
        const struct denied *denied = &core->denied.list[i];
        if (run != NULL && strcmp(run->name, denied->run) != 0)
            continue;
        Dpt__NodeInfo *to = add_entry(&listing, denied->run, denied->node);
        if (to != NULL)
            to->role = DPT__NODE_ROLE__NODE_DENIED;
    }
}

/* ---- the reply ---- */

Dpt__ControlReply *dpt_rdzv_new_reply(struct dpt_rdzv *core, Dpt__ControlVerb verb)
{
    Dpt__ControlReply *reply = dpt_outbox_alloc(&core->out, sizeof *reply);
    if (reply == NULL)
        return NULL;
    dpt__control_reply__init(reply);
    reply->verb = verb;
    reply->step = -1;
    reply->runs = dpt_outbox_alloc(&core->out, DPT_PROTO_RUNS_MAX * sizeof reply->runs[0]);
    return reply->runs != NULL ? reply : NULL;
}
