/* Answers a process that is not a member of the run, or admits the process as a node. */
#include "rendezvous/core/join.h"

#include "rendezvous/core/apply.h"
#include "rendezvous/core/kept.h"
#include "rendezvous/core/queries.h"
#include "rendezvous/core/restart.h"
#include "rendezvous/core/rules.h"
#include "rendezvous/core/tally.h"

#include <string.h>

static void answer_with_text(const struct inquiry *from, Dpt__ServerPhase phase, const char *text)
{
    const struct answer answer = {.phase = phase, .text = text};
    dpt_rdzv_answer_outsider(from, &answer);
}

/* ---- ends ---- */

/* Answers a process of a run that ended on this server and was forgotten. `newer`: the run that has
 * the name now; NULL: none. */
static bool answer_forgotten_end(const struct inquiry *from, const struct run *newer)
{
    const Dpt__Stamp *stamp = from->message->stamp;
    const struct forgotten_run *run = dpt_rdzv_find_forgotten(from->core, stamp->run);
    const uint64_t ran = dpt_rdzv_newest_ran(from->message);
    if (run == NULL || !run->ended || !dpt_rdzv_is_own_epoch(from->core, stamp->epoch) ||
        (newer != NULL && (ran == 0 || ran > run->run_generation)))
        return false;
    const struct answer answer = {.phase = run->failed ? DPT__SERVER_PHASE__SERVER_FAILED
                                                       : DPT__SERVER_PHASE__SERVER_DONE,
                                  .text = run->failed ? "it ended while this node was away" : NULL,
                                  .stopped = run->stopped,
                                  .saved_step = run->saved_step};
    dpt_rdzv_answer_outsider(from, &answer);
    return true;
}

static void answer_ended_run(const struct inquiry *from, struct run *run)
{
    const bool done = run->phase == DPT_RDZV_DONE;
    const struct kept_node *kept = dpt_rdzv_kept_as(run, from->message);
    if (kept != NULL && dpt_rdzv_find_node(run, kept->id) == NULL) /* after a restart */
        dpt_rdzv_remove_kept(run, kept, false, "it was told of the end");
    const struct answer answer = {.phase = done ? DPT__SERVER_PHASE__SERVER_DONE
                                                : DPT__SERVER_PHASE__SERVER_FAILED,
                                  .run = run,
                                  .stopped = done && run->kept.stopped,
                                  .text = run->end_text};
    dpt_rdzv_answer_outsider(from, &answer);
}

/* The process is a later one of a member that the server has not heard since its restart: that one
 * is gone and need not be told of the end. */
static void release_replaced(const struct inquiry *from, struct run *run)
{
    uint8_t secret[DPT_PROTO_SECRET_BYTES];
    const struct kept_node *kept = dpt_rdzv_find_kept(run, from->message->stamp->node);
    dpt_rdzv_secret_of(from->message, secret);
    if (kept != NULL && dpt_rdzv_find_node(run, kept->id) == NULL &&
        memcmp(kept->secret, secret, sizeof secret) == 0 &&
        from->message->stamp->incarnation > kept->incarnation)
        dpt_rdzv_remove_kept(run, kept, false, "it was started again");
}

/* Answers a process after the run has ended. A process with another config belongs to the next run
 * of this name: it waits until the server has forgotten the ended run. So does a process that has
 * heard no server of this journal, if the run was stopped, or the server was restarted. */
static void answer_after_end(const struct inquiry *from, struct run *run)
{
    struct refusal refusal;
    const bool is_next = (dpt_rdzv_knows_members(run) || run->kept.stopped) &&
                         !dpt_rdzv_is_own_epoch(from->core, from->message->stamp->epoch);
    if (is_next)
        release_replaced(from, run);
    if (is_next || (from->message->spec != NULL && dpt_rdzv_differs(run, from->message, &refusal)))
        answer_with_text(from, DPT__SERVER_PHASE__SERVER_WAITING,
                         "the run of this name has ended, and its nodes are leaving");
    else
        answer_ended_run(from, run);
}

/* ---- removed incarnations ---- */

/* Answers a node that has left the run before this one, and has not heard that it may go. Nobody
 * waits for it: the checkpoint of that run has its steps, or no other node. */
