/* What an agent is told: the whole state of its run as far as it concerns it, always. */
#include "rendezvous/core/internal.h"

#include <stdio.h>
#include <string.h>

static Dpt__ServerState *new_state(struct dpt_rdzv *core, Dpt__ServerPhase phase,
                                   uint64_t generation, const char *run_name, const char *node_id,
                                   uint64_t incarnation, const char *text)
{
    Dpt__ServerState *state = dpt_outbox_alloc(&core->out, sizeof *state);
    Dpt__Stamp *stamp = dpt_outbox_alloc(&core->out, sizeof *stamp);
    char *run = dpt_outbox_text(&core->out, run_name);
    char *node = dpt_outbox_text(&core->out, node_id);
    char *line = dpt_outbox_text(&core->out, text);
    if (state == NULL || stamp == NULL || run == NULL || node == NULL || line == NULL)
        return NULL;
    dpt__server_state__init(state);
    dpt__stamp__init(stamp);
    stamp->epoch = core->epoch;
    stamp->run = run;
    stamp->generation = generation;
    stamp->node = node;
    stamp->incarnation = incarnation;
    state->version = DPT_PROTO_VERSION;
    state->stamp = stamp;
    state->phase = phase;
    state->text = line;
    state->grant_step = -1;
    return state;
}

static Dpt__RunSpec *copy_spec(struct dpt_rdzv *core, const Dpt__RunSpec *spec)
{
    Dpt__RunSpec *copy = dpt_outbox_alloc(&core->out, sizeof *copy);
    if (copy == NULL)
        return NULL;
    *copy = *spec;
    copy->config_digest = dpt_outbox_text(&core->out, spec->config_digest);
    copy->config_yaml = dpt_outbox_text(&core->out, spec->config_yaml);
    copy->user = dpt_outbox_text(&core->out, spec->user);
    return core->out.no_memory ? NULL : copy;
}

static bool has_ended(const struct run *run)
{
    return run->phase == DPT_RDZV_DONE || run->phase == DPT_RDZV_FAILED;
}

void dpt_rdzv_answer_stranger(struct dpt_rdzv *core, uint64_t conn, const Dpt__Stamp *to,
                              Dpt__ServerPhase phase, const struct run *run, bool with_spec,
                              const char *text)
{
    Dpt__ServerState *state = new_state(core, phase, 0, to->run, to->node, to->incarnation, text);
    if (state == NULL)
        return;
    if (run != NULL && with_spec)
        state->spec = copy_spec(core, &run->spec);
    if (run != NULL)
        state->n_nodes = (uint32_t)run->n_nodes;
    else if (with_spec && core->n_runs == 1 && !has_ended(core->runs[0]))
        state->only_run = dpt_outbox_text(&core->out, core->runs[0]->name);
    if (!core->out.no_memory)
        dpt_outbox_send(&core->out, conn, state);
}

void dpt_rdzv_expel(struct dpt_rdzv *core, uint64_t conn, const Dpt__Stamp *to,
                    const struct run *run, int64_t world_step, const char *text)
{
    Dpt__ServerState *state = new_state(core, DPT__SERVER_PHASE__SERVER_EXPELLED, 0, to->run,
                                        to->node, to->incarnation, text);
    if (state == NULL)
        return;
    if (run != NULL) {
        state->n_nodes = (uint32_t)run->n_nodes;
        state->saved_step = run->saved_step > 0 ? run->saved_step : 0;
        state->world_step = world_step > 0 ? world_step : 0;
    }
    dpt_outbox_send(&core->out, conn, state);
}

/* ---- the plan as one node is told it ---- */

static Dpt__PlanRank *new_plan_rank(struct dpt_rdzv *core, const struct plan *plan, uint32_t rank)
{
    Dpt__PlanRank *to = dpt_outbox_alloc(&core->out, sizeof *to);
    if (to == NULL)
        return NULL;
    const struct place *place = &plan->places[rank];
    dpt__plan_rank__init(to);
    to->rank = rank;
    to->position = place->position;
    to->host = place->host;
    to->tcp_addr = (char *)place->tcp_addr; /* lives as long as the plan, beyond this step */
    to->local_rank = -1;
    to->takes_state = place->takes_state;
    to->node = place->node_index;
    to->writes_log = place->writes_log;
    to->checkpoint_slot = place->checkpoint_slot;
    return to;
}

/* Entries for ranks of other hosts are one for all nodes, made once a step. */
struct plan_parts {
    Dpt__PlanRank **common; /* (world_size) */
    Dpt__PlanRank **near;   /* (world_size) with the address that works on its host */
    Dpt__Plan *plan;        /* everything but `ranks` */
};

