/* Lost ranks and nodes, stalls, deadlines (docs/membership.md, "Losses"). */
#include "rendezvous/core/rules.h"

#include "rendezvous/core/apply.h"
#include "rendezvous/core/queries.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SLOW_SHIFT_MAX = 4,         /* the time for a formation doubles at most this often */
    FAILED_SHIFT_MAX = 6,       /* the pause after a failed formation doubles at most this often */
    FREE_FAILED_FORMATIONS = 2, /* in a row; each further failure costs a restart */
    ACCUSERS_MAX = 8            /* accusing nodes that are considered to be left out */
};

/* Cut to tenths of a second. */
static double seconds_of_ms(int64_t ms)
{
    return (double)(ms / 100) / 10;
}

/* ---- losses ---- */

/* Adds a loss that costs steps, while the run waits for nodes, to the cause of the next
 * generation. */
static void add_loss_to_cause(struct run *run, const struct cause *cause)
{
    const bool is_loss = cause->kind == CAUSE_RANK_LOST || cause->kind == CAUSE_NODE_LOST;
    char *text = run->formation.cause.text;
    const size_t used = strlen(text), room = sizeof run->formation.cause.text - used;
    /* Without room nothing is left to do: of thousands of losses only the first look at all ranks.
     */
    if (run->phase != DPT_RDZV_WAITING || !is_loss || room == 1 ||
        dpt_rdzv_step_held(run, GROUP_ALL) >= run->progress.steps_done)
        return;
    (void)snprintf(text + used, room, "; %s", cause->text);
    if (cause->kind == CAUSE_RANK_LOST) /* the caller has logged the loss of a node */
        dpt_rdzv_log(run, DPT_LOG_WARN, "while the run waits for nodes: %s", cause->text);
}

/* Counts a generation that failed without the loss of a process. Until a generation makes a step,
 * the pauses grow with each failure, and after FREE_FAILED_FORMATIONS failures each further one
 * costs a restart. */
static void count_failed_formation(struct run *run, const char *what)
{
    struct formation *formation = &run->formation;
    if (run->progress.stepped) {
        formation->failed = 0;
        return;
    }
    formation->failed++;
    const unsigned shift =
        formation->failed < FAILED_SHIFT_MAX ? formation->failed : FAILED_SHIFT_MAX;
    formation->plan_after_ms = run->core->now_ms + (run->timing.heartbeat_ms << shift) / 2;
    if (formation->failed > FREE_FAILED_FORMATIONS)
        dpt_rdzv_count_incident(run, what);
}

void dpt_rdzv_member_lost(struct run *run, struct cause cause)
{
    const bool was_in_force = run->plan.in_force;
    add_loss_to_cause(run, &cause);
    if (run->phase == DPT_RDZV_PREPARING || was_in_force)
        dpt_rdzv_prepare(run, PREPARE_HARD, cause);
    if (cause.kind == CAUSE_RANK_LOST || cause.kind == CAUSE_NODE_LOST)
        run->formation.failed = 0; /* peers gave up because of this loss */
    else if (was_in_force)
        count_failed_formation(run, cause.text);
}

int64_t dpt_rdzv_detect_ms(const struct run *run, int64_t heard_ms)
{
    const enum cause_kind kind = run->formation.cause.kind;
    const bool peers_noticed = run->phase == DPT_RDZV_PREPARING && !run->formation.soft &&
                               (kind == CAUSE_COMM_ERROR || kind == CAUSE_STALLED);
    return (peers_noticed && run->phase_ms > heard_ms ? run->phase_ms : run->core->now_ms) -
           heard_ms;
}

void dpt_rdzv_node_lost(struct run *run, struct node *node, const char *why)
{
    const bool evicted = node->order == NODE_ORDER_OUT || node->link.denied; /* by an operator */
    const bool leaving = node->leaving || evicted;
    bool costs_restart = false; /* a rank of the node has a place and has not finished */
    for (uint32_t i = 0; i < node->n_ranks && !dpt_rdzv_has_ended(run); i++)
        costs_restart = costs_restart || (dpt_rdzv_rank_is_member(&node->ranks[i]) &&
                                          !dpt_rdzv_has_finished(&node->ranks[i]));
    char text[NODE_TEXT_BYTES];
    dpt_rdzv_print_node(&run->plan, node, text);
    const struct cause cause = dpt_rdzv_cause(
        CAUSE_NODE_LOST, dpt_rdzv_detect_ms(run, node->link.heard_ms), "%s lost: %s", text, why);
    if (!dpt_rdzv_has_ended(run))
        dpt_rdzv_log(run, DPT_LOG_WARN, "%s", cause.text);
    dpt_rdzv_remove_node(run, node, &(struct removal){.why = why});
    if (!costs_restart)
        return;
    if (!evicted) /* that is no error */
        dpt_rdzv_note_error(run, run->core->now_ms, cause.text);
    dpt_rdzv_member_lost(run, cause);
    if (!leaving)
        dpt_rdzv_count_incident(run, cause.text);
}

