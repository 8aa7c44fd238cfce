/* Answers a process that is not a member of the run, or takes it in. */
#include "rendezvous/core/admit.h"

#include "rendezvous/core/loss.h"
#include "rendezvous/core/transition.h"

/* ---- ends ---- */

/* A run of this name and this server has ended and was forgotten; another one may have its name. */
static bool tell_forgotten_end(struct dpt_rdzv *core, const struct inquiry *from,
                               const struct run *newer)
{
    const Dpt__Stamp *stamp = from->message->stamp;
    const struct forgotten_run *run = dpt_rdzv_find_forgotten(core, stamp->run);
    const uint64_t ran = dpt_rdzv_newest_ran(from->message);
    if (run == NULL || !run->ended || stamp->epoch != core->epoch ||
        (newer != NULL && (ran == 0 || ran > run->run_generation)))
        return false;
    const struct answer failed = {.phase = DPT__SERVER_PHASE__SERVER_FAILED,
                                  .text = "it ended while this node was away"};
    const struct answer done = {.phase = DPT__SERVER_PHASE__SERVER_DONE};
    dpt_rdzv_answer_outsider(core, from, run->failed ? &failed : &done);
    return true;
}

static bool tell_end(struct dpt_rdzv *core, const struct inquiry *from, const struct run *run)
{
    if (!dpt_rdzv_has_ended(run))
        return false;
    const struct answer answer = {.phase = run->phase == DPT_RDZV_DONE
                                               ? DPT__SERVER_PHASE__SERVER_DONE
                                               : DPT__SERVER_PHASE__SERVER_FAILED,
                                  .run = run,
                                  .text = run->end_text};
    dpt_rdzv_answer_outsider(core, from, &answer);
    return true;
}

/* The run has ended, and the process brings another config: it belongs to the next run of the name
 * and waits until this one is forgotten. */
static bool waits_for_name(struct dpt_rdzv *core, const struct inquiry *from, const struct run *run)
{
    struct refusal refusal;
    if (!dpt_rdzv_has_ended(run) || from->message->spec == NULL ||
        !dpt_rdzv_differs(run, from->message, &refusal))
        return false;
    const struct answer answer = {.phase = DPT__SERVER_PHASE__SERVER_WAITING,
                                  .text =
                                      "the run of this name has ended, and its nodes are leaving"};
    dpt_rdzv_answer_outsider(core, from, &answer);
    return true;
}

/* ---- removed incarnations ---- */

/* A message that was sent before the node was removed; a later one shows that the node lives. */
static bool is_stale(const struct departed *departed, const Dpt__AgentState *message)
{
    return departed != NULL && departed->cut_off &&
           departed->incarnation == message->stamp->incarnation &&
           message->counter <= departed->counter_seen;
}

/* Answers an incarnation that was a member once and may not return. */
static bool tell_expelled(struct dpt_rdzv *core, const struct inquiry *from, const struct run *run,
                          const struct node *former, const struct departed *departed)
{
    const Dpt__Stamp *stamp = from->message->stamp;
    const bool was_member = stamp->epoch == core->epoch && stamp->generation > 0;
    if (departed == NULL && !was_member)
        return false;
    if (departed != NULL && departed->released && departed->incarnation == stamp->incarnation) {
        dpt_rdzv_answer_released_again(core, from, departed);
        return true;
    }
    if (former == NULL && dpt_rdzv_may_return(core, run, departed, from->message))
        return false;
    const bool went_on =
        run != NULL && run->formation.run_generation > dpt_rdzv_newest_ran(from->message);
    const struct answer answer = {.phase = DPT__SERVER_PHASE__SERVER_EXPELLED,
                                  .run = run,
                                  .world_step = went_on ? run->progress.step : 0,
                                  .text = "this incarnation was lost"};
    dpt_rdzv_answer_outsider(core, from, &answer);
    return true;
}

/* ---- joining ---- */