static bool answer_left_run(const struct inquiry *from)
{
    const Dpt__AgentState *message = from->message;
    const struct forgotten_run *left = dpt_rdzv_find_forgotten(from->core, message->stamp->run);
    struct departed told = {.released = true};
    if (left == NULL || !left->left || !message->leaving ||
        !dpt_rdzv_is_own_epoch(from->core, message->stamp->epoch) ||
        dpt_rdzv_newest_ran(message) > left->run_generation)
        return false;
    for (size_t i = 0; i < message->n_ranks; i++)
        if (message->ranks[i]->phase != DPT__RANK_PHASE__RANK_DEAD &&
            message->ranks[i]->step_applied > left->saved_step)
            told.last_holder = true;
    dpt_rdzv_answer_released_again(from, &told);
    return true;
}

/* True: the message was sent before the server removed the node. A later message shows that the
 * node still lives. */
static bool is_stale(const struct departed *departed, const Dpt__AgentState *message)
{
    return departed != NULL && departed->cut_off &&
           departed->incarnation == message->stamp->incarnation &&
           message->counter <= departed->counter_seen;
}

/* Answers an incarnation that was once a member and may not return. False: there is no answer; the
 * process may join. */
static bool answer_removed_incarnation(const struct inquiry *from, const struct run *run,
                                       const struct node *former, const struct departed *departed)
{
    const Dpt__Stamp *stamp = from->message->stamp;
    const bool was_member =
        dpt_rdzv_is_own_epoch(from->core, stamp->epoch) && stamp->generation > 0;
    const bool is_kept = run != NULL && dpt_rdzv_kept_as(run, from->message) != NULL;
    if (departed == NULL && (!was_member || is_kept))
        return false;
    if (departed != NULL && departed->released && departed->incarnation == stamp->incarnation) {
        dpt_rdzv_answer_released_again(from, departed);
        return true;
    }
    if (former == NULL && dpt_rdzv_may_return(from, run, departed))
        return false;
    if (departed == NULL && answer_left_run(from))
        return true;
    const bool went_on = run != NULL && run->kept.ran > dpt_rdzv_newest_ran(from->message);
    const struct answer answer = {.phase = DPT__SERVER_PHASE__SERVER_EXPELLED,
                                  .run = run,
                                  .world_step = went_on ? run->progress.step : 0,
                                  .text = "this incarnation was lost"};
    dpt_rdzv_answer_outsider(from, &answer);
    return true;
}

/* Answers an earlier incarnation of a member that the server has not heard since its restart.
 * False: it is none. */
static bool answer_earlier_incarnation(const struct inquiry *from, const struct run *run)
{
    uint8_t secret[DPT_PROTO_SECRET_BYTES];
    const struct kept_node *kept = dpt_rdzv_find_kept(run, from->message->stamp->node);
    dpt_rdzv_secret_of(from->message, secret);
    if (kept == NULL || memcmp(kept->secret, secret, sizeof secret) != 0 ||
        from->message->stamp->incarnation >= kept->incarnation)
        return false;
    const struct answer answer = {.phase = DPT__SERVER_PHASE__SERVER_EXPELLED,
                                  .run = run,
                                  .text = "a newer incarnation of this node is here"};
    dpt_rdzv_answer_outsider(from, &answer);
    return true;
}

/* ---- joining ---- */

/* Answers a process that may not join, or not yet. False: the process may join. */
static bool answer_refused_claim(const struct inquiry *from, const struct run *run,
                                 const struct node *former)
{
    struct refusal refusal;
    const enum claim claim = dpt_rdzv_judge_claim(run, former, from->message, &refusal);
    if (claim == CLAIM_WAITS)
        answer_with_text(from, DPT__SERVER_PHASE__SERVER_WAITING,
                         "another process has this node id, and its connection is broken: the id "
                         "is free when that one is lost");
    if (claim != CLAIM_REFUSED)
        return claim == CLAIM_WAITS;
    if (answer_left_run(from))
        return true;
    dpt_rdzv_log_refused(from, run, refusal.text);
    const struct answer answer = {.phase = DPT__SERVER_PHASE__SERVER_REFUSED,
                                  .run = run,
                                  .with_spec = refusal.show_spec,
                                  .text = refusal.text};
    dpt_rdzv_answer_outsider(from, &answer);
    return true;
}

