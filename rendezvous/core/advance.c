/* The phases of a run and the transitions between them (diagram in core.h). */
#include "rendezvous/core/advance.h"

#include "rendezvous/core/apply.h"
#include "rendezvous/core/queries.h"
#include "rendezvous/core/restart.h"
#include "rendezvous/core/rules.h"

#include <stdio.h>
#include <string.h>

enum { TRANSITIONS_MAX = 8 }; /* of one call; a formation of ready ranks takes fewer */

/* ---- WAITING, SETTLING ---- */

/* A rank of the newest generation of an earlier server no longer trains in that generation. */
static bool has_adoptable_failed(const struct run *run)
{
    const uint64_t generation = run->formation.generation_high;
    struct rank_cursor at = {0};
    if (run->membership.n_stopped == 0)
        return false;
    for (const struct rank *rank; (rank = dpt_rdzv_next_rank(run, &at)) != NULL;)
        if (rank->node->generation > 0 &&
            (rank->failed_generation == generation || rank->phase == DPT__RANK_PHASE__RANK_READY ||
             (rank->phase == DPT__RANK_PHASE__RANK_QUIESCED && rank->generation == generation)))
            return true;
    return false;
}

/* Adopts the generation of an earlier server if every rank of its plan is here and trains. A
 * generation is not adopted if this server has used its number, for this run or for an earlier run
 * of the same name. If the journal has the number, it must have this plan, and nothing newer. */
static bool adopt_generation(struct run *run)
{
    const struct formation *formation = &run->formation;
    const struct node *knows = NULL;
    if (run->membership.n_outside < (int)formation->adopt_world)
        return false; /* ranks are missing, and no walk over all nodes is needed */
    for (size_t i = 0; i < run->n_nodes; i++) {
        const struct node *node = run->nodes[i];
        if (node->generation > 0 && node->generation != formation->generation_high)
            return false;
        if (knows == NULL && node->generation > 0 && node->plan_digest[0] != '\0')
            knows = node;
    }
    const bool is_kept = knows != NULL && formation->run_generation == 0 &&
                         formation->generation_high == run->generation &&
                         run->kept.planned == run->generation &&
                         strcmp(knows->plan_digest, run->kept.plan_digest) == 0;
    return knows != NULL && (is_kept || formation->generation_high > run->generation) &&
           formation->generation_high > formation->generation_floor &&
           dpt_rdzv_adopt_plan(run, knows);
}

/* Why a generation is formed after a restart of the server. A formation that the earlier server had
 * begun goes on for the reason that it had. */
static struct cause restart_cause(const struct run *run, bool failed)
{
    const struct cause *begun = &run->kept.cause;
    if (dpt_rdzv_was_forming(run))
        return dpt_rdzv_cause(begun->kind, begun->detect_ms,
                              "%.900s; the server was restarted before the generation ran",
                              begun->text);
    return dpt_rdzv_cause(CAUSE_SERVER_RESTART, 0, "%s and the generation %s",
                          run->formation.ran_before > 0 ? "nodes of this run are back"
                                                        : "the server was restarted",
                          failed ? "had ended" : "was incomplete");
}

/* WAITING for nodes of an earlier server. If the generation of that server cannot be adopted, a new
 * one is formed: at once if the old one has failed, or if every member is here that the journal
 * names; else after a lease. */
static void advance_adopting(struct run *run)
{
    struct formation *formation = &run->formation;
    const bool knows = dpt_rdzv_knows_members(run);
    const bool failed = has_adoptable_failed(run) || dpt_rdzv_was_forming(run);
    if (!failed && adopt_generation(run)) {
        formation->adopt_until_ms = -1;
        dpt_rdzv_enter_phase(run, DPT_RDZV_RUNNING);
        dpt_rdzv_log(run, DPT_LOG_INFO, "adopted generation %llu of an earlier server, world %u",
                     (unsigned long long)run->generation, run->plan.world_size);
        return;
    }
    if (!failed &&
        (knows ? dpt_rdzv_awaits_members(run) : run->core->now_ms < formation->adopt_until_ms))
        return;
    /* A node that is not back yet may hold the newest state. So no plan is made before its lease is
     * over, or before all members are back that the journal names (advance_preparing). */
    if (!knows)
        formation->plan_after_ms = formation->adopt_until_ms;
    dpt_rdzv_prepare(run, PREPARE_HARD, restart_cause(run, failed));
}

