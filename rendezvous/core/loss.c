/* Who is lost and when a generation has failed: leases, broken connections, ranks that do not
 * quiesce, stalls, pairs of nodes that cannot reach one another, and the restart budget. */
#include "rendezvous/core/internal.h"

#include <stdio.h>
#include <string.h>

/* ---- progress ---- */

/* A rank that computes notices an abort between two kernels, at worst after a step's work. */
static int64_t quiesce_ms(const struct run *run)
{
    int64_t steps_ms = 2 * run->step_ms_median;
    return run->timing.quiesce_ms > steps_ms ? run->timing.quiesce_ms : steps_ms;
}

/* Restarts used are given back one by one as the run gets further than it ever was. */
static void refill(struct run *run, int64_t steps)
{
    run->refill_steps += steps;
    const int64_t earned = run->refill_steps / REFILL_STEPS;
    run->refill_steps %= REFILL_STEPS;
    run->restarts_used -= earned < run->restarts_used ? (uint32_t)earned : run->restarts_used;
    if (run->restarts_used == 0) {
        run->refill_steps = 0;
        run->error_ms = -1; /* what was overcome is not the cause of a later end */
    }
}

void dpt_rdzv_note_step(struct dpt_rdzv *core, struct run *run, const struct rank *rank)
{
    if (!dpt_rdzv_rank_is_alive(rank))
        return;
    if (rank->step_ms_median > 0)
        run->step_ms_median = rank->step_ms_median;
    if (rank->phase == DPT__RANK_PHASE__RANK_FINISHED && rank->step_applied > run->final_step)
        run->final_step = rank->step_applied;
    if (rank->step_applied > run->step_best) {
        refill(run, run->step_best < 0 ? 0 : rank->step_applied - run->step_best);
        run->step_best = rank->step_applied;
    }
    if (rank->step_applied > run->steps_done)
        run->steps_done = rank->step_applied;
    if (rank->step_applied <= run->step)
        return;
    if (run->plan.in_force && dpt_rdzv_rank_is_member(run, rank) && run->step >= 0) {
        run->stepped = true;
        run->failed_formations = run->slow_formations = 0;
        run->n_pairs = 0;
    }
    run->step = rank->step_applied;
    run->step_ms = core->now_ms;
}

/* ---- the restart budget ---- */

void dpt_rdzv_count_crashes(struct dpt_rdzv *core, struct run *run, uint32_t crashes,
                            const char *what)
{
    if (run->phase == DPT_RDZV_DONE || run->phase == DPT_RDZV_FAILED)
        return;
    run->restarts_used =
        crashes > UINT32_MAX - run->restarts_used ? UINT32_MAX : run->restarts_used + crashes;
    run->refill_steps = 0;
    run->changed = true;
    dpt_outbox_record(&core->out, &(struct dpt_rdzv_record){.kind = DPT_RDZV_RECORD_CRASH,
                                                            .run = run->name,
                                                            .generation = run->generation,
                                                            .step = run->step,
                                                            .crashes = crashes,
                                                            .text = what});
    if (run->restarts_used <= run->spec.max_restarts)
        return;
    char text[DPT_PROTO_TEXT_BYTES];
    (void)snprintf(text, sizeof text,
                   "%u crash%s without enough progress between; the first: %.400s",
                   run->restarts_used, run->restarts_used == 1 ? "" : "es",
                   run->error_ms >= 0 ? run->first_error : what);
    dpt_rdzv_fail(core, run, text);
}

void dpt_rdzv_count_incident(struct dpt_rdzv *core, struct run *run, const char *what)
{
    if (run->incident_generation == run->plan.generation)
        return;
    run->incident_generation = run->plan.generation;
    dpt_rdzv_count_crashes(core, run, 1, what);
}

/* ---- losses ---- */

void dpt_rdzv_who(const struct run *run, const struct node *node, char ret[WHO_BYTES])
{
    int first = -1, last = -1;
    for (uint32_t i = 0; i < run->plan.world_size; i++)
        if (run->plan.places[i].node == node) {
            first = first < 0 ? (int)i : first;
            last = (int)i;
        }
    char ranks[48] = "";
    if (first >= 0 && first == last)
        (void)snprintf(ranks, sizeof ranks, ", rank %d", first);
    else if (first >= 0)
        (void)snprintf(ranks, sizeof ranks, ", ranks %d to %d", first, last);
    if (node->host_name[0] != '\0')
        (void)snprintf(ret, WHO_BYTES, "node %s (host %s%s)", node->id, node->host_name, ranks);
    else
        (void)snprintf(ret, WHO_BYTES, "node %s", node->id);
}

