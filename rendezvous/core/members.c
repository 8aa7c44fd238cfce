/* Runs and nodes: made from an agent's message, found by name, removed. */
#include "rendezvous/core/run_state.h"

#include "base/hash.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* ---- runs ---- */

struct run *dpt_rdzv_find_run(const struct dpt_rdzv *core, const char *name)
{
    for (size_t i = 0; i < core->n_runs; i++)
        if (strcmp(core->runs[i]->name, name) == 0)
            return core->runs[i];
    return NULL;
}

struct forgotten_run *dpt_rdzv_find_forgotten(struct dpt_rdzv *core, const char *name)
{
    const uint64_t hash = dpt_rdzv_id_hash(name);
    for (size_t i = 0; i < FORGOTTEN_MAX; i++)
        if (core->forgotten[i].name_hash == hash)
            return &core->forgotten[i];
    return NULL;
}

/* Copies the spec. The run owns the copied strings. False: no memory. */
static bool copy_run_spec(struct run *run, const Dpt__RunSpec *spec)
{
    run->spec = *spec;
    /* Fields of a newer version are not copied: their memory belongs to the message. */
    run->spec.base.n_unknown_fields = 0;
    run->spec.base.unknown_fields = NULL;
    run->spec.config_digest = strdup(spec->config_digest);
    run->spec.config_yaml = strdup(spec->config_yaml);
    run->spec.user = strdup(spec->user);
    return run->spec.config_digest != NULL && run->spec.config_yaml != NULL &&
           run->spec.user != NULL;
}

struct run *dpt_rdzv_run_create(struct dpt_rdzv *core, const Dpt__AgentState *message)
{
    struct run *run = calloc(1, sizeof *run);
    if (run == NULL || !copy_run_spec(run, message->spec)) {
        dpt_rdzv_run_destroy(&run);
        core->out.no_memory = true;
        return NULL;
    }
    run->core = core;
    (void)snprintf(run->name, sizeof run->name, "%s", message->stamp->run);
    (void)snprintf(run->fingerprint, sizeof run->fingerprint, "%s", message->fingerprint);
    (void)snprintf(run->data_digest, sizeof run->data_digest, "%s", message->data_digest);
    (void)snprintf(run->checkpoint_dir_id, sizeof run->checkpoint_dir_id, "%s",
                   message->checkpoint_dir_id);
    run->timing = dpt_timing_from(run->spec.timeout_ms, run->spec.drain_ms);
    run->phase = DPT_RDZV_WAITING;
    run->phase_ms = core->now_ms;
    run->membership.empty_ms = core->now_ms;
    const struct forgotten_run *earlier = dpt_rdzv_find_forgotten(core, run->name);
    run->formation = (struct formation){
        .generation_floor = earlier != NULL ? earlier->generation : core->generation_floor,
        .ran_before = earlier != NULL ? earlier->run_generation : 0,
        .waits_since_ms = core->now_ms,
        .adopt_until_ms = -1,
        .regather_until_ms = -1};
    run->progress = (struct progress){.step = -1,
                                      .step_best = -1,
                                      .final_step = -1,
                                      .grant_step = -1,
                                      .saved_step = -1,
                                      .farewell_step = -1};
    run->budget.error_ms = -1;
    core->runs[core->n_runs++] = run;
    char timing[DPT_PROTO_TEXT_BYTES];
    dpt_timing_print(&run->timing, timing, sizeof timing);
    dpt_rdzv_log(run, DPT_LOG_INFO, "new run of %u to %u nodes, %s", run->spec.min_nodes,
                 run->spec.max_nodes, timing);
    dpt_rdzv_record(run, DPT_RDZV_RECORD_RUN, 0, -1);
    return run;
}

static void node_destroy(struct node *node)
{
    for (uint32_t i = 0; i < node->n_ranks; i++)
        free(node->ranks[i].outcome);
    free(node->ranks);
    free(node);
}

void dpt_rdzv_plan_fini(struct plan *plan)
{
    free(plan->places);
    free(plan->outcome);
    *plan = (struct plan){0};
}

void dpt_rdzv_run_destroy(struct run **run)
{
    if (*run == NULL)
        return;
    for (size_t i = 0; i < (*run)->n_nodes; i++)
        node_destroy((*run)->nodes[i]);
    dpt_rdzv_plan_fini(&(*run)->plan);
    free((*run)->spec.config_digest);
    free((*run)->spec.config_yaml);
    free((*run)->spec.user);
    free(*run);
    *run = NULL;
}