/* ---- stalls ---- */

/* The longest time since `progress.step_ms` that is not a stall. A formation may move much state,
 * so each slow formation doubles the time of the next. The first step of a run has
 * cluster.first_step_s; the first step of a later generation has the join time. While a rank saves
 * or evaluates, the limit is busy_ms; each advance of its work restarts it (report.c). */
int64_t dpt_rdzv_stall_limit_ms(const struct run *run)
{
    const struct dpt_timing *timing = &run->timing;
    const bool soft = run->phase == DPT_RDZV_PREPARING && run->formation.soft && run->plan.in_force;
    if (run->phase == DPT_RDZV_PLANNED)
        return timing->join_ms << (run->formation.slow < SLOW_SHIFT_MAX ? run->formation.slow
                                                                        : SLOW_SHIFT_MAX);
    if (run->phase == DPT_RDZV_DRAINING)
        return timing->busy_ms;
    if (run->phase != DPT_RDZV_RUNNING && !soft)
        return INT64_MAX;
    if (run->plan.n_busy > 0)
        return timing->busy_ms;
    if (soft && run->plan.n_running == 0)
        return timing->quiesce_ms; /* a rank that joins does not answer */
    const int64_t median_ms = run->progress.step_ms_median;
    const int64_t least_ms = run->progress.stepped ? timing->stall_ms : timing->join_ms;
    if (median_ms == 0)
        return run->spec.first_step_ms > 0 ? run->spec.first_step_ms : INT64_MAX;
    return 10 * median_ms > least_ms ? 10 * median_ms : least_ms;
}

/* Ends a generation that stalls. The rank that hangs is found later, because it does not
 * quiesce. */
static void judge_stall(struct run *run)
{
    const int64_t still_ms = dpt_rdzv_listened_ms(run) - run->progress.step_ms;
    if (still_ms <= dpt_rdzv_stall_limit_ms(run))
        return;
    const bool planned = run->phase == DPT_RDZV_PLANNED;
    const bool first = run->phase == DPT_RDZV_RUNNING && run->progress.step_ms_median == 0;
    const struct cause cause = dpt_rdzv_cause(
        CAUSE_STALLED, still_ms, "no %s for %.1f s%s",
        planned ? "readiness"
        : first ? "first step"
                : "step",
        seconds_of_ms(still_ms),
        first ? ": a rank hangs, or a step takes longer than cluster.first_step_s" : "");
    run->formation.slow += planned;
    dpt_rdzv_member_lost(run, cause);
}

/* ---- nodes ---- */

/* The time that a node may be heard without quiescing. It allows for steps, because a rank notices
 * an abort between two kernels, at worst after a step. */
static int64_t quiesce_limit_ms(const struct run *run)
{
    const struct dpt_timing *timing = &run->timing;
    const int64_t steps_ms = 2 * run->progress.step_ms_median;
    return (timing->quiesce_ms > steps_ms ? timing->quiesce_ms : steps_ms) + timing->grace_ms +
           2 * dpt_rdzv_beat_ms(run);
}

/* The agent kills a rank that does not quiesce. If the server has heard the agent for the allowed
 * time and the rank still lives, the node hangs. */
static bool is_quiesce_overdue(const struct run *run, const struct node *node)
{
    if (run->phase != DPT_RDZV_PREPARING || run->formation.soft || node->link.conn == 0 ||
        node->n_unreported == 0 || node->link.spoken_ms <= quiesce_limit_ms(run))
        return false;
    for (uint32_t i = 0; i < node->n_ranks; i++)
        if (node->ranks[i].asked == run->generation && dpt_rdzv_rank_is_alive(&node->ranks[i]) &&
            !dpt_rdzv_has_quiesced(&node->ranks[i]))
            return true;
    return false;
}