/* While too few are here another member is lost, and steps with it: the next generation tells both.
 */
static void add_cause(struct dpt_rdzv *core, struct run *run, const struct cause *cause)
{
    const bool is_loss = cause->kind == CAUSE_RANK_LOST || cause->kind == CAUSE_NODE_LOST;
    if (run->phase != DPT_RDZV_WAITING || !is_loss ||
        dpt_rdzv_step_held(core, run, NULL) >= run->steps_done)
        return;
    const size_t used = strlen(run->cause.text);
    (void)snprintf(run->cause.text + used, sizeof run->cause.text - used, "; %s", cause->text);
    if (cause->kind == CAUSE_RANK_LOST) /* of a node it is said */
        dpt_outbox_log(&core->out, DPT_LOG_WARN, run->name, run->generation,
                       "while the run waits for nodes: %s", cause->text);
}

void dpt_rdzv_member_lost(struct dpt_rdzv *core, struct run *run, const struct cause *cause)
{
    add_cause(core, run, cause);
    bool stepped = run->stepped;
    bool fell = run->plan.in_force; /* a generation falls once */
    if (run->phase == DPT_RDZV_PREPARING || fell)
        dpt_rdzv_prepare(core, run, false, cause);
    if (!fell || (cause->kind != CAUSE_COMM_ERROR && cause->kind != CAUSE_STALLED))
        return;
    if (stepped) {
        run->failed_formations = 0;
        return;
    }
    /* Formations that fail one after another: pause longer and longer, and at last give up. */
    run->failed_formations++;
    unsigned shift =
        run->failed_formations < FAILED_SHIFT_MAX ? run->failed_formations : FAILED_SHIFT_MAX;
    run->plan_after_ms = core->now_ms + (run->timing.heartbeat_ms << shift) / 2;
    if (run->failed_formations > FREE_FAILED_FORMATIONS)
        dpt_rdzv_count_incident(core, run, cause->text);
}

int64_t dpt_rdzv_noticed_ms(const struct dpt_rdzv *core, const struct run *run, int64_t word_ms)
{
    bool ended = run->phase == DPT_RDZV_PREPARING && !run->soft &&
                 (run->cause.kind == CAUSE_COMM_ERROR || run->cause.kind == CAUSE_STALLED);
    return ended && run->phase_ms > word_ms ? run->phase_ms : core->now_ms;
}

void dpt_rdzv_node_lost(struct dpt_rdzv *core, struct run *run, struct node *node, const char *why)
{
    bool ended = run->phase == DPT_RDZV_DONE || run->phase == DPT_RDZV_FAILED;
    bool member = false;
    for (uint32_t i = 0; i < node->n_ranks; i++)
        if (dpt_rdzv_rank_is_member(run, &node->ranks[i]) &&
            !dpt_rdzv_has_finished(run, &node->ranks[i]))
            member = true;
    char who[WHO_BYTES];
    dpt_rdzv_who(run, node, who);
    struct cause cause = dpt_rdzv_cause(
        CAUSE_NODE_LOST, dpt_rdzv_noticed_ms(core, run, node->heard_ms) - node->heard_ms,
        "%s lost: %s", who, why);
    bool leaving = node->leaving;
    if (!ended)
        dpt_outbox_log(&core->out, DPT_LOG_WARN, run->name, run->generation, "%s", cause.text);
    dpt_rdzv_remove(run, node, false);
    run->changed = true;
    if (ended || !member)
        return;
    if (run->error_ms < 0) {
        run->error_ms = core->now_ms;
        (void)snprintf(run->first_error, sizeof run->first_error, "%s", cause.text);
    }
    dpt_rdzv_member_lost(core, run, &cause);
    if (!leaving)
        dpt_rdzv_count_incident(core, run, cause.text);
}

/* The generation in force has not advanced for so long that somebody hangs. Who it is shows in who
 * does not quiesce. The first step ever has a time of its own; the first of a later generation may
 * have to warm up again. A formation may have much state to move: it is given longer each time. */
