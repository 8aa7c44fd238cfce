/* A process that is not counted in: it is refused, expelled, told an end, or taken in, with its
 * state when it comes back from a silence in which nobody went on without it. */
#include "rendezvous/core/internal.h"

/* ---- ends ---- */

/* A straggler of a run that ended and was forgotten, whether or not another has its name by now. */
static bool tell_end(struct dpt_rdzv *core, uint64_t conn, const struct run *newer,
                     const Dpt__AgentState *message)
{
    const Dpt__Stamp *stamp = message->stamp;
    const struct forgotten_run *run = dpt_rdzv_find_forgotten(core, stamp->run);
    const uint64_t ran = dpt_rdzv_newest_ran(message);
    if (run == NULL || !run->ended || stamp->epoch != core->epoch ||
        (newer != NULL && (ran == 0 || ran > run->run_generation)))
        return false;
    dpt_rdzv_answer_stranger(core, conn, stamp,
                             run->failed ? DPT__SERVER_PHASE__SERVER_FAILED
                                         : DPT__SERVER_PHASE__SERVER_DONE,
                             NULL, false, run->failed ? "it ended while this node was away" : "");
    return true;
}

/* The run has ended, and a process that is not counted in is told so. */
static bool tell_run_end(struct dpt_rdzv *core, uint64_t conn, const struct run *run,
                         const Dpt__Stamp *stamp)
{
    if (run->phase != DPT_RDZV_DONE && run->phase != DPT_RDZV_FAILED)
        return false;
    dpt_rdzv_answer_stranger(core, conn, stamp,
                             run->phase == DPT_RDZV_DONE ? DPT__SERVER_PHASE__SERVER_DONE
                                                         : DPT__SERVER_PHASE__SERVER_FAILED,
                             run, false, run->end_text);
    return true;
}

/* The run has ended, and a process with another config brings the next one of that name: it waits
 * until all have gone and is not told an end that is not its own. */
static bool waits_for_name(struct dpt_rdzv *core, uint64_t conn, const struct run *run,
                           const Dpt__AgentState *message)
{
    struct refusal refusal;
    if ((run->phase != DPT_RDZV_DONE && run->phase != DPT_RDZV_FAILED) || message->spec == NULL ||
        !dpt_rdzv_differs(run, message, &refusal))
        return false;
    dpt_rdzv_answer_stranger(core, conn, message->stamp, DPT__SERVER_PHASE__SERVER_WAITING, NULL,
                             false, "the run of this name has ended, and its nodes are leaving");
    return true;
}

/* ---- coming in ---- */

static struct node *join(struct dpt_rdzv *core, uint64_t conn, struct run *run, struct node *former,
                         const Dpt__AgentState *message)
{
    struct refusal refusal;
    if (dpt_rdzv_refuses(core, run, former, message, &refusal)) {
        dpt_outbox_log(&core->out, DPT_LOG_WARN, run->name, run->generation, "node %s refused: %s",
                       message->stamp->node, refusal.text);
        dpt_rdzv_answer_stranger(core, conn, message->stamp, DPT__SERVER_PHASE__SERVER_REFUSED, run,
                                 refusal.show_spec, refusal.text);
        return NULL;
    }
    if (dpt_rdzv_waits_for_id(run, former, message)) {
        dpt_rdzv_answer_stranger(core, conn, message->stamp, DPT__SERVER_PHASE__SERVER_WAITING,
                                 NULL, false,
                                 "another process has this node id, and its connection is broken: "
                                 "the id is free when that one is lost");
        return NULL;
    }
    if (former != NULL) {
        dpt_rdzv_node_lost(core, run, former,
                           dpt_rdzv_is_own(former, message)
                               ? "it came back as a new incarnation"
                               : "another process trains as this node");
        if (tell_run_end(core, conn, run, message->stamp))
            return NULL; /* the restarts are used up */
    }
    /* It comes from an earlier server and trains: perhaps all do, then nothing need be formed. */
    if (message->stamp->generation > 0 && run->run_generation == 0 && run->adopt_until_ms < 0 &&
        (run->phase == DPT_RDZV_WAITING || run->phase == DPT_RDZV_SETTLING)) {
        run->phase = DPT_RDZV_WAITING;
        run->adopt_until_ms = core->now_ms + run->timing.lease_ms;
    }
    return dpt_rdzv_node_create(core, run, message);
}

