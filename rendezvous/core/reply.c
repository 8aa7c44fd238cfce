/* Replies to nodes and to processes that are not nodes. */
#include "rendezvous/core/reply.h"

#include "rendezvous/core/queries.h"

#include <string.h>

/* ---- any message ---- */

/* A message to the run, node and incarnation of the stamp `to`. `text` may be NULL. */
static Dpt__ServerState *new_state(struct dpt_rdzv *core, const Dpt__Stamp *to,
                                   Dpt__ServerPhase phase, uint64_t generation, const char *text)
{
    Dpt__ServerState *state = dpt_outbox_alloc(&core->out, sizeof *state);
    Dpt__Stamp *stamp = dpt_outbox_alloc(&core->out, sizeof *stamp);
    char *run = dpt_outbox_text(&core->out, to->run);
    char *node = dpt_outbox_text(&core->out, to->node);
    char *line = dpt_outbox_text(&core->out, text != NULL ? text : "");
    if (core->out.no_memory)
        return NULL;
    dpt__server_state__init(state);
    dpt__stamp__init(stamp);
    stamp->epoch = core->epoch;
    stamp->run = run;
    stamp->generation = generation;
    stamp->node = node;
    stamp->incarnation = to->incarnation;
    state->version = DPT_PROTO_VERSION;
    state->stamp = stamp;
    state->phase = phase;
    state->text = line;
    state->grant_step = -1;
    return state;
}

/* In a message 0 means that there is no step. */
static int64_t at_least_0(int64_t step)
{
    return step > 0 ? step : 0;
}

/* ---- processes that are not nodes ---- */

/* The message borrows the spec and the name of a run, which stay until the next step. */
void dpt_rdzv_answer_outsider(const struct inquiry *from, const struct answer *answer)
{
    struct dpt_rdzv *core = from->core;
    const struct run *run = answer->run;
    Dpt__ServerState *state = new_state(core, from->message->stamp, answer->phase, 0, answer->text);
    if (state == NULL)
        return;
    if (run != NULL && answer->with_spec)
        state->spec = (Dpt__RunSpec *)&run->spec;
    if (run != NULL)
        state->n_nodes = (uint32_t)run->n_nodes;
    else if (answer->with_spec && core->n_runs == 1 && !dpt_rdzv_has_ended(core->runs[0]))
        state->only_run = core->runs[0]->name;
    if (run != NULL && answer->phase == DPT__SERVER_PHASE__SERVER_EXPELLED) {
        state->saved_step = at_least_0(run->progress.saved_step);
        state->world_step = at_least_0(answer->world_step);
    }
    state->status = answer->status;
    dpt_outbox_send(&core->out, from->conn, state);
}

/* ---- the plan of one node ---- */

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
    to->tcp_addr = (char *)place->tcp_addr; /* the plan owns it and lives longer than this step */
    to->local_rank = -1;
    to->takes_state = place->takes_state;
    to->node = place->node_index;
    to->writes_log = place->writes_log;
    to->checkpoint_slot = place->checkpoint_slot;
    return to;
}

/* The parts that the plans of all nodes share. They are made at most once in a step. */
struct plan_parts {
    Dpt__PlanRank **common; /* (world_size) for nodes of other hosts */
    Dpt__PlanRank **near;   /* (world_size) for nodes of the same host: with shm_addr */
    Dpt__Plan *plan;        /* everything but `ranks`; NULL: not made yet */
};

static bool make_plan_parts(const struct run *run, struct plan_parts *ret)
{
    const struct plan *plan = &run->plan;
    uint32_t n = plan->world_size;
    ret->common = dpt_outbox_alloc(&run->core->out, n * sizeof ret->common[0]);
    ret->near = dpt_outbox_alloc(&run->core->out, n * sizeof ret->near[0]);
    ret->plan = dpt_outbox_alloc(&run->core->out, sizeof *ret->plan);
    for (uint32_t i = 0; i < n && !run->core->out.no_memory; i++) {
        ret->common[i] = new_plan_rank(run->core, plan, i);
        ret->near[i] = new_plan_rank(run->core, plan, i);
        if (ret->near[i] != NULL)
            ret->near[i]->shm_addr = (char *)plan->places[i].shm_addr;
    }
    if (run->core->out.no_memory)
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
    to->cause = (char *)run->formation.cause.text;
    to->cause_kind = (char *)dpt_rdzv_cause_name(run->formation.cause.kind);
    to->detect_ms = (uint64_t)run->formation.cause.detect_ms;
    to->steps_done_before = plan->steps_done_before;
    to->state_generation = plan->state_generation;
    to->guests = plan->guests;
    to->from_seed = plan->from_seed;
    to->farewell = plan->farewell;
    return true;
}

/* A plan lists the whole world, because a direct exchange connects a rank to every other rank. Only
 * nodes of the same host get a rank's shared-memory address. */