static bool make_parts(struct dpt_rdzv *core, const struct run *run, struct plan_parts *ret)
{
    const struct plan *plan = &run->plan;
    uint32_t n = plan->world_size;
    ret->common = dpt_outbox_alloc(&core->out, n * sizeof ret->common[0]);
    ret->near = dpt_outbox_alloc(&core->out, n * sizeof ret->near[0]);
    ret->plan = dpt_outbox_alloc(&core->out, sizeof *ret->plan);
    for (uint32_t i = 0; i < n && !core->out.no_memory; i++) {
        ret->common[i] = new_plan_rank(core, plan, i);
        ret->near[i] = new_plan_rank(core, plan, i);
        if (ret->near[i] != NULL)
            ret->near[i]->shm_addr = (char *)plan->places[i].shm_addr;
    }
    if (core->out.no_memory)
        return false;
    Dpt__Plan *to = ret->plan;
    dpt__plan__init(to);
    to->generation = plan->generation;
    to->nonce = (ProtobufCBinaryData){sizeof plan->nonce, (uint8_t *)plan->nonce};
    to->world_size = n;
    to->n_nodes = plan->n_nodes;
    to->n_hosts = plan->n_hosts;
    to->digest = (char *)plan->digest;
    to->resume_step = plan->resume_step;
    to->load_checkpoint = plan->load_checkpoint;
    to->outcome = (ProtobufCBinaryData){plan->outcome_bytes, plan->outcome};
    to->checkpoint_writers = plan->checkpoint_writers;
    to->cause = (char *)run->cause.text;
    to->cause_kind = (char *)dpt_rdzv_cause_name(run->cause.kind);
    to->detect_ms = (uint64_t)run->cause.detect_ms;
    to->steps_done_before = plan->steps_done_before;
    to->state_generation = plan->state_generation;
    to->guests = plan->guests;
    to->from_seed = plan->from_seed;
    to->farewell = plan->farewell;
    return true;
}

/* A direct exchange talks to every rank, so a plan lists the whole world (at most
 * DPT_PROTO_WORLD_MAX); addresses of shared memory go to ranks of the same host alone. */
static Dpt__Plan *plan_for(struct dpt_rdzv *core, const struct run *run, const struct node *node,
                           const struct plan_parts *parts)
{
    const struct plan *plan = &run->plan;
    Dpt__Plan *to = dpt_outbox_alloc(&core->out, sizeof *to);
    Dpt__PlanRank **ranks =
        dpt_outbox_alloc(&core->out, plan->world_size * sizeof(Dpt__PlanRank *));
    if (to == NULL || ranks == NULL)
        return NULL;
    *to = *parts->plan;
    to->ranks = ranks;
    to->n_ranks = plan->world_size;
    uint32_t host = UINT32_MAX;
    for (uint32_t i = 0; i < plan->world_size; i++)
        if (plan->places[i].node == node)
            host = plan->places[i].host;
    for (uint32_t i = 0; i < plan->world_size; i++) {
        ranks[i] = plan->places[i].host == host ? parts->near[i] : parts->common[i];
        if (plan->places[i].node != node)
            continue;
        Dpt__PlanRank *own = dpt_outbox_alloc(&core->out, sizeof *own);
        if (own == NULL)
            return NULL;
        *own = *parts->near[i];
        own->local_rank = (int32_t)plan->places[i].local_rank;
        own->spawn = plan->places[i].spawn;
        ranks[i] = own;
    }
    return to;
}

/* ---- nodes ---- */

static bool has_place(const struct run *run, const struct node *node)
{
    for (uint32_t i = 0; i < run->plan.world_size; i++)
        if (run->plan.places[i].node == node)
            return true;
    return false;
}

static Dpt__ServerPhase phase_for(const struct run *run, bool member)
{
    switch (run->phase) {
    case DPT_RDZV_SETTLING:
        return DPT__SERVER_PHASE__SERVER_SETTLING;
    case DPT_RDZV_PREPARING:
        return DPT__SERVER_PHASE__SERVER_PREPARE;
    case DPT_RDZV_PLANNED:
        return member ? DPT__SERVER_PHASE__SERVER_PLAN : DPT__SERVER_PHASE__SERVER_SPARE;
    case DPT_RDZV_RUNNING:
        return member ? DPT__SERVER_PHASE__SERVER_RUNNING : DPT__SERVER_PHASE__SERVER_SPARE;
    case DPT_RDZV_DRAINING:
        return member ? DPT__SERVER_PHASE__SERVER_DRAINING : DPT__SERVER_PHASE__SERVER_SPARE;
    case DPT_RDZV_DONE:
        return DPT__SERVER_PHASE__SERVER_DONE;
    case DPT_RDZV_FAILED:
        return DPT__SERVER_PHASE__SERVER_FAILED;
    default:
        return DPT__SERVER_PHASE__SERVER_WAITING;
    }
}