static void fail_waiting(struct run *run, uint32_t ready)
{
    char text[DPT_PROTO_TEXT_BYTES];
    const int64_t waited_ms = run->core->now_ms - run->formation.waits_since_ms;
    (void)snprintf(text, sizeof text,
                   "it waited %lld s (cluster.wait_s) for %u nodes (cluster.nnodes), and %u of the "
                   "%zu here %s ready: start more workers, or change one of these keys",
                   (long long)(waited_ms / 1000), dpt_rdzv_min_nodes(run), ready, run->n_nodes,
                   ready == 1 ? "was" : "were");
    dpt_rdzv_fail_run(run, text);
}

/* WAITING because an operator wants it. STOP ends the run when no step is unsaved. If a final save
 * could not save, or if no node here holds the newest steps, the run waits for another order or for
 * a node that returns with them. */
static void advance_held(struct run *run)
{
    struct operator_requests *requests = &run->requests;
    if (!run->kept.stopped || dpt_rdzv_awaits_return(run) || dpt_rdzv_awaits_members(run))
        return;
    const int64_t step = dpt_rdzv_step_unsaved(run);
    if (step <= 0) {
        const int64_t away = dpt_rdzv_step_without_checkpoint(run);
        if (away == 0 || requests->leave_unsaved) {
            dpt_rdzv_stop_run(run);
            return;
        }
        if (!requests->told_away)
            dpt_rdzv_log(run, DPT_LOG_ERROR,
                         "step %lld is not saved, and no node here holds it: the run is held until "
                         "a node comes back with it; `dpt-ctl stop` again ends the run without it, "
                         "`dpt-ctl resume` lets it train on",
                         (long long)away);
        requests->told_away = true;
        return;
    }
    if (!requests->told_unsaved)
        dpt_rdzv_log(run, DPT_LOG_ERROR,
                     "step %lld could not be saved (the ranks' logs say why): the run is held; "
                     "`dpt-ctl stop` tries again, `dpt-ctl resume` lets it train on",
                     (long long)step);
    requests->told_unsaved = true;
}

static void advance_waiting(struct run *run)
{
    struct formation *formation = &run->formation;
    const bool held = dpt_rdzv_is_held(run);
    if (held) /* cluster.wait_s counts from the end of the hold */
        formation->waits_since_ms = run->core->now_ms;
    const bool over = dpt_rdzv_wait_is_over(run);
    if (formation->adopt_until_ms >= 0) {
        advance_adopting(run);
        return;
    }
    const struct node *back = held ? dpt_rdzv_foreign_node(run) : NULL;
    if (back != NULL) { /* it has not heard that it shall stop */
        dpt_rdzv_prepare(run, PREPARE_HARD,
                         dpt_rdzv_cause(CAUSE_LEFT, 0,
                                        "node %s is back in a run that an operator holds",
                                        back->id));
        return;
    }
    if (run->generation > 0 && dpt_rdzv_final_save_is_due(run)) {
        const bool leaves = run->membership.n_leaving > 0;
        dpt_rdzv_prepare(run, PREPARE_HARD,
                         dpt_rdzv_cause(CAUSE_LEFT, 0, "%s with steps that no checkpoint has",
                                        over     ? "too few nodes have come, and the run ends"
                                        : leaves ? "a node leaves"
                                                 : "an operator wants a checkpoint"));
        return;
    }
    if (dpt_rdzv_handover_is_due(run)) {
        dpt_rdzv_prepare(run, PREPARE_HARD,
                         dpt_rdzv_cause(CAUSE_LEFT, 0, "a node leaves and hands its state over"));
        return;
    }
    dpt_rdzv_release_leaving(run);
    if (held) {
        advance_held(run);
        return;
    }
    const uint32_t ready = dpt_rdzv_count_ready(run);
    if (ready < dpt_rdzv_min_nodes(run)) {
        if (over)
            fail_waiting(run, ready);
        return;
    }
    if (run->generation == 0) {
        dpt_rdzv_enter_phase(run, DPT_RDZV_SETTLING);
        return;
    }
    /* If a loss took the run below its minimum of nodes, that loss stays the cause. */
    struct cause cause = formation->cause;
    if (cause.kind != CAUSE_RANK_LOST && cause.kind != CAUSE_NODE_LOST)
        cause = run->requests.resumed
                    ? dpt_rdzv_cause(CAUSE_LEFT, 0, "an operator resumes the run")
                    : dpt_rdzv_cause(CAUSE_JOINED, 0, "enough nodes are here again");
    run->requests.resumed = false;
    dpt_rdzv_prepare(run, PREPARE_HARD, cause);
    formation->after_failure = false; /* the failure came before the wait, not just now */
}