static int64_t stall_limit_ms(const struct run *run)
{
    bool soft = run->phase == DPT_RDZV_PREPARING && run->soft && run->plan.in_force;
    if (run->phase == DPT_RDZV_PLANNED) {
        unsigned shift =
            run->slow_formations < SLOW_SHIFT_MAX ? run->slow_formations : SLOW_SHIFT_MAX;
        return run->timing.join_ms << shift;
    }
    if (run->phase == DPT_RDZV_DRAINING)
        return run->timing.busy_ms;
    if (run->phase != DPT_RDZV_RUNNING && !soft)
        return INT64_MAX;
    bool computes = false, busy = false;
    for (uint32_t i = 0; i < run->plan.world_size; i++) {
        const struct place *place = &run->plan.places[i];
        if (place->node == NULL || place->node->ranks[place->local_rank].spawn != place->spawn)
            continue;
        const struct rank *rank = &place->node->ranks[place->local_rank];
        computes = computes || rank->phase == DPT__RANK_PHASE__RANK_RUNNING;
        busy = busy || rank->busy;
    }
    if (busy)
        return run->timing.busy_ms;
    if (soft && !computes)
        return run->timing.quiesce_ms; /* a joiner that does not answer */
    int64_t median_ms = run->step_ms_median;
    int64_t least_ms = run->stepped ? run->timing.stall_ms : run->timing.join_ms;
    if (median_ms == 0)
        return run->spec.first_step_ms > 0 ? run->spec.first_step_ms : INT64_MAX;
    return 10 * median_ms > least_ms ? 10 * median_ms : least_ms;
}

static void check_stall(struct dpt_rdzv *core, struct run *run)
{
    int64_t limit_ms = stall_limit_ms(run), still_ms = core->now_ms - run->step_ms;
    if (still_ms <= limit_ms)
        return;
    const bool first = run->phase == DPT_RDZV_RUNNING && run->step_ms_median == 0;
    struct cause cause = dpt_rdzv_cause(
        CAUSE_STALLED, still_ms, "no %s for %lld.%lld s%s",
        run->phase == DPT_RDZV_PLANNED ? "readiness"
        : first                        ? "first step"
                                       : "step",
        (long long)(still_ms / 1000), (long long)(still_ms % 1000 / 100),
        first ? ": somebody hangs, or a step takes longer than cluster.first_step_s" : "");
    run->slow_formations += run->phase == DPT_RDZV_PLANNED;
    dpt_rdzv_member_lost(core, run, &cause);
}

/* Silence counts for a gap at most: what was not heard may be a rank that has quiesced, or a node
 * that has not been reached. */
void dpt_rdzv_count_spoken(const struct dpt_rdzv *core, const struct run *run, struct node *node)
{
    const int64_t since_ms = node->heard_ms > run->phase_ms ? node->heard_ms : run->phase_ms;
    const int64_t more_ms = core->now_ms - since_ms;
    node->spoken_ms += more_ms < run->timing.gap_ms ? more_ms : run->timing.gap_ms;
}

/* Agents kill a rank that does not quiesce; a node that does not even manage that hangs and is
 * lost, when it was heard for that long. While it is silent its lease alone judges it. */
static bool is_overdue(const struct run *run, const struct node *node)
{
    const int64_t allowed_ms =
        quiesce_ms(run) + run->timing.grace_ms + 2 * run->timing.heartbeat_ms;
    if (run->phase != DPT_RDZV_PREPARING || run->soft || node->conn == 0 ||
        node->spoken_ms <= allowed_ms)
        return false;
    for (uint32_t i = 0; i < node->n_ranks; i++)
        if (node->ranks[i].asked == run->generation && dpt_rdzv_rank_is_alive(&node->ranks[i]) &&
            !dpt_rdzv_has_quiesced(run, &node->ranks[i]))
            return true;
    return false;
}

/* ---- leases ---- */

/* Whether those who are not counted in have spoken for so long, and no node, that the nodes are
 * gone rather than cut off: else a run whose nodes all died would keep out the next of its name. */
static bool are_nodes_gone(const struct dpt_rdzv *core, const struct run *run)
{
    return core->strangers_since_ms >= 0 &&
           core->now_ms - core->strangers_since_ms >= run->timing.forget_ms &&
           core->now_ms - core->stranger_ms <= run->timing.gap_ms;
}