/* True: steps were completed long after the node was last heard. Each rank takes part in each step,
 * so the node trains, and its peers reach it. */
static bool do_peers_reach(const struct node *node)
{
    const struct run *run = node->run;
    return run->phase == DPT_RDZV_RUNNING && dpt_rdzv_node_is_member(node) &&
           run->progress.step_ms - node->link.heard_listened_ms >
               run->timing.lease_ms / 2 + run->progress.step_ms_median;
}

/* True: the node is lost, for the reason in ret_why. `spared`: suspect nodes that have not reported
 * are not needed. Sets link.cut_off of a node that is lost for
 * silence alone: the network may have cut it off, so it may return. */
static bool is_node_lost(const struct run *run, struct node *node, bool spared,
                         char ret_why[DPT_PROTO_NAME_BYTES])
{
    node->link.cut_off = true;
    if (dpt_rdzv_is_suspect(node) && dpt_rdzv_is_loss_confirmed(node)) {
        (void)snprintf(ret_why, DPT_PROTO_NAME_BYTES, "control and data connections broken");
        return true;
    }
    if (spared && dpt_rdzv_is_suspect(node) && node->n_unreported > 0) {
        (void)snprintf(ret_why, DPT_PROTO_NAME_BYTES,
                       "control connection broken, and the others hold the state");
        return true;
    }
    if (dpt_rdzv_lease_left_ms(node) < 0) {
        (void)snprintf(ret_why, DPT_PROTO_NAME_BYTES, "silent for %.1f s%s",
                       seconds_of_ms(run->core->now_ms - node->link.heard_ms),
                       do_peers_reach(node) ? "; peers reach it: cut from the server" : "");
        return true;
    }
    node->link.cut_off = false;
    (void)snprintf(ret_why, DPT_PROTO_NAME_BYTES, "did not quiesce in time");
    return is_quiesce_overdue(run, node);
}

static void log_broken_connection(const struct run *run, struct node *node)
{
    if (node->link.reported_broken || dpt_rdzv_has_ended(run) || !dpt_rdzv_is_suspect(node))
        return;
    node->link.reported_broken = true;
    dpt_rdzv_log(run, DPT_LOG_WARN,
                 "node %s: control connection broken; lost when its data connections end, too, or "
                 "when its lease ends in %.1f s",
                 node->id, seconds_of_ms(dpt_rdzv_lease_left_ms(node)));
}

/* Nodes that a TICK judges. */
struct judged {
    struct node **nodes; /* (n) memory of the outbox */
    size_t n;
};

/* The node that joined last is first. */
static int compare_joined(const void *a, const void *b)
{
    const struct node *const *x = a, *const *y = b;
    return (*x)->joined == (*y)->joined ? 0 : (*x)->joined > (*y)->joined ? -1 : 1;
}

static struct node *next_silent(struct node *node)
{
    return node != NULL && dpt_rdzv_lease_left_ms(node) < 0 ? node : NULL;
}

/* Only a node whose lease is over, whose connection is broken, whose key was denied, or that may
 * not have quiesced in time can be lost. The judgement of one removes no other. */
static struct judged list_judged(struct run *run)
{
    const struct membership *membership = &run->membership;
    const bool hard = run->phase == DPT_RDZV_PREPARING && !run->formation.soft;
    const bool overdue = hard && membership->n_unreported > 0 &&
                         run->core->now_ms - run->phase_ms > run->timing.quiesce_ms;
    struct node *const silent = next_silent(membership->lists[LIST_QUIET].first);
    struct node *const broken = membership->lists[LIST_BROKEN].first;
    struct node *const denied = membership->lists[LIST_DENIED].first;
    size_t n = 0, max = overdue ? run->n_nodes : 0;
    for (const struct node *at = silent; at != NULL; at = next_silent(at->hooks[LIST_QUIET].after))
        max++;
    for (const struct node *at = broken; at != NULL; at = at->hooks[LIST_BROKEN].after)
        max++;
    for (const struct node *at = denied; at != NULL; at = at->hooks[LIST_DENIED].after)
        max++;
    struct judged ret = {0};
    if (max > 0)
        ret.nodes = dpt_outbox_alloc(&run->core->out, max * sizeof ret.nodes[0]);
    if (ret.nodes == NULL)
        return ret;
    for (size_t i = 0; overdue && i < run->n_nodes; i++)
        if (run->nodes[i]->n_unreported > 0)
            ret.nodes[n++] = run->nodes[i];
    for (struct node *at = silent; at != NULL; at = next_silent(at->hooks[LIST_QUIET].after))
        ret.nodes[n++] = at;
    for (struct node *at = broken; at != NULL; at = at->hooks[LIST_BROKEN].after)
        ret.nodes[n++] = at;
    for (struct node *at = denied; at != NULL; at = at->hooks[LIST_DENIED].after)
        ret.nodes[n++] = at;
    qsort(ret.nodes, n, sizeof ret.nodes[0], compare_joined);
    for (size_t i = 0; i < n; i++)
        if (ret.n == 0 || ret.nodes[ret.n - 1] != ret.nodes[i])
            ret.nodes[ret.n++] = ret.nodes[i];
    return ret;
}