static void advance_settling(struct run *run)
{
    dpt_rdzv_release_leaving(run);
    const uint32_t ready = dpt_rdzv_count_ready(run);
    if (ready < run->spec.min_nodes || dpt_rdzv_is_held(run))
        dpt_rdzv_enter_phase(run, DPT_RDZV_WAITING);
    else if (ready >= run->spec.max_nodes || run->core->now_ms >= dpt_rdzv_last_call_until_ms(run))
        dpt_rdzv_prepare(run, PREPARE_HARD, dpt_rdzv_cause(CAUSE_START, 0, "start"));
}

/* ---- PREPARING, PLANNED ---- */

/* Every place of the plan has finished, including the places of removed nodes. All places must
 * finish, because only the first writer knows that the last checkpoint was committed. */
static bool have_all_finished(const struct plan *plan)
{
    return plan->world_size > 0 && plan->n_finished == plan->world_size;
}

/* Every rank that was asked has reported or died. A soft preparation also waits for ranks that
 * became ready after PREPARE: they report at once, and may take over from a node that leaves. A
 * suspect node is waited for only if it may hold the newest state. */
static bool have_all_reported(const struct run *run)
{
    uint32_t n = run->membership.n_unreported;
    for (const struct node *node = run->membership.lists[LIST_BROKEN].first; n > 0 && node != NULL;
         node = node->hooks[LIST_BROKEN].after)
        if (node->n_unreported > 0 && dpt_rdzv_is_suspect(node) && !dpt_rdzv_may_hold_newest(node))
            n -= node->n_unreported;
    return n == 0;
}

static void log_wait(const struct run *run)
{
    if (dpt_rdzv_is_held(run))
        dpt_rdzv_log(run, DPT_LOG_INFO, "%s by an operator: all ranks have stopped",
                     run->kept.stopped ? "stopped" : "paused");
    else if (dpt_rdzv_admitted_groups(run) == 0) /* else the plan has no room (plan.c) */
        dpt_rdzv_log(run, DPT_LOG_WARN,
                     run->n_nodes > 0 ? "fewer than %u nodes: waiting for more, state is kept"
                                      : "no node is left of the %u that the run needs: waiting "
                                        "for those that come back with their state, and for others",
                     dpt_rdzv_min_nodes(run));
}

/* True: a sharded run would load an older checkpoint than the newest one, because a node whose
 * connection is broken has not told that it sees the newest one. It is waited for until it is back,
 * or lost when its lease ends. */
static bool awaits_view_of_suspect(const struct run *run)
{
    const int64_t saved = run->progress.saved_step;
    bool is_behind = false;
    for (const struct node *node = run->membership.lists[LIST_BROKEN].first; node != NULL;
         node = node->hooks[LIST_BROKEN].after)
        for (uint32_t i = 0; run->spec.sharded && i < node->n_ranks; i++)
            is_behind = is_behind || (dpt_rdzv_has_quiesced(&node->ranks[i]) &&
                                      node->ranks[i].checkpoint_step < saved);
    return is_behind && dpt_rdzv_step_held(run, GROUP_ALL) < saved;
}

static void advance_preparing(struct run *run)
{
    if (have_all_finished(&run->plan)) {
        dpt_rdzv_finish_run(run);
        return;
    }
    dpt_rdzv_stop_step_for_leaving(run);
    const bool pauses =
        run->core->now_ms < run->formation.plan_after_ms && !dpt_rdzv_is_release_due(run);
    if (!have_all_reported(run) || pauses || dpt_rdzv_awaits_return(run) ||
        dpt_rdzv_awaits_members(run))
        return;
    if (awaits_view_of_suspect(run))
        return;
    dpt_rdzv_exclude_accused(run);
    if (run->plan.final_save && run->formation.soft)
        run->progress.final_save_step = run->plan.resume_step;
    if (!dpt_rdzv_make_plan(run)) {
        run->plan.in_force = false;
        log_wait(run);
        dpt_rdzv_enter_phase(run, DPT_RDZV_WAITING);
        return;
    }
    const struct plan *plan = &run->plan;
    dpt_rdzv_enter_phase(run, DPT_RDZV_PLANNED);
    dpt_rdzv_record_plan(run, DPT_RDZV_RECORD_PLAN);
    dpt_rdzv_log(
        run, DPT_LOG_INFO, "plan of generation %llu: world %u on %u node%s, from step %lld (%s)",
        (unsigned long long)run->generation, plan->world_size, plan->n_nodes,
        plan->n_nodes == 1 ? "" : "s", (long long)plan->resume_step, run->formation.cause.text);
}

