/* Runs and nodes: found by name, made of a record, freed. */
#include "rendezvous/core/kept.h"
#include "rendezvous/core/tally.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- search ---- */

struct run *dpt_rdzv_find_run(const struct dpt_rdzv *core, const char *name)
{
    for (size_t i = 0; i < core->n_runs; i++)
        if (strcmp(core->runs[i]->name, name) == 0)
            return core->runs[i];
    return NULL;
}

struct node *dpt_rdzv_find_node(const struct run *run, const char *id)
{
    return dpt_rdzv_index_find(&run->ids, dpt_rdzv_id_hash(id));
}

struct forgotten_run *dpt_rdzv_find_forgotten(struct dpt_rdzv *core, const char *name)
{
    const uint64_t hash = dpt_rdzv_id_hash(name);
    for (size_t i = 0; i < FORGOTTEN_MAX; i++)
        if (core->forgotten[i].name_hash == hash)
            return &core->forgotten[i];
    return NULL;
}

size_t dpt_rdzv_find_denied(const struct dpt_rdzv *core, const char *run, const char *node)
{
    size_t at = 0;
    while (at < core->denied.n && (strcmp(core->denied.list[at].run, run) != 0 ||
                                   strcmp(core->denied.list[at].node, node) != 0))
        at++;
    return at;
}

/* ---- runs ---- */

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

bool dpt_rdzv_run_add(struct dpt_rdzv *core, const struct dpt_rdzv_record *record)
{
    struct run *run = calloc(1, sizeof *run);
    if (run == NULL || !copy_run_spec(run, record->spec)) {
        dpt_rdzv_run_destroy(&run);
        return false;
    }
    run->core = core;
    (void)snprintf(run->name, sizeof run->name, "%s", record->run);
    (void)snprintf(run->fingerprint, sizeof run->fingerprint, "%s", record->fingerprint);
    (void)snprintf(run->data_digest, sizeof run->data_digest, "%s", record->data_digest);
    (void)snprintf(run->checkpoint_dir_id, sizeof run->checkpoint_dir_id, "%s", record->folder);
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
        .regather_until_ms = -1,
        .members_until_ms = -1};
    run->progress = (struct progress){
        .step = -1, .step_best = -1, .final_step = -1, .saved_step = -1, .final_save_step = -1};
    run->budget.error_ms = -1;
    memcpy(run->kept.definer, record->key, sizeof run->kept.definer);
    core->runs[core->n_runs++] = run;
    return true;
}

void dpt_rdzv_rank_fini(struct rank *rank)
{
    dpt_outcomes_drop(&rank->outcome);
    free(rank->work.stacks.text);
}

void dpt_rdzv_node_destroy(struct node *node)
{
    dpt_rdzv_set_conn(node, 0);
    node->run->core->n_nodes--;
    for (uint32_t i = 0; i < node->n_ranks; i++)
        dpt_rdzv_rank_fini(&node->ranks[i]);
    free(node->ranks);
    free(node);
}

void dpt_rdzv_plan_fini(struct plan *plan)
{
    free(plan->places);
    free(plan->outcome);
    free(plan->wire);
    free(plan->wire_at);
    free(plan->rank_at);
    *plan = (struct plan){0};
}

void dpt_rdzv_run_destroy(struct run **run)
{
    if (*run == NULL)
        return;
    for (size_t i = 0; i < (*run)->n_nodes; i++)
        dpt_rdzv_node_destroy((*run)->nodes[i]);
    free((*run)->nodes);
    dpt_rdzv_index_fini(&(*run)->ids);
    dpt_rdzv_plan_fini(&(*run)->plan);
    dpt_rdzv_kept_fini(&(*run)->kept);
    free((*run)->membership.departed);
    free((*run)->spec.config_digest);
    free((*run)->spec.config_yaml);
    free((*run)->spec.user);
    free(*run);
    *run = NULL;
}

void dpt_rdzv_run_drop(struct dpt_rdzv *core, size_t i)
{
    dpt_rdzv_run_destroy(&core->runs[i]);
    core->runs[i] = core->runs[--core->n_runs];
}