static void answer_node(struct dpt_rdzv *core, const struct run *run, struct node *node,
                        const struct plan_parts *parts)
{
    bool placed = run->phase != DPT_RDZV_DONE && run->phase != DPT_RDZV_FAILED &&
                  run->plan.in_force && has_place(run, node);
    Dpt__ServerState *state = new_state(
        core, phase_for(run, placed), run->generation, run->name, node->id, node->incarnation,
        run->phase == DPT_RDZV_FAILED      ? run->end_text
        : run->phase == DPT_RDZV_PREPARING ? run->cause.text
        : run->phase == DPT_RDZV_SETTLING  ? dpt_rdzv_last_call_reason(core, run)
                                           : "");
    if (state == NULL)
        return;
    state->counter = ++core->counter;
    state->counter_seen = node->counter_seen;
    state->soft = run->phase == DPT_RDZV_PREPARING && run->soft;
    state->n_nodes = (uint32_t)run->n_nodes;
    state->saved_step = run->saved_step > 0 ? run->saved_step : 0;
    state->restarts_left = run->spec.max_restarts > run->restarts_used
                               ? run->spec.max_restarts - run->restarts_used
                               : 0;
    if (run->phase == DPT_RDZV_SETTLING) {
        int64_t left_ms = dpt_rdzv_last_call_until_ms(core, run) - core->now_ms;
        state->last_call_ms = left_ms > 0 ? (uint32_t)left_ms : 0;
    }
    if (placed)
        state->grant_step = run->grant_step;
    if (placed && parts != NULL && run->phase != DPT_RDZV_PREPARING &&
        strcmp(node->plan_digest, run->plan.digest) != 0)
        state->plan = plan_for(core, run, node, parts);
    dpt_outbox_send(&core->out, node->conn, state);
}

/* Steps that no checkpoint has died with processes, and nobody holds them whole: of this node where
 * it lost a part, or where no other has a replica, be it one that has not quiesced yet. */
static bool has_lost_steps(const struct run *run, const struct node *node)
{
    if (run->steps_done <= run->saved_step)
        return false;
    for (size_t i = 0; run->spec.sharded && i < run->n_losses; i++)
        if (strcmp(run->losses[i].node, node->id) == 0)
            return true;
    for (size_t i = 0; i < run->n_nodes; i++)
        for (uint32_t k = 0; run->nodes[i] != node && k < run->nodes[i]->n_ranks; k++)
            if (dpt_rdzv_rank_is_alive(&run->nodes[i]->ranks[k]) &&
                run->nodes[i]->ranks[k].step_applied > run->saved_step)
                return false;
    return !run->spec.sharded;
}

/* With a generation in force its ranks have taken over what this node knew; else those who are left
 * may lack a part of the state, or all of it. What a farewell could not save, since its one folder
 * took nothing, goes with all that leave: each tries its own. */
static bool is_last_holder(struct dpt_rdzv *core, const struct run *run, const struct node *node)
{
    if (run->plan.in_force)
        return false;
    const int64_t step = dpt_rdzv_step_held(core, run, NULL);
    if (run->farewell_step > run->saved_step)
        return dpt_rdzv_step_staying(core, run) < run->farewell_step;
    if (step <= run->saved_step)
        return has_lost_steps(run, node);
    return dpt_rdzv_step_held(core, run, node) < step;
}

void dpt_rdzv_release(struct dpt_rdzv *core, struct run *run, struct node *node)
{
    const bool last_holder = is_last_holder(core, run, node);
    const uint32_t n_nodes =
        last_holder && run->farewell_step > run->saved_step ? run->plan.n_nodes : 0;
    Dpt__ServerState *state = new_state(core, DPT__SERVER_PHASE__SERVER_RELEASED, run->generation,
                                        run->name, node->id, node->incarnation, "");
    if (state != NULL && node->conn != 0) {
        state->counter = ++core->counter;
        state->counter_seen = node->counter_seen;
        state->last_holder = last_holder;
        state->n_nodes = n_nodes;
        dpt_outbox_send(&core->out, node->conn, state);
    }
    dpt_outbox_log(&core->out, DPT_LOG_INFO, run->name, run->generation, "node %s may go",
                   node->id);
    struct grave *grave = dpt_rdzv_remove(run, node, true);
    grave->last_holder = last_holder;
    grave->n_nodes = n_nodes;
    run->changed = true;
}

void dpt_rdzv_release_again(struct dpt_rdzv *core, uint64_t conn, const Dpt__Stamp *to,
                            const struct grave *grave)
{
    Dpt__ServerState *state = new_state(core, DPT__SERVER_PHASE__SERVER_RELEASED, 0, to->run,
                                        to->node, to->incarnation, "");
    if (state == NULL)
        return;
    state->last_holder = grave->last_holder;
    state->n_nodes = grave->n_nodes;
    dpt_outbox_send(&core->out, conn, state);
}

void dpt_rdzv_answer_nodes(struct dpt_rdzv *core, struct run *run)
{
    struct plan_parts parts;
    bool parts_made = false;
    for (size_t i = 0; i < run->n_nodes; i++) {
        struct node *node = run->nodes[i];
        if (node->conn == 0 || !(node->answer || run->changed))
            continue;
        if (!parts_made && run->plan.in_force && !run->plan.adopted) {
            if (!make_parts(core, run, &parts))
                return;
            parts_made = true;
        }
        answer_node(core, run, node, parts_made ? &parts : NULL);
        node->answer = false;
    }
    run->changed = false;
}