static void log_running(const struct run *run)
{
    const unsigned long long generation = run->generation;
    const long long step = run->plan.resume_step;
    if (run->plan.final_save)
        dpt_rdzv_log(run, DPT_LOG_INFO, "generation %llu saves step %lld, world %u%s", generation,
                     step, run->plan.world_size,
                     dpt_rdzv_is_held(run) ? "" : ": too few nodes remain to continue");
    else
        dpt_rdzv_log(run, DPT_LOG_INFO, "generation %llu runs, world %u, from step %lld%s",
                     generation, run->plan.world_size, step,
                     !run->spec.sharded         ? ""
                     : run->progress.redundant  ? ", redundancy whole"
                     : run->progress.rebuilding ? ", redundancy rebuilding"
                                                : ", redundancy none");
    char text[DPT_PROTO_TEXT_BYTES];
    if (dpt_timing_is_too_short(&run->timing, run->core->n_nodes, text, sizeof text))
        dpt_rdzv_log(run, DPT_LOG_WARN, "%s", text);
}

static void advance_planned(struct run *run)
{
    struct progress *progress = &run->progress;
    dpt_rdzv_release_leaving(run);
    if (run->plan.n_ready < (int)run->plan.world_size)
        return;
    run->formation.run_generation = run->generation;
    dpt_rdzv_end_awaiting(run);
    progress->n_losses = 0;
    if (run->plan.handover_ranks == 0)
        dpt_rdzv_update_redundancy(run);
    dpt_rdzv_record(
        run, (struct dpt_rdzv_record){.kind = DPT_RDZV_RECORD_RUNS,
                                      .generation = run->generation,
                                      .step = run->plan.resume_step,
                                      .flags = progress->redundant ? DPT_RDZV_FLAG_REDUNDANT : 0u});
    if (run->plan.handover_ranks > 0) {
        dpt_rdzv_prepare(
            run, PREPARE_HARD,
            dpt_rdzv_cause(CAUSE_LEFT, 0, "ranks without a place handed over their shards"));
        return;
    }
    /* The cause of this plan has reported the lost steps. */
    progress->steps_done = run->plan.resume_step;
    progress->stepped = false;
    progress->step_ms = dpt_rdzv_listened_ms(run);
    dpt_rdzv_enter_phase(run, DPT_RDZV_RUNNING);
    log_running(run);
}

/* ---- RUNNING, DRAINING ---- */

/* False: at the last search no node could join, and since then no rank became ready. Spares would
 * else cost a search with each message. */
static bool is_search_due(struct run *run)
{
    struct membership *membership = &run->membership;
    if (membership->n_outside == membership->n_outside_tried &&
        run->core->now_ms < membership->outside_due_ms)
        return false;
    membership->n_outside_tried = membership->n_outside;
    membership->outside_due_ms = run->core->now_ms + run->timing.heartbeat_ms;
    return true;
}

/* A node with a rank that could enter the world now; NULL: none. */
static const struct node *find_joining_node(struct run *run)
{
    const int64_t final_step = run->progress.final_step;
    uint32_t member_nodes = 0;
    if (run->membership.n_outside == 0 || run->plan.world_size >= dpt_rdzv_world_max(run) ||
        (final_step >= 0 && run->plan.resume_step == final_step) || !is_search_due(run))
        return NULL;
    for (size_t i = 0; i < run->n_nodes; i++)
        member_nodes += dpt_rdzv_node_is_member(run->nodes[i]);
    for (size_t i = 0; i < run->n_nodes; i++) {
        const struct node *node = run->nodes[i];
        if (dpt_rdzv_group_of(node) != GROUP_STAYING ||
            (!dpt_rdzv_node_is_member(node) && member_nodes >= run->spec.max_nodes) ||
            !dpt_rdzv_node_is_ready(node))
            continue;
        for (uint32_t k = 0; k < node->n_ranks; k++)
            if (dpt_rdzv_rank_is_alive(&node->ranks[k]) &&
                !dpt_rdzv_rank_is_member(&node->ranks[k]))
                return node;
    }
    return NULL;
}

static const struct node *first_leaving_node(const struct run *run)
{
    for (size_t i = 0; run->membership.n_leaving > 0 && i < run->n_nodes; i++)
        if (run->nodes[i]->leaving)
            return run->nodes[i];
    return NULL;
}

