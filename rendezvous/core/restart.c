/* The first lease of a server that has the journal of an earlier one. */
#include "rendezvous/core/restart.h"

#include "rendezvous/core/apply.h"
#include "rendezvous/core/kept.h"
#include "rendezvous/core/queries.h"

static bool is_back(const struct run *run, const struct kept_node *node)
{
    return dpt_rdzv_index_find(&run->ids, node->id_hash) != NULL;
}

/* True: a member is not back that the next generation should have. These are the members that may
 * hold the newest state, and before the first generation has run all. Members that come back in the
 * order of joining or in any random order leave one that is missing near the end of the list. */
static bool is_missing(const struct run *run, const struct kept_node *node)
{
    return (run->kept.ran == 0 || dpt_rdzv_kept_may_hold_newest(run, node)) && !is_back(run, node);
}

static bool is_any_missing(struct run *run)
{
    struct kept *kept = &run->kept;
    if (kept->n_nodes == run->n_nodes) /* each node is a member */
        return false;
    if (kept->missing != NULL && is_missing(run, kept->missing))
        return true; /* the same one as at the last question */
    kept->missing = kept->last;
    while (kept->missing != NULL && !is_missing(run, kept->missing))
        kept->missing = kept->missing->before;
    return kept->missing != NULL;
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
    if (run->generation > 0 && is_any_missing(run))
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

bool dpt_rdzv_awaits_members(struct run *run)
{
    return dpt_rdzv_knows_members(run) && is_any_missing(run);
}

bool dpt_rdzv_was_forming(const struct run *run)
{
    return dpt_rdzv_knows_members(run) && run->formation.run_generation == 0 &&
           run->generation > run->kept.ran;
}

void dpt_rdzv_give_up_members(struct run *run)
{
    struct formation *formation = &run->formation;
    if (formation->members_until_ms < 0 || dpt_rdzv_listened_ms(run) < formation->members_until_ms)
        return;
    formation->members_until_ms = -1;
    for (const struct kept_node *node = run->kept.last, *before; node != NULL; node = before) {
        before = node->before;
        if (is_back(run, node))
            continue;
        if (!dpt_rdzv_has_ended(run))
            dpt_rdzv_log(
                run, DPT_LOG_WARN,
                "node %s lost: it did not come back within a lease of the server's restart",
                node->id);
        dpt_rdzv_remove_kept(run, node, true, "it did not come back after the server's restart");
    }
}