/* So long nobody is silent but the server is deaf: its network is down, or the thread that reads
 * from it starves while the loop goes on. A node of whatever run that speaks shows that it hears; a
 * process that is refused, perhaps beside the server on its host, does so only in the long run. How
 * long nobody must have spoken is measured by this run's own periods, whatever those of others. */
static bool is_deaf(const struct dpt_rdzv *core, const struct run *run)
{
    return core->now_ms - core->heard_ms > run->timing.gap_ms && !are_nodes_gone(core, run);
}

/* What was not heard while the server was deaf says nothing: all have as long again, and a lease at
 * most, to be heard. Not for ever: in all that is a lease, until they are heard. */
static void forgive(const struct dpt_rdzv *core, const struct run *run, struct node *node,
                    int64_t deaf_ms)
{
    int64_t room_ms = run->timing.lease_ms - node->forgiven_ms;
    int64_t more_ms = deaf_ms < room_ms ? deaf_ms : room_ms;
    if (more_ms <= 0)
        return;
    node->forgiven_ms += more_ms;
    node->extended_until_ms = core->now_ms + more_ms;
    if (node->broken_ms >= 0)
        node->broken_ms = core->now_ms;
}

void dpt_rdzv_hear(struct dpt_rdzv *core)
{
    int64_t deaf_ms = core->now_ms - core->heard_ms;
    for (size_t i = 0; i < core->n_runs; i++) {
        struct run *run = core->runs[i];
        if (!is_deaf(core, run))
            continue;
        run->step_ms += deaf_ms; /* steps that were made meanwhile were not heard of either */
        for (size_t k = 0; k < run->n_nodes; k++)
            forgive(core, run, run->nodes[k], deaf_ms);
    }
    core->heard_ms = core->now_ms;
    core->strangers_since_ms = -1;
}

void dpt_rdzv_hear_stranger(struct dpt_rdzv *core)
{
    /* One word now and then is no sign that the server has heard all the time. */
    if (core->strangers_since_ms < 0 || core->now_ms - core->stranger_ms > STRANGER_GAP_MS)
        core->strangers_since_ms = core->now_ms;
    core->stranger_ms = core->now_ms;
}

void dpt_rdzv_unhear(struct dpt_rdzv *core)
{
    int64_t heard_ms = INT64_MIN, broken_ms = core->heard_ms;
    for (size_t i = 0; i < core->n_runs; i++)
        for (size_t k = 0; k < core->runs[i]->n_nodes; k++) {
            const struct node *node = core->runs[i]->nodes[k];
            if (node->conn != 0 && node->heard_ms > heard_ms)
                heard_ms = node->heard_ms;
            if (node->broken_ms >= 0 && node->broken_ms < broken_ms)
                broken_ms = node->broken_ms;
        }
    core->heard_ms = heard_ms > INT64_MIN ? heard_ms : broken_ms;
}

int64_t dpt_rdzv_lease_end_ms(const struct dpt_rdzv *core, const struct run *run,
                              const struct node *node)
{
    if (is_deaf(core, run))
        return INT64_MAX - 1; /* nobody is there who could go on without it */
    int64_t end_ms = node->heard_ms + run->timing.lease_ms;
    return end_ms > node->extended_until_ms ? end_ms : node->extended_until_ms;
}

/* ---- broken connections ---- */

static bool has_ended(const struct run *run)
{
    return run->phase == DPT_RDZV_DONE || run->phase == DPT_RDZV_FAILED;
}

static int64_t grace_end_ms(const struct dpt_rdzv *core, const struct run *run,
                            const struct node *node)
{
    const bool unheard = core->heard_ms <= node->broken_ms || is_deaf(core, run);
    if (node->broken_ms < 0 || (unheard && !has_ended(run)))
        return INT64_MAX; /* nobody is heard: all connections may have broken */
    return node->broken_ms + run->timing.grace_ms;
}

bool dpt_rdzv_is_suspect(const struct dpt_rdzv *core, const struct run *run,
                         const struct node *node)
{
    return core->now_ms >= grace_end_ms(core, run, node);
}

/* A process of the newest plan has quiesced for a later PREPARE. It has closed its data connections
 * itself: a peer that had not heard PREPARE yet names it, and that is no sign of its death. */
