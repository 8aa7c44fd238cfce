/* How long a run waits before it forms: for its minimum of nodes, for more in the last call, for
 * nodes that an earlier server knew, and for those that were lost for silence. */
#include "rendezvous/core/internal.h"

#include <stdio.h>

/* ---- for the minimum ---- */

bool dpt_rdzv_wait_is_over(const struct dpt_rdzv *core, const struct run *run)
{
    return run->spec.wait_ms > 0 && run->waits_since_ms >= 0 &&
           core->now_ms - run->waits_since_ms >= run->spec.wait_ms;
}

void dpt_rdzv_fail_waiting(struct dpt_rdzv *core, struct run *run, uint32_t ready)
{
    char text[DPT_PROTO_TEXT_BYTES];
    (void)snprintf(text, sizeof text,
                   "it waited %lld s (cluster.wait_s) for %u nodes (cluster.nnodes), and %u of the "
                   "%zu here %s ready: start more workers, or change one of these keys",
                   (long long)((core->now_ms - run->waits_since_ms) / 1000),
                   dpt_rdzv_min_nodes(run), ready, run->n_nodes, ready == 1 ? "was" : "were");
    dpt_rdzv_fail(core, run, text);
}

/* ---- the last call ---- */

bool dpt_rdzv_is_young(const struct dpt_rdzv *core, const struct run *run)
{
    return !core->fresh && core->now_ms < core->start_ms + run->timing.lease_ms;
}

const char *dpt_rdzv_last_call_reason(const struct dpt_rdzv *core, const struct run *run)
{
    const int64_t usual_ms = run->phase_ms + run->timing.last_call_ms;
    if (!dpt_rdzv_is_young(core, run) || usual_ms >= core->start_ms + run->timing.lease_ms)
        return "";
    return "the server has just been started, and nodes that train by an earlier one may come back "
           "(dpt-rdzv --fresh: there was none)";
}

/* End of the last call. Nodes of an earlier server are given a full lease to come back, unless
 * the run is full anyway; nodes that are starting their ranks are given one timeout. */
int64_t dpt_rdzv_last_call_until_ms(const struct dpt_rdzv *core, const struct run *run)
{
    int64_t until = run->phase_ms + run->timing.last_call_ms;
    for (size_t i = 0; i < run->n_nodes; i++)
        if (!dpt_rdzv_is_suspect(core, run, run->nodes[i]) &&
            !dpt_rdzv_node_is_ready(core, run, run->nodes[i]))
            until = run->phase_ms + run->timing.timeout_ms;
    int64_t hold = core->start_ms + run->timing.lease_ms;
    return core->fresh || until > hold ? until : hold;
}

/* ---- nodes of an earlier server ---- */

const struct node *dpt_rdzv_foreigner(const struct dpt_rdzv *core, const struct run *run)
{
    for (size_t i = 0; i < run->n_nodes; i++)
        for (uint32_t k = 0; k < run->nodes[i]->n_ranks; k++) {
            const struct rank *rank = &run->nodes[i]->ranks[k];
            if (rank->phase == DPT__RANK_PHASE__RANK_RUNNING &&
                !dpt_rdzv_rank_is_member(run, rank) &&
                !dpt_rdzv_is_suspect(core, run, run->nodes[i]))
                return run->nodes[i];
        }
    return NULL;
}

/* ---- nodes that were lost for silence ---- */

static size_t graves_of(const struct run *run)
{
    return run->n_graves < GRAVES_MAX ? run->n_graves : GRAVES_MAX;
}

static bool is_anyone_awaited(const struct run *run)
{
    for (size_t i = 0; i < graves_of(run); i++)
        if (run->graves[i].awaited)
            return true;
    return false;
}

bool dpt_rdzv_awaits_return(const struct dpt_rdzv *core, const struct run *run)
{
    return core->now_ms < run->regather_until_ms && is_anyone_awaited(run);
}

int64_t dpt_rdzv_hold_leaving_ms(const struct run *run)
{
    bool is_of_use = is_anyone_awaited(run);
    for (size_t i = 0; i < run->n_nodes; i++) /* or here already, and about to be asked */
        is_of_use = is_of_use || (run->nodes[i]->returned && !run->nodes[i]->leaving);
    return run->spec.sharded && is_of_use ? run->timing.drain_ms * 3 / 4 : 0;
}

void dpt_rdzv_await_nobody(struct run *run)
{
    run->regather_until_ms = -1;
    for (size_t i = 0; i < graves_of(run); i++)
        run->graves[i].awaited = false;
    for (size_t i = 0; i < run->n_nodes; i++)
        run->nodes[i]->returned = false;
}
