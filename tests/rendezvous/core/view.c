/* Reads the state of the server's machine. */
#include "tests/rendezvous/core/view.h"

#include "rendezvous/core/queries.h"
#include "rendezvous/core/run_state.h"

#include <string.h>

const char *dpt_rdzv_phase_name(enum dpt_rdzv_phase phase)
{
    static const char *const names[DPT_RDZV_PHASE_COUNT] = {
        "WAITING", "SETTLING", "PREPARING", "PLANNED", "RUNNING", "DRAINING", "DONE", "FAILED"};
    return (unsigned)phase < DPT_RDZV_PHASE_COUNT ? names[phase] : "?";
}

size_t dpt_rdzv_runs(const struct dpt_rdzv *core)
{
    return core->n_runs;
}

static void copy_text(char *to, size_t to_bytes, const char *from)
{
    const size_t bytes = strnlen(from, to_bytes - 1);
    memcpy(to, from, bytes);
    to[bytes] = '\0';
}

void dpt_rdzv_run_view(const struct dpt_rdzv *core, size_t i, struct dpt_rdzv_run_view *ret)
{
    DPT_ASSERT(i < core->n_runs);
    const struct run *run = core->runs[i];
    const bool in_force = run->plan.in_force;
    const bool forming = run->phase == DPT_RDZV_PREPARING || run->phase == DPT_RDZV_PLANNED;
    *ret = (struct dpt_rdzv_run_view){
        .phase = run->phase,
        .generation = run->generation,
        .run_generation = run->kept.ran,
        .nodes = (uint32_t)run->n_nodes,
        .world_size = in_force ? run->plan.world_size : 0,
        .restarts_left = dpt_rdzv_restarts_left(run),
        .step = run->progress.step,
        .held = dpt_rdzv_is_held(run),
        .redundancy = forming                                ? DPT_RDZV_REDUNDANCY_REBUILDING
                      : in_force && run->progress.redundant  ? DPT_RDZV_REDUNDANCY_WHOLE
                      : in_force && run->progress.rebuilding ? DPT_RDZV_REDUNDANCY_REBUILDING
                                                             : DPT_RDZV_REDUNDANCY_NONE,
    };
    copy_text(ret->run, sizeof ret->run, run->name);
    copy_text(ret->plan_digest, sizeof ret->plan_digest, in_force ? run->plan.digest : "");
    copy_text(ret->text, sizeof ret->text,
              dpt_rdzv_has_ended(run) ? run->end_text : run->formation.cause.text);
    copy_text(ret->cause_kind, sizeof ret->cause_kind,
              dpt_rdzv_cause_name(run->formation.cause.kind));
}

int dpt_rdzv_rank_of(const struct dpt_rdzv *core, const struct dpt_rdzv_process *process)
{
    const struct run *run = dpt_rdzv_find_run(core, process->run);
    for (uint32_t r = 0; run != NULL && run->plan.in_force && r < run->plan.world_size; r++) {
        const struct place *place = &run->plan.places[r];
        if (place->node != NULL && place->node->incarnation == process->incarnation &&
            place->local_rank == process->local_rank && place->spawn == process->spawn &&
            strcmp(place->node->id, process->node) == 0)
            return (int)r;
    }
    return -1;
}