static bool has_left_plan(const struct run *run, const struct place *place)
{
    const struct rank *rank = &place->node->ranks[place->local_rank];
    return rank->spawn == place->spawn && rank->phase == DPT__RANK_PHASE__RANK_QUIESCED &&
           rank->generation > run->plan.generation;
}

/* A peer in the newest plan names a rank of the node as the one whose data connection ended. What a
 * peer cannot attribute to anybody says nothing about this node. */
static bool is_named(const struct run *run, const struct node *node)
{
    for (size_t i = 0; i < run->n_nodes; i++)
        for (uint32_t k = 0; k < run->nodes[i]->n_ranks; k++) {
            const struct rank *rank = &run->nodes[i]->ranks[k];
            if (run->nodes[i] != node && rank->failed_generation == run->plan.generation &&
                dpt_rdzv_rank_is_member(run, rank) && rank->suspect >= 0 &&
                (uint32_t)rank->suspect < run->plan.world_size &&
                run->plan.places[rank->suspect].node == node &&
                !has_left_plan(run, &run->plan.places[rank->suspect]))
                return true;
        }
    return false;
}

/* The generation that it had a place in has just failed, and a peer names it; or the run has ended,
 * and nothing is lost with it. A generation that failed by another node says nothing about it. */
static bool is_parted(const struct run *run, const struct node *node)
{
    const bool failed = run->phase == DPT_RDZV_PREPARING && !run->soft && run->parted;
    return has_ended(run) || (failed && dpt_rdzv_node_is_member(run, node) && is_named(run, node));
}

int64_t dpt_rdzv_suspect_due_ms(const struct dpt_rdzv *core, const struct run *run,
                                const struct node *node)
{
    return node->suspected && !is_parted(run, node) ? INT64_MAX : grace_end_ms(core, run, node);
}

static void suspect(struct dpt_rdzv *core, const struct run *run, struct node *node)
{
    const int64_t lease_ms = dpt_rdzv_lease_end_ms(core, run, node) - core->now_ms;
    if (node->suspected || has_ended(run) || !dpt_rdzv_is_suspect(core, run, node))
        return;
    node->suspected = true;
    dpt_outbox_log(&core->out, DPT_LOG_WARN, run->name, run->generation,
                   "node %s: control connection broken, suspect; lost when its data connections "
                   "end, too, or when its lease ends in %lld.%lld s",
                   node->id, (long long)(lease_ms / 1000), (long long)(lease_ms % 1000 / 100));
}

void dpt_rdzv_unsuspect(struct dpt_rdzv *core, const struct run *run, struct node *node)
{
    if (node->suspected)
        dpt_outbox_log(&core->out, DPT_LOG_INFO, run->name, run->generation,
                       "node %s: control connection is back", node->id);
    node->suspected = false;
    node->broken_ms = -1;
}

/* ---- all of it ---- */

/* Whether a node is lost, and by which sign: then its cut_off is set where it may have been cut off
 * alone. */
static bool is_lost(const struct dpt_rdzv *core, const struct run *run, struct node *node,
                    char ret_why[DPT_PROTO_NAME_BYTES])
{
    const int64_t silent_ms = core->now_ms - node->heard_ms;
    node->cut_off = true;
    if (dpt_rdzv_is_suspect(core, run, node) && is_parted(run, node)) {
        (void)snprintf(ret_why, DPT_PROTO_NAME_BYTES, "control and data connections broken");
        return true;
    }
    if (core->now_ms > dpt_rdzv_lease_end_ms(core, run, node)) {
        (void)snprintf(ret_why, DPT_PROTO_NAME_BYTES, "silent for %lld.%lld s",
                       (long long)(silent_ms / 1000), (long long)(silent_ms % 1000 / 100));
        return true;
    }
    node->cut_off = false; /* it speaks, and hangs */
    if (!is_overdue(run, node))
        return false;
    (void)snprintf(ret_why, DPT_PROTO_NAME_BYTES, "did not quiesce in time");
    return true;
}

void dpt_rdzv_check_leases(struct dpt_rdzv *core, struct run *run)
{
    if (!is_deaf(core, run))
        check_stall(core, run);
    for (size_t i = run->n_nodes; i-- > 0;) {
        struct node *node = run->nodes[i];
        char why[DPT_PROTO_NAME_BYTES];
        if (!is_lost(core, run, node, why)) {
            suspect(core, run, node);
            continue;
        }
        dpt_rdzv_node_lost(core, run, node, why);
        i = i < run->n_nodes ? i : run->n_nodes;
    }
}