static struct node *join_run(struct dpt_rdzv *core, const struct inquiry *from, struct run *run,
                             struct node *former)
{
    struct refusal refusal;
    const Dpt__AgentState *message = from->message;
    if (dpt_rdzv_refuses(core, run, former, message, &refusal)) {
        dpt_rdzv_log(core, run, DPT_LOG_WARN, "node %s refused: %s", message->stamp->node,
                     refusal.text);
        const struct answer answer = {.phase = DPT__SERVER_PHASE__SERVER_REFUSED,
                                      .run = run,
                                      .with_spec = refusal.show_spec,
                                      .text = refusal.text};
        dpt_rdzv_answer_outsider(core, from, &answer);
        return NULL;
    }
    if (dpt_rdzv_waits_for_id(run, former, message)) {
        const struct answer answer = {
            .phase = DPT__SERVER_PHASE__SERVER_WAITING,
            .text = "another process has this node id, and its connection is broken: the id is "
                    "free when that one is lost"};
        dpt_rdzv_answer_outsider(core, from, &answer);
        return NULL;
    }
    if (former != NULL) {
        dpt_rdzv_node_lost(core, run, former,
                           dpt_rdzv_is_own(former, message)
                               ? "it came back as a new incarnation"
                               : "another process trains as this node");
        if (tell_end(core, from, run))
            return NULL; /* that loss has used up the restarts */
    }
    /* It trains in a generation of an earlier server, which may be adopted when all are back. */
    struct formation *formation = &run->formation;
    if (message->stamp->generation > 0 && formation->run_generation == 0 &&
        formation->adopt_until_ms < 0 &&
        (run->phase == DPT_RDZV_WAITING || run->phase == DPT_RDZV_SETTLING)) {
        run->phase = DPT_RDZV_WAITING;
        formation->adopt_until_ms = core->now_ms + run->timing.lease_ms;
    }
    return dpt_rdzv_node_create(core, run, message);
}

struct node *dpt_rdzv_admit(struct dpt_rdzv *core, const struct inquiry *from, struct run **run_at,
                            struct node *former)
{
    struct run *run = *run_at;
    struct departed *departed = run == NULL ? NULL : dpt_rdzv_find_departed(run, from->message);
    if (tell_forgotten_end(core, from, run) || is_stale(departed, from->message) ||
        tell_expelled(core, from, run, former, departed) ||
        (run != NULL && (waits_for_name(core, from, run) || tell_end(core, from, run))))
        return NULL;
    if (from->message->spec == NULL) { /* it asks for the config, or thinks that it is a member */
        const struct answer answer = {
            .phase = DPT__SERVER_PHASE__SERVER_WAITING, .run = run, .with_spec = true};
        dpt_rdzv_answer_outsider(core, from, &answer);
        return NULL;
    }
    if (run == NULL && core->n_runs == DPT_RDZV_RUNS_MAX) {
        const struct answer answer = {.phase = DPT__SERVER_PHASE__SERVER_REFUSED,
                                      .text = "this server has as many runs as it can hold"};
        dpt_rdzv_answer_outsider(core, from, &answer);
        return NULL;
    }
    if (run == NULL)
        *run_at = run = dpt_rdzv_run_create(core, from->message);
    struct node *node = run == NULL ? NULL : join_run(core, from, run, former);
    if (node != NULL && departed != NULL)
        *departed = (struct departed){0};
    return node;
}

/* The first node that returns waits for others that were removed like it, as each may hold what the
 * others lack. A plan that was made without it has not run, and is made again. */
void dpt_rdzv_node_returned(struct dpt_rdzv *core, struct run *run, struct node *node)
{
    node->returned = true;
    if (run->formation.regather_until_ms <= core->now_ms)
        run->formation.regather_until_ms = core->now_ms + run->timing.lease_ms;
    if (run->phase == DPT_RDZV_PLANNED)
        dpt_rdzv_prepare_for(core, run, PREPARE_HARD, CAUSE_JOINED,
                             "node %s is back with its state", node->id);
    for (uint32_t k = 0; run->phase == DPT_RDZV_PREPARING && k < node->n_ranks; k++)
        if (dpt_rdzv_rank_is_alive(&node->ranks[k]))
            node->ranks[k].asked = run->generation;
}
