/* Waiting before a generation is formed. */
#include "rendezvous/core/queries.h"

bool dpt_rdzv_is_held(const struct run *run)
{
    return run->kept.paused || run->kept.stopped;
}

int64_t dpt_rdzv_step_without_checkpoint(const struct run *run)
{
    const struct progress *progress = &run->progress;
    return progress->steps_done > 0 && progress->steps_done > progress->saved_step
               ? progress->steps_done
               : 0;
}

int64_t dpt_rdzv_save_wanted(const struct run *run)
{
    const struct operator_requests *requests = &run->requests;
    const int64_t saved_step = run->progress.saved_step;
    return requests->save_from > saved_step && run->core->now_ms < requests->save_until_ms
               ? requests->save_from
               : 0;
}

uint64_t dpt_rdzv_dump_wanted(const struct run *run)
{
    return run->core->now_ms < run->requests.dump_until_ms ? run->requests.dump : 0;
}

bool dpt_rdzv_wait_is_over(const struct run *run)
{
    const int64_t since_ms = run->formation.waits_since_ms;
    return run->spec.wait_ms > 0 && since_ms >= 0 &&
           run->core->now_ms - since_ms >= run->spec.wait_ms;
}

/* ---- an earlier server ---- */

bool dpt_rdzv_is_young(const struct run *run)
{
    return !run->core->fresh && run->core->now_ms < run->core->start_ms + run->timing.lease_ms;
}

const char *dpt_rdzv_last_call_reason(const struct run *run)
{
    const int64_t usual_ms = run->phase_ms + run->timing.last_call_ms;
    if (!dpt_rdzv_is_young(run) || usual_ms >= run->core->start_ms + run->timing.lease_ms)
        return "";
    return "the server has just been started, and nodes that train by an earlier one may come back "
           "(dpt-rdzv --fresh: there was none)";
}

/* The last call is one timeout if nodes still start their ranks. It lasts at least for the first
 * lease of this server, so that nodes of an earlier server can come back. */
int64_t dpt_rdzv_last_call_until_ms(const struct run *run)
{
    int64_t until_ms = run->phase_ms + run->timing.last_call_ms;
    if (dpt_rdzv_is_any_unready(run))
        until_ms = run->phase_ms + run->timing.timeout_ms;
    const int64_t young_ms = run->core->start_ms + run->timing.lease_ms;
    return run->core->fresh || until_ms > young_ms ? until_ms : young_ms;
}

const struct node *dpt_rdzv_foreign_node(const struct run *run)
{
    struct rank_cursor at = {0};
    if (run->membership.n_foreign == 0)
        return NULL;
    for (const struct rank *rank; (rank = dpt_rdzv_next_rank(run, &at)) != NULL;)
        if (rank->phase == DPT__RANK_PHASE__RANK_RUNNING && !dpt_rdzv_rank_is_member(rank) &&
            !dpt_rdzv_is_suspect(rank->node))
            return rank->node;
    return NULL;
}

/* ---- nodes that were removed for silence ---- */

bool dpt_rdzv_awaits_return(const struct run *run)
{
    return run->core->now_ms < run->formation.regather_until_ms && run->membership.n_awaited > 0;
}

bool dpt_rdzv_is_return_possible(const struct run *run)
{
    for (size_t i = 0; i < run->n_nodes; i++)
        if (run->nodes[i]->returned && !run->nodes[i]->leaving)
            return true;
    return run->membership.n_awaited > 0;
}

void dpt_rdzv_end_awaiting(struct run *run)
{
    run->formation.regather_until_ms = -1;
    for (size_t i = 0; i < run->n_nodes; i++)
        run->nodes[i]->returned = false;
}