void dpt_rdzv_forget_run(struct dpt_rdzv *core, size_t i)
{
    struct run *run = core->runs[i];
    const struct formation *formation = &run->formation;
    struct forgotten_run *earlier = dpt_rdzv_find_forgotten(core, run->name);
    struct forgotten_run *entry = &core->forgotten[core->n_forgotten++ % FORGOTTEN_MAX];
    if (earlier != NULL)
        *earlier = (struct forgotten_run){0}; /* this run began above its generations */
    core->generation_floor = dpt_rdzv_newer(core->generation_floor, entry->generation);
    *entry = (struct forgotten_run){
        .name_hash = dpt_rdzv_id_hash(run->name),
        .generation = dpt_rdzv_newer(run->generation, dpt_rdzv_newer(formation->generation_high,
                                                                     formation->generation_floor)),
        .run_generation = dpt_rdzv_newer(formation->run_generation, formation->ran_before),
        .ended = dpt_rdzv_has_ended(run),
        .failed = run->phase == DPT_RDZV_FAILED};
    dpt_rdzv_run_destroy(&run);
    core->runs[i] = core->runs[--core->n_runs];
}

/* ---- nodes ---- */

struct node *dpt_rdzv_find_node(const struct run *run, const char *id)
{
    const uint64_t hash = dpt_rdzv_id_hash(id);
    for (size_t i = 0; i < run->n_nodes; i++)
        if (run->nodes[i]->id_hash == hash)
            return run->nodes[i];
    return NULL;
}

struct node *dpt_rdzv_node_create(struct run *run, const Dpt__AgentState *message)
{
    DPT_ASSERT(run->n_nodes < DPT_PROTO_NODES_MAX);
    struct node *node = calloc(1, sizeof *node);
    if (node == NULL) {
        run->core->out.no_memory = true;
        return NULL;
    }
    node->run = run;
    (void)snprintf(node->id, sizeof node->id, "%s", message->stamp->node);
    node->id_hash = dpt_rdzv_id_hash(node->id);
    node->incarnation = message->stamp->incarnation;
    dpt_rdzv_secret_of(message, node->secret);
    node->joined = ++run->membership.joins;
    node->joined_ms = node->link.heard_ms = run->core->now_ms;
    node->link.heard_listened_ms = run->membership.listened_ms;
    node->link.broken_ms = node->ready_since_ms = -1;
    node->crashes = message->crashes; /* earlier crashes do not count */
    run->nodes[run->n_nodes++] = node;
    run->changed = true; /* replies to the other nodes contain the number of nodes */
    const bool back = message->stamp->epoch == run->core->epoch && message->stamp->generation > 0;
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

struct departed *dpt_rdzv_remove_node(struct run *run, struct node *node)
{
    struct membership *membership = &run->membership;
    struct departed *departed = &membership->departed[membership->n_departed++ % DEPARTED_MAX];
    *departed = (struct departed){.id_hash = node->id_hash,
                                  .incarnation = node->incarnation,
                                  .cut_off = node->link.cut_off,
                                  .awaited = node->link.cut_off && dpt_rdzv_may_hold_newest(node),
                                  .counter_seen = node->link.counter_seen};
    memcpy(departed->secret, node->secret, sizeof departed->secret);
    for (uint32_t i = 0; i < run->plan.world_size; i++)
        if (run->plan.places[i].node == node)
            run->plan.places[i].node = NULL;
    for (uint32_t i = 0; i < node->n_ranks; i++) {
        if (dpt_rdzv_rank_is_alive(&node->ranks[i]))
            dpt_rdzv_note_loss(&node->ranks[i]);
        dpt_rdzv_count_rank(&node->ranks[i], -1);
    }
    membership->n_leaving -= node->leaving;
    if (run->speaker == node)
        run->speaker = NULL;
    size_t at = 0;
    while (run->nodes[at] != node)
        at++;
    memmove(&run->nodes[at], &run->nodes[at + 1], (run->n_nodes - at - 1) * sizeof run->nodes[0]);
    run->n_nodes--;
    node_destroy(node);
    return departed;
}