static void note_rebuilt_redundancy(struct run *run)
{
    if (!run->progress.rebuilding || run->plan.n_rebuilding > 0)
        return;
    dpt_rdzv_update_redundancy(run);
    run->changed = true;
    dpt_rdzv_log(run, DPT_LOG_INFO, "generation %llu: redundancy %s after step %lld",
                 (unsigned long long)run->generation, run->progress.redundant ? "whole" : "none",
                 (long long)run->progress.step);
}

static void advance_running(struct run *run)
{
    char text[NODE_TEXT_BYTES];
    if (run->plan.n_finished > 0) {
        dpt_rdzv_enter_phase(run, DPT_RDZV_DRAINING);
        return;
    }
    dpt_rdzv_release_leaving(run);
    note_rebuilt_redundancy(run);
    const struct node *foreign = dpt_rdzv_foreign_node(run);
    if (foreign != NULL) {
        dpt_rdzv_prepare(run, PREPARE_HARD,
                         dpt_rdzv_cause(CAUSE_SERVER_RESTART, 0,
                                        "node %s trains by an earlier server", foreign->id));
        return;
    }
    if (run->plan.n_running < (int)run->plan.world_size)
        return; /* only ranks that have heard GO can stop at a step boundary */
    if (run->plan.final_save) {
        dpt_rdzv_prepare(run, PREPARE_SOFT,
                         dpt_rdzv_cause(CAUSE_LEFT, 0, "the state that the nodes hold is saved"));
        return;
    }
    if (dpt_rdzv_is_held(run)) {
        dpt_rdzv_prepare(run, PREPARE_SOFT,
                         dpt_rdzv_cause(CAUSE_LEFT, 0, "an operator %s the run",
                                        run->kept.stopped ? "stops" : "pauses"));
        return;
    }
    const struct node *leaving = first_leaving_node(run);
    const struct node *node = leaving != NULL ? leaving : find_joining_node(run);
    if (node == NULL)
        return;
    dpt_rdzv_print_node(&run->plan, node, text);
    dpt_rdzv_prepare(run, PREPARE_SOFT,
                     dpt_rdzv_cause(leaving != NULL ? CAUSE_LEFT : CAUSE_JOINED, 0,
                                    leaving != NULL ? "%s leaves" : "%s joined", text));
}

static void advance_draining(struct run *run)
{
    dpt_rdzv_release_leaving(run);
    if (have_all_finished(&run->plan))
        dpt_rdzv_finish_run(run);
}

void dpt_rdzv_advance(struct run *run)
{
    static void (*const advance_phase[DPT_RDZV_PHASE_COUNT])(struct run *) = {
        [DPT_RDZV_WAITING] = advance_waiting,     [DPT_RDZV_SETTLING] = advance_settling,
        [DPT_RDZV_PREPARING] = advance_preparing, [DPT_RDZV_PLANNED] = advance_planned,
        [DPT_RDZV_RUNNING] = advance_running,     [DPT_RDZV_DRAINING] = advance_draining};
    for (int i = 0; i < TRANSITIONS_MAX && !dpt_rdzv_has_ended(run); i++) {
        const enum dpt_rdzv_phase phase = run->phase;
        advance_phase[phase](run);
        if (run->phase == phase)
            return;
    }
}

static int64_t earlier_ms(int64_t due_ms, int64_t at_ms)
{
    return at_ms < due_ms ? at_ms : due_ms;
}

int64_t dpt_rdzv_due_ms(struct run *run)
{
    const struct formation *formation = &run->formation;
    /* Conditions that have no deadline below are checked once per heartbeat. */
    int64_t due_ms = dpt_rdzv_silence_due_ms(run, run->core->now_ms + run->timing.heartbeat_ms);
    if (run->phase == DPT_RDZV_WAITING && run->spec.wait_ms > 0 && formation->waits_since_ms >= 0)
        due_ms = earlier_ms(due_ms, formation->waits_since_ms + run->spec.wait_ms);
    const int64_t plan_ms[] = {formation->plan_after_ms, formation->regather_until_ms};
    for (int i = 0; run->phase == DPT_RDZV_PREPARING && i < 2; i++)
        if (plan_ms[i] > run->core->now_ms)
            due_ms = earlier_ms(due_ms, plan_ms[i]);
    return due_ms > run->core->now_ms ? due_ms : run->core->now_ms + 1;
}