/* What the server has already answered: the node's newer words tell whether it lives. */
static bool is_stale(const struct grave *grave, const Dpt__AgentState *message)
{
    return grave != NULL && grave->cut_off && grave->incarnation == message->stamp->incarnation &&
           message->counter <= grave->counter_seen;
}

/* Answers an incarnation that was counted in once and may not come back; false: it may, or never
 * was. */
static bool tell_out(struct dpt_rdzv *core, uint64_t conn, const struct run *run,
                     const struct node *former, const struct grave *grave,
                     const Dpt__AgentState *message)
{
    const Dpt__Stamp *stamp = message->stamp;
    const bool was_here = stamp->epoch == core->epoch && stamp->generation > 0;
    if (grave == NULL && !was_here)
        return false;
    if (grave != NULL && grave->released && grave->incarnation == stamp->incarnation) {
        dpt_rdzv_release_again(core, conn, stamp, grave);
        return true;
    }
    if (former == NULL && dpt_rdzv_may_return(core, run, grave, message))
        return false;
    const bool went_on = run != NULL && run->run_generation > dpt_rdzv_newest_ran(message);
    dpt_rdzv_expel(core, conn, stamp, run, went_on ? run->step : 0, "this incarnation was lost");
    return true;
}

struct node *dpt_rdzv_meet(struct dpt_rdzv *core, uint64_t conn, struct run **run_at,
                           struct node *former, const Dpt__AgentState *message)
{
    const Dpt__Stamp *stamp = message->stamp;
    struct run *run = *run_at;
    struct grave *grave = run == NULL ? NULL : dpt_rdzv_find_grave(run, message);
    if (tell_end(core, conn, run, message))
        return NULL;
    if (is_stale(grave, message) || tell_out(core, conn, run, former, grave, message))
        return NULL;
    if (run != NULL && waits_for_name(core, conn, run, message))
        return NULL;
    if (run != NULL && tell_run_end(core, conn, run, stamp))
        return NULL;
    if (message->spec == NULL) { /* asks for the config, or does not know yet that we are new */
        dpt_rdzv_answer_stranger(core, conn, stamp, DPT__SERVER_PHASE__SERVER_WAITING, run, true,
                                 "");
        return NULL;
    }
    if (run == NULL && core->n_runs == DPT_RDZV_RUNS_MAX) {
        dpt_rdzv_answer_stranger(core, conn, stamp, DPT__SERVER_PHASE__SERVER_REFUSED, NULL, false,
                                 "this server has as many runs as it can hold");
        return NULL;
    }
    if (run == NULL)
        *run_at = run = dpt_rdzv_run_create(core, message);
    struct node *node = run == NULL ? NULL : join(core, conn, run, former, message);
    if (node != NULL && grave != NULL)
        *grave = (struct grave){0}; /* it is back */
    return node;
}

/* The first that comes back waits for those that were lost like it: each may hold what it lacks.
 * A plan that was made without the node has not been sent off, and is made again. */
void dpt_rdzv_came_back(struct dpt_rdzv *core, struct run *run, struct node *node)
{
    node->returned = true;
    if (run->regather_until_ms <= core->now_ms)
        run->regather_until_ms = core->now_ms + run->timing.lease_ms;
    if (run->phase == DPT_RDZV_PLANNED) {
        struct cause cause =
            dpt_rdzv_cause(CAUSE_JOINED, 0, "node %s is back with its state", node->id);
        dpt_rdzv_prepare(core, run, false, &cause);
    }
    for (uint32_t k = 0; run->phase == DPT_RDZV_PREPARING && k < node->n_ranks; k++)
        if (dpt_rdzv_rank_is_alive(&node->ranks[k]))
            node->ranks[k].asked = run->generation;
}