/* ---- pairs ---- */

static bool has_pair(const struct pair *pairs, size_t n, struct pair pair)
{
    for (size_t i = 0; i < n; i++)
        if (pairs[i].a == pair.a && pairs[i].b == pair.b)
            return true;
    return false;
}

static size_t count_of(const struct pair *pairs, size_t n, uint64_t id_hash)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += pairs[i].a == id_hash || pairs[i].b == id_hash;
    return count;
}

/* A process of the newest plan has ended. Its peers gave up for that, and theirs for them: who
 * could not reach whom means nothing then. */
static bool somebody_is_gone(const struct run *run)
{
    for (uint32_t i = 0; i < run->plan.world_size; i++) {
        const struct place *place = &run->plan.places[i];
        const struct node *node = place->node;
        const struct rank *rank =
            node && place->local_rank < node->n_ranks ? &node->ranks[place->local_rank] : NULL;
        if (rank == NULL || rank->spawn != place->spawn ||
            rank->phase == DPT__RANK_PHASE__RANK_DEAD)
            return true;
    }
    return false;
}

/* Which nodes could not reach which in the last formation, as their ranks suspect. */
static size_t failed_pairs(const struct run *run, struct pair *ret_pairs)
{
    size_t n = 0;
    for (size_t i = 0; i < run->n_nodes; i++)
        for (uint32_t k = 0; k < run->nodes[i]->n_ranks; k++) {
            const struct node *node = run->nodes[i];
            const struct rank *rank = &node->ranks[k];
            if (rank->failed_generation != run->plan.generation ||
                !dpt_rdzv_rank_is_member(run, rank) || rank->suspect < 0 ||
                (uint32_t)rank->suspect >= run->plan.world_size)
                continue;
            const struct node *other = run->plan.places[rank->suspect].node;
            if (other == node)
                continue;
            struct pair pair = {node->id_hash, other->id_hash};
            if (pair.a > pair.b)
                pair = (struct pair){other->id_hash, node->id_hash};
            if (n < PAIRS_MAX && !has_pair(ret_pairs, n, pair))
                ret_pairs[n++] = pair;
        }
    return n;
}

static struct node *node_by_hash(const struct run *run, uint64_t id_hash)
{
    for (size_t i = 0; i < run->n_nodes; i++)
        if (run->nodes[i]->id_hash == id_hash)
            return run->nodes[i];
    return NULL;
}

void dpt_rdzv_judge_pairs(struct dpt_rdzv *core, struct run *run)
{
    if (run->plan.generation == 0 || run->pairs_generation == run->plan.generation)
        return;
    if (somebody_is_gone(run)) {
        run->pairs_generation = run->plan.generation;
        return;
    }
    struct pair now[PAIRS_MAX];
    size_t n = failed_pairs(run, now);
    struct node *out = NULL;
    size_t out_count = 0;
    for (size_t i = 0; i < n; i++) {
        if (!has_pair(run->pairs, run->n_pairs, now[i]))
            continue;
        struct node *pair[2] = {node_by_hash(run, now[i].a), node_by_hash(run, now[i].b)};
        for (int k = 0; k < 2; k++) {
            size_t count = pair[k] == NULL ? 0 : count_of(now, n, pair[k]->id_hash);
            /* Equal: the later to join. */
            if (count > out_count ||
                (count > 0 && count == out_count && pair[k]->joined > out->joined)) {
                out = pair[k];
                out_count = count;
            }
        }
    }
    memcpy(run->pairs, now, n * sizeof now[0]);
    run->n_pairs = n;
    run->pairs_generation = run->plan.generation;
    uint32_t others = 0;
    for (size_t i = 0; i < run->n_nodes; i++)
        others += run->nodes[i] != out && !run->nodes[i]->leaving &&
                  !dpt_rdzv_is_benched(core, run->nodes[i]);
    if (out == NULL || others < dpt_rdzv_min_nodes(run))
        return;
    out->benched_until_ms = core->now_ms + run->timing.bench_ms;
    run->n_pairs = 0;
    dpt_outbox_log(&core->out, DPT_LOG_WARN, run->name, run->generation,
                   "node %s failed two formations running with a peer: sits out for %lld s",
                   out->id, (long long)(run->timing.bench_ms / 1000));
}