static struct node *join_run(const struct inquiry *from, struct run *run, struct node *former)
{
    if (answer_refused_claim(from, run, former))
        return NULL;
    if (former != NULL) {
        dpt_rdzv_node_lost(run, former,
                           dpt_rdzv_is_own(former, from->message)
                               ? "it came back as a new incarnation"
                               : "another process trains as this node");
        if (dpt_rdzv_has_ended(run)) { /* the loss of `former` has used up the restarts */
            answer_ended_run(from, run);
            return NULL;
        }
    }
    /* The process trains in a generation of an earlier server. This server may adopt the generation
     * when all its nodes are back. */
    struct formation *formation = &run->formation;
    if (from->message->stamp->generation > 0 && formation->run_generation == 0 &&
        formation->adopt_until_ms < 0 &&
        (run->phase == DPT_RDZV_WAITING || run->phase == DPT_RDZV_SETTLING)) {
        run->phase = DPT_RDZV_WAITING;
        formation->adopt_until_ms = run->core->now_ms + run->timing.lease_ms;
    }
    return dpt_rdzv_node_create(run, from->message, from->key);
}

/* All nodes have left. A process of the run's user that may define runs and brings another config
 * begins the next run of this name: its user has stopped the run to change the config. */
static bool begins_next_run(const struct inquiry *from, const struct run *run)
{
    const Dpt__RunSpec *spec = from->message->spec;
    return !from->join_only && dpt_rdzv_was_left(run) && strcmp(run->spec.user, spec->user) == 0 &&
           strcmp(run->spec.config_digest, spec->config_digest) != 0;
}

static void forget_left_run(const struct inquiry *from, const struct run *run)
{
    struct dpt_rdzv *core = from->core;
    dpt_rdzv_log(run, DPT_LOG_INFO,
                 "run is over: all its nodes have left, and node %s brings another config",
                 from->message->stamp->node);
    size_t i = 0;
    while (core->runs[i] != run)
        i++;
    dpt_rdzv_forget_run(core, i);
}

struct node *dpt_rdzv_admit(const struct inquiry *from, struct run **run_at, struct node *former)
{
    struct run *run = *run_at;
    struct departed *departed = run == NULL ? NULL : dpt_rdzv_find_departed(run, from->message);
    if (answer_forgotten_end(from, run) || is_stale(departed, from->message) ||
        answer_removed_incarnation(from, run, former, departed) ||
        (run != NULL && former == NULL && answer_earlier_incarnation(from, run)))
        return NULL;
    if (run != NULL && dpt_rdzv_has_ended(run)) {
        answer_after_end(from, run);
        return NULL;
    }
    /* The process asks for the config, or has not noticed that it is not a member. */
    if (from->message->spec == NULL) {
        const struct answer answer = {
            .phase = DPT__SERVER_PHASE__SERVER_WAITING, .run = run, .with_spec = true};
        dpt_rdzv_answer_outsider(from, &answer);
        return NULL;
    }
    if (dpt_rdzv_answer_unhealthy(from))
        return NULL;
    if (run != NULL && begins_next_run(from, run)) {
        forget_left_run(from, run);
        *run_at = run = NULL;
    }
    if (run == NULL && from->core->n_runs == DPT_RDZV_RUNS_MAX) {
        answer_with_text(from, DPT__SERVER_PHASE__SERVER_REFUSED,
                         "this server has as many runs as it can hold");
        return NULL;
    }
    if (run == NULL && dpt_rdzv_answer_no_definer(from))
        return NULL;
    if (run == NULL) {
        *run_at = run = dpt_rdzv_run_create(from->core, from->message, from->key);
        if (run != NULL)
            dpt_rdzv_log_definer(run);
    }
    return run == NULL ? NULL : join_run(from, run, former);
}

void dpt_rdzv_ask_node(const struct run *run, struct node *node)
{
    for (uint32_t k = 0; run->phase == DPT_RDZV_PREPARING && k < node->n_ranks; k++) {
        struct rank *rank = &node->ranks[k];
        if (!dpt_rdzv_rank_is_alive(rank))
            continue;
        dpt_rdzv_count_rank(rank, -1);
        rank->asked = run->generation;
        dpt_rdzv_count_rank(rank, 1);
    }
}

/* After the first node has returned, the server makes no plan for a lease, because each removed
 * node may hold a part of the state that the other nodes lack. If a plan without this node exists,
 * its generation has not run yet; the server makes a new plan. */
void dpt_rdzv_node_returned(struct run *run, struct node *node)
{
    const int64_t now_ms = run->core->now_ms;
    node->returned = true;
    if (run->formation.regather_until_ms <= now_ms)
        run->formation.regather_until_ms = now_ms + run->timing.lease_ms;
    if (run->phase == DPT_RDZV_PLANNED)
        dpt_rdzv_prepare(
            run, PREPARE_HARD,
            dpt_rdzv_cause(CAUSE_JOINED, 0, "node %s is back with its state", node->id));
    dpt_rdzv_ask_node(run, node);
}