void dpt_rdzv_judge_losses(struct run *run)
{
    judge_stall(run);
    const bool spared = dpt_rdzv_does_without_suspects(run);
    struct judged judged = list_judged(run);
    for (size_t i = 0; i < judged.n; i++) {
        struct node *node = judged.nodes[i];
        char why[DPT_PROTO_NAME_BYTES];
        if (is_node_lost(run, node, spared, why))
            dpt_rdzv_node_lost(run, node, node->link.denied ? "its key was denied" : why);
        else
            log_broken_connection(run, node);
    }
}

/* ---- nodes that cannot reach one another ---- */

/* The node that most ranks of other nodes accuse; among equals, the one that joined last. NULL:
 * none. */
static struct node *most_accused_node(const struct run *run)
{
    struct node *most = NULL;
    uint32_t most_n = 1;
    for (size_t i = 0; i < run->n_nodes; i++) {
        const struct node *node = run->nodes[i];
        uint32_t n = 0;
        for (uint32_t k = 0; k < node->n_ranks; k++)
            if (node->ranks[k].place >= 0)
                n += run->plan.places[node->ranks[k].place].n_accusers;
        if (n >= most_n) { /* nodes are in order of joining */
            most = run->nodes[i];
            most_n = n;
        }
    }
    return most;
}

static bool does_accuse(const struct node *node, const struct node *other)
{
    for (uint32_t k = 0; k < node->n_ranks; k++) {
        const struct place *accused = dpt_rdzv_accused_by(&node->ranks[k]);
        if (accused != NULL && accused->node == other)
            return true;
    }
    return false;
}

/* True: the other nodes are enough, and hold the newest state. */
static bool is_dispensable(const struct run *run, struct node *node)
{
    node->exclusion.assumed = true;
    const unsigned groups = dpt_rdzv_admitted_groups(run);
    node->exclusion.assumed = false;
    return groups != 0 && (groups & GROUP_EXCLUDED) == 0;
}

/* The node to be left out. If the most accused node alone holds the newest state, it would take
 * part though it is excluded, and every formation would fail as before: then a node that accuses it
 * is left out. NULL: none can be. */
static struct node *node_to_exclude(const struct run *run)
{
    struct node *accused = most_accused_node(run);
    if (accused == NULL || is_dispensable(run, accused))
        return accused;
    int tries = 0;
    for (size_t i = run->n_nodes; i-- > 0 && tries < ACCUSERS_MAX;) {
        if (!does_accuse(run->nodes[i], accused))
            continue;
        if (is_dispensable(run, run->nodes[i]))
            return run->nodes[i];
        tries++;
    }
    return NULL;
}

void dpt_rdzv_exclude_accused(struct run *run)
{
    if (run->formation.failed < FREE_FAILED_FORMATIONS)
        return;
    struct node *node = node_to_exclude(run);
    if (node == NULL)
        return;
    node->exclusion.until_ms = run->core->now_ms + run->timing.exclude_ms;
    dpt_rdzv_log(run, DPT_LOG_WARN,
                 "node %s: two formations in a row failed, as peers could not reach it; the server "
                 "%s: excluded for %lld s",
                 node->id,
                 node->link.conn != 0 ? "hears it, so it is cut from its peers"
                                      : "does not hear it either",
                 (long long)(run->timing.exclude_ms / 1000));
}
