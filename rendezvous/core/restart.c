/* The first lease of a server that has the journal of an earlier one. */
#include "rendezvous/core/restart.h"

#include "rendezvous/core/apply.h"
#include "rendezvous/core/queries.h"

/* The number of members that are not back and that the next generation should have: those that may
 * hold the newest state, and before the first generation has run all. */
static size_t count_missing(const struct run *run)
{
    const struct kept *kept = &run->kept;
    size_t n = 0;
    for (size_t i = 0; i < kept->n_nodes; i++)
        n += (kept->ran == 0 || dpt_rdzv_kept_may_hold_newest(run, &kept->nodes[i])) &&
             dpt_rdzv_find_node(run, kept->nodes[i].id) == NULL;
    return n;
}

static void begin_run(struct run *run)
{
    const struct kept *kept = &run->kept;
    struct formation *formation = &run->formation;
    /* Of the clock of an earlier server nothing is known, but that the error came first. */
    run->budget.error_ms = run->budget.used > 0 && run->budget.first_error[0] != '\0' ? 0 : -1;
    if (kept->n_nodes > 0)
        formation->members_until_ms = dpt_rdzv_listened_ms(run) + run->timing.lease_ms;
    if (kept->ended) {
        run->phase = kept->failed ? DPT_RDZV_FAILED : DPT_RDZV_DONE;
        dpt_rdzv_log(run, DPT_LOG_INFO, "the journal knows this run: it has ended");
        return;
    }
    if (run->generation > 0 && count_missing(run) > 0)
        formation->adopt_until_ms = run->core->now_ms + run->timing.lease_ms;
    dpt_rdzv_log(
        run, DPT_LOG_INFO,
        "the journal knows this run: generation %llu, saved step %lld, %zu node%s may come "
        "back within %.1f s",
        (unsigned long long)run->generation, (long long)run->progress.saved_step, kept->n_nodes,
        kept->n_nodes == 1 ? "" : "s", (double)run->timing.lease_ms / 1000.0);
}

void dpt_rdzv_begin(struct dpt_rdzv *core)
{
    core->started = true;
    dpt_rdzv_decide(core, (struct dpt_rdzv_record){
                              .kind = DPT_RDZV_RECORD_START, .step = -1, .number = core->epoch});
    for (size_t i = 0; i < core->n_runs; i++)
        begin_run(core->runs[i]);
}

bool dpt_rdzv_knows_members(const struct run *run)
{
    return run->formation.members_until_ms >= 0 && !run->formation.outdated;
}

bool dpt_rdzv_awaits_members(const struct run *run)
{
    return dpt_rdzv_knows_members(run) && count_missing(run) > 0;
}

bool dpt_rdzv_was_forming(const struct run *run)
{
    return dpt_rdzv_knows_members(run) && run->formation.run_generation == 0 &&
           run->generation > run->kept.ran;
}

void dpt_rdzv_give_up_members(struct run *run)
{
    const struct kept *kept = &run->kept;
    struct formation *formation = &run->formation;
    if (formation->members_until_ms < 0 || dpt_rdzv_listened_ms(run) < formation->members_until_ms)
        return;
    formation->members_until_ms = -1;
    for (size_t i = kept->n_nodes; i-- > 0;) {
        const struct kept_node *node = &kept->nodes[i];
        if (dpt_rdzv_find_node(run, node->id) != NULL)
            continue;
        if (!dpt_rdzv_has_ended(run))
            dpt_rdzv_log(
                run, DPT_LOG_WARN,
                "node %s lost: it did not come back within a lease of the server's restart",
                node->id);
        dpt_rdzv_remove_kept(run, node, true, "it did not come back after the server's restart");
        run->changed = true;
    }
}