static Dpt__Plan *plan_for(const struct run *run, const struct node *node,
                           const struct plan_parts *parts)
{
    const struct plan *plan = &run->plan;
    Dpt__Plan *to = dpt_outbox_alloc(&run->core->out, sizeof *to);
    Dpt__PlanRank **ranks =
        dpt_outbox_alloc(&run->core->out, plan->world_size * sizeof(Dpt__PlanRank *));
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
        Dpt__PlanRank *own = dpt_outbox_alloc(&run->core->out, sizeof *own);
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

Dpt__ServerPhase dpt_rdzv_phase_told(const struct run *run)
{
    static const Dpt__ServerPhase phases[DPT_RDZV_PHASE_COUNT] = {
        [DPT_RDZV_WAITING] = DPT__SERVER_PHASE__SERVER_WAITING,
        [DPT_RDZV_SETTLING] = DPT__SERVER_PHASE__SERVER_SETTLING,
        [DPT_RDZV_PREPARING] = DPT__SERVER_PHASE__SERVER_PREPARE,
        [DPT_RDZV_PLANNED] = DPT__SERVER_PHASE__SERVER_PLAN,
        [DPT_RDZV_RUNNING] = DPT__SERVER_PHASE__SERVER_RUNNING,
        [DPT_RDZV_DRAINING] = DPT__SERVER_PHASE__SERVER_DRAINING,
        [DPT_RDZV_DONE] = DPT__SERVER_PHASE__SERVER_DONE,
        [DPT_RDZV_FAILED] = DPT__SERVER_PHASE__SERVER_FAILED};
    return phases[run->phase];
}

static Dpt__ServerPhase server_phase_for(const struct run *run, bool placed)
{
    const bool has_world = run->phase == DPT_RDZV_PLANNED || run->phase == DPT_RDZV_RUNNING ||
                           run->phase == DPT_RDZV_DRAINING;
    return has_world && !placed ? DPT__SERVER_PHASE__SERVER_SPARE : dpt_rdzv_phase_told(run);
}

static const char *text_for(const struct run *run)
{
    return run->phase == DPT_RDZV_FAILED      ? run->end_text
           : run->phase == DPT_RDZV_PREPARING ? run->formation.cause.text
           : run->phase == DPT_RDZV_SETTLING  ? dpt_rdzv_last_call_reason(run)
                                              : "";
}

/* A message to a node; its counter lets the node detect an older message. */
static Dpt__ServerState *new_node_state(const struct run *run, const struct node *node,
                                        Dpt__ServerPhase phase, const char *text)
{
    const Dpt__Stamp to = {
        .run = (char *)run->name, .node = (char *)node->id, .incarnation = node->incarnation};
    Dpt__ServerState *state = new_state(run->core, &to, phase, run->generation, text);
    if (state == NULL)
        return NULL;
    state->counter = ++run->core->counter;
    state->counter_seen = node->link.counter_seen;
    return state;
}

/* The first node that needs a plan makes `parts`. */
static void answer_node(const struct run *run, const struct node *node, struct plan_parts *parts)
{
    const struct plan *plan = &run->plan;
    const bool placed =
        !dpt_rdzv_has_ended(run) && plan->in_force && node->placed_generation == plan->generation;
    Dpt__ServerState *state =
        new_node_state(run, node, server_phase_for(run, placed), text_for(run));
    if (state == NULL)
        return;
    state->soft = run->phase == DPT_RDZV_PREPARING && run->formation.soft;
    state->n_nodes = (uint32_t)run->n_nodes;
    state->saved_step = at_least_0(run->progress.saved_step);
    state->restarts_left = dpt_rdzv_restarts_left(run);
    if (run->phase == DPT_RDZV_SETTLING) {
        const int64_t left_ms = dpt_rdzv_last_call_until_ms(run) - run->core->now_ms;
        state->last_call_ms = left_ms > 0 ? (uint32_t)left_ms : 0;
    }
    if (placed)
        state->grant_step = dpt_rdzv_granted_step(run);
    if (placed && !plan->adopted && run->phase != DPT_RDZV_PREPARING &&
        strcmp(node->plan_digest, plan->digest) != 0) {
        if (parts->plan == NULL && !make_plan_parts(run, parts))
            return;
        state->plan = plan_for(run, node, parts);
    }
    dpt_outbox_send(&run->core->out, node->link.conn, state);
}

void dpt_rdzv_answer_nodes(struct run *run)
{
    struct plan_parts parts = {0};
    if (run->speaker != NULL && !run->changed && run->speaker->link.conn != 0)
        answer_node(run, run->speaker, &parts);
    for (size_t i = 0; run->changed && i < run->n_nodes; i++)
        if (run->nodes[i]->link.conn != 0)
            answer_node(run, run->nodes[i], &parts);
    run->changed = false;
    run->speaker = NULL;
}

static void send_released(struct dpt_rdzv *core, uint64_t conn, Dpt__ServerState *state,
                          const struct departed *departed)
{
    if (state == NULL)
        return;
    state->last_holder = departed->last_holder;
    state->n_nodes = departed->n_nodes;
    dpt_outbox_send(&core->out, conn, state);
}

void dpt_rdzv_answer_released(const struct run *run, const struct node *node,
                              const struct departed *departed)
{
    if (node->link.conn != 0)
        send_released(run->core, node->link.conn,
                      new_node_state(run, node, DPT__SERVER_PHASE__SERVER_RELEASED, NULL),
                      departed);
}

void dpt_rdzv_answer_released_again(const struct inquiry *from, const struct departed *departed)
{
    send_released(
        from->core, from->conn,
        new_state(from->core, from->message->stamp, DPT__SERVER_PHASE__SERVER_RELEASED, 0, NULL),
        departed);
}
