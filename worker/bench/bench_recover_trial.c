/* A trial of the recovery bench. */
#include "worker/bench/bench_recover_trial.h"

#include "base/clock.h"
#include "base/rng.h"
#include "worker/bench/bench_recover_catch.h"
#include "worker/bench/programs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    DEADLINE_TIMEOUTS = 12, /* a wait's deadline, in timeouts … */
    DEADLINE_MS_MIN = 60 * 1000,
    STEADY_STEPS = 3, /* steps after which a generation counts as running */
    KILLS = 12,       /* the first entries of the table of faults are kills */
    /* A second fault while the next generation reports comes within this time after it begins to
     * form. */
    SECOND_MS = 50,
    /* A caught rank stays stopped for a step and this time: then the other ranks have sent their
     * part. */
    CAUGHT_MS = 30
};

/* ---- waiting ---- */

static uint32_t recover_draw(struct recover_bench *b, uint32_t n)
{
    uint32_t block[4];
    dpt_philox(dpt_rng_key(b->seed, DPT_RNG_TEST, 0, 0, 0), b->draws++, block);
    return block[0] % n;
}

/* Uniform in [least, most). */
static double draw_real(struct recover_bench *b, double least, double most)
{
    return least + (most - least) * recover_draw(b, 100000) / 100000.0;
}

/* Reaps ended processes and reads new log lines, once. */
static enum dpt_status poll_cluster(struct recover_bench *b, struct dpt_err *err)
{
    DPT_TRY(bench_programs_go_on(err));
    DPT_TRY(recover_cluster_reap(&b->cluster, err));
    return recover_watch_poll(&b->watch, err);
}

static int64_t deadline_ms(const struct recover_bench *b)
{
    int64_t ms = (int64_t)(b->cluster.run.timeout_s * 1000) * DEADLINE_TIMEOUTS;
    return ms > DEADLINE_MS_MIN ? ms : DEADLINE_MS_MIN;
}

/* `closely`: polls without a pause, because a fault is aimed at the event. */
static enum dpt_status wait_for(struct recover_bench *b, const char *what, bool closely,
                                bool (*there)(struct recover_bench *), struct dpt_err *err)
{
    int64_t deadline = dpt_now_ms() + deadline_ms(b);
    for (;;) {
        DPT_TRY(poll_cluster(b, err));
        if (there(b))
            return DPT_OK;
        if (dpt_now_ms() >= deadline)
            return dpt_fail(err, DPT_ETIMEOUT, "hang: not within %lld ms: %s",
                            (long long)deadline_ms(b), what);
        if (!closely)
            recover_pause();
    }
}

enum dpt_status recover_wait(struct recover_bench *b, const char *what,
                             bool (*there)(struct recover_bench *), struct dpt_err *err)
{
    return wait_for(b, what, false, there, err);
}

/* Polls without a pause for the drawn delay before a fault. */
static enum dpt_status poll_for(struct recover_bench *b, double ms, struct dpt_err *err)
{
    int64_t until = dpt_now_ns() + (int64_t)(ms * 1e6);
    do {
        DPT_TRY(poll_cluster(b, err));
    } while (dpt_now_ns() < until);
    return DPT_OK;
}

static bool forms_after_fault(struct recover_bench *b)
{
    return b->watch.newest_forming > b->from;
}

static bool is_planned(struct recover_bench *b)
{
    return b->watch.newest_planned > b->from;
}

static bool has_stepped(struct recover_bench *b)
{
    return b->watch.step > b->step_seen;
}

bool recover_steady(struct recover_bench *b)
{
    const struct recover_generation *g = recover_watch_generation(&b->watch, b->watch.newest);
    return g && g->world == b->world && g->steps >= STEADY_STEPS && !g->rebuilding &&
           b->watch.newest_forming <= b->watch.newest;
}

static bool awaited_ended(struct recover_bench *b)
{
    return b->awaited->ended;
}

static bool recover_has_fault(const struct recover_bench *b, enum recover_fault fault)
{
    return b->hits[0].fault == fault || (b->n_hits > 1 && b->hits[1].fault == fault);
}

/* Finds the generation that trains after the faults. A dead or stopped rank does not become READY,
 * so a generation that was planned after the last fault and has completed a step is one without it.
 * (1 ms of tolerance: the log cuts its times to milliseconds.) After a single drain or join the
 * generation must also have the wanted world. */
static bool has_resumed(struct recover_bench *b)
{
    const bool agreed =
        b->n_hits == 1 && (recover_has_fault(b, REC_DRAIN) || recover_has_fault(b, REC_JOIN));
    const double since = b->hits[b->n_hits - 1].time - 1e-3;
    for (uint64_t n = b->from + 1; n <= b->watch.newest; n++) {
        const struct recover_generation *g = recover_watch_generation(&b->watch, n);
        if (g && g->steps > 0 && g->planned >= since && (!agreed || g->world == b->world)) {
            b->resumed = n;
            return true;
        }
    }
    return false;
}

/* ---- faults ---- */

static int ranks_per_node(const struct recover_bench *b)
{
    return b->cluster.run.strategy->ranks_per_node;
}

/* Signals the agent, then its ranks, with as little time between as possible. */
static void signal_node(const struct recover_bench *b, const struct recover_node *node, int number)
{
    pid_t ranks[REC_NODE_RANKS_MAX];
    for (int local = 0; local < ranks_per_node(b); local++)
        ranks[local] = recover_node_rank(node, local);
    (void)kill(node->pid, number);
    for (int local = 0; local < ranks_per_node(b); local++)
        if (ranks[local] > 0)
            (void)kill(ranks[local], number);
}

/* Injects the fault and sets its time. A join also sets hit->node. */
static enum dpt_status inject_fault(struct recover_bench *b, struct recover_hit *hit,
                                    struct dpt_err *err)
{
    struct recover_node *node = hit->node;
    const pid_t rank = hit->fault == REC_KILL_RANK ? recover_node_rank(node, hit->local) : 0;
    if (hit->fault == REC_KILL_RANK && rank == 0)
        return dpt_fail(err, DPT_EPEER, "worker %s has no rank %d to kill", node->id, hit->local);
    hit->time = dpt_wall_seconds();
    switch (hit->fault) {
    case REC_KILL_RANK:
        (void)kill(rank, SIGKILL);
        break;
    case REC_KILL_NODE:
        node->stops = true;
        b->world -= ranks_per_node(b);
        signal_node(b, node, SIGKILL);
        break;
    case REC_DRAIN:
        node->stops = true;
        b->world -= ranks_per_node(b);
        (void)kill(node->pid, SIGTERM);
        break;
    case REC_JOIN:
        b->world += ranks_per_node(b);
        return recover_node_start(&b->cluster, &hit->node, err);
    case REC_STOP:
        b->world -= ranks_per_node(b);
        signal_node(b, node, SIGSTOP);
        break;
    case REC_FAULT_COUNT:
        break;
    }
    return DPT_OK;
}

static bool is_kill(enum recover_fault fault)
{
    return fault == REC_KILL_RANK || fault == REC_KILL_NODE;
}

/* True: the ranks that survive both faults at once hold the whole state. A drain or a join alone
 * loses no state. */
static bool leaves_state(const struct recover_bench *b, const struct recover_hit *first,
                         const struct recover_hit *second)
{
    const enum recover_copies copies = b->cluster.run.strategy->copies;
    const int world = b->nodes * ranks_per_node(b);
    if (copies == REC_COPY_EVERYWHERE)
        return first->fault == REC_JOIN || b->nodes > 2;
    if (copies == REC_COPY_SHADOW && b->cluster.run.rebuild_mib <= 0)
        return false; /* the second fault may come before the shadows are rebuilt */
    if (copies == REC_COPY_SHADOW)
        return first->fault == REC_JOIN || first->fault == REC_DRAIN ||
               ((first->place + 1) % world != second->place &&
                (second->place + 1) % world != first->place);
    /* Each of the two nodes loses another shard, so each shard is still on one node. */
    return first->fault == REC_JOIN ||
           (first->fault == REC_KILL_RANK && second->fault == REC_KILL_RANK &&
            first->shard != second->shard);
}

/* The index of the rank's shard within its node, for strategies whose nodes hold the whole state:
 * the ranks of a node hold its shards in the order of their rank numbers. */
static int shard_of(const struct recover_bench *b, const struct recover_hit *hit)
{
    int shard = 0;
    for (int local = 0; local < ranks_per_node(b); local++)
        shard += recover_node_place(&b->cluster, hit->node, local) < hit->place;
    return shard;
}

/* Draws a rank of a running node as the victim of `hit`. After a first fault `other`, draws only
 * ranks of other nodes whose loss leaves the whole state (leaves_state). False: there is none. */
static bool draw_victim(struct recover_bench *b, const struct recover_hit *other,
                        struct recover_hit *hit)
{
    struct recover_hit found[REC_NODES_MAX * REC_NODE_RANKS_MAX];
    uint32_t n = 0;
    for (int i = 0; i < REC_NODES_MAX; i++)
        for (int local = 0; local < ranks_per_node(b); local++) {
            struct recover_node *node = &b->cluster.nodes[i];
            struct recover_hit one = {.fault = hit->fault, .node = node, .local = local};
            if (node->pid <= 0 || (other && node == other->node))
                continue;
            one.place = recover_node_place(&b->cluster, node, local);
            one.shard = shard_of(b, &one);
            if (!other || leaves_state(b, other, &one))
                found[n++] = one;
        }
    if (n > 0)
        *hit = found[recover_draw(b, n)];
    return n > 0;
}

/* Draws both faults before the first one is injected, while the rank number of every process is
 * known. */
static void plan_trial(struct recover_bench *b)
{
    static const enum recover_fault faults[] = {
        REC_KILL_RANK, REC_KILL_RANK, REC_KILL_RANK, REC_KILL_RANK, REC_KILL_RANK,
        REC_KILL_RANK, REC_KILL_NODE, REC_KILL_NODE, REC_KILL_NODE, REC_KILL_NODE,
        REC_KILL_NODE, REC_KILL_NODE, REC_DRAIN,     REC_DRAIN,     REC_DRAIN,
        REC_JOIN,      REC_JOIN,      REC_JOIN,      REC_STOP,      REC_STOP};
    const uint32_t n_faults = b->kills_only ? KILLS : sizeof faults / sizeof *faults;
    double load = 0;
    (void)getloadavg(&load, 1);
    struct recover_hit *first = &b->hits[0], *second = &b->hits[1];
    *first = (struct recover_hit){.fault = faults[recover_draw(b, n_faults)]};
    *second = (struct recover_hit){.fault = recover_draw(b, 2) ? REC_KILL_RANK : REC_KILL_NODE};
    b->n_hits = 1;
    if (first->fault != REC_JOIN)
        DPT_ASSERT(draw_victim(b, NULL, first));
    const bool doubled =
        recover_draw(b, 3) == 0 && !b->at_commit && first->fault != REC_STOP && b->nodes > 1;
    const bool possible = doubled && draw_victim(b, first, second);
    const enum recover_aim aim = b->at_commit
                                     ? (is_kill(first->fault) ? REC_AIM_COMMIT : REC_AIM_APPLY)
                                 : recover_draw(b, 2) ? REC_AIM_STEP
                                                      : REC_AIM_APPLY;
    *b->trial =
        (struct recover_trial){.fault = first->fault,
                               .second = second->fault,
                               .doubled = possible,
                               .aim = aim,
                               .aim_second = recover_draw(b, 3) ? REC_AIM_BUILD : REC_AIM_PREPARE,
                               .noticed_ms = NAN,
                               .back_ms = NAN,
                               .step_ms = recover_watch_median_step_ms(&b->watch),
                               .first_step = b->watch.step + 1,
                               .load = load};
}

/* Waits until about the end of the next step, after the end of a step was seen. */
static enum dpt_status aim_apply(struct recover_bench *b, struct dpt_err *err)
{
    const double step_ms = b->trial->step_ms;
    return poll_for(b, draw_real(b, 0.85 * step_ms, 1.02 * step_ms), err);
}

/* Stops the victim when one rank has the victim's contribution to a commit and the other ranks do
 * not. The victim stays stopped until all other ranks wait for its contribution alone. If it may
 * not be traced, or ranks use shared memory, the moment of the kill is only approximate. */
static enum dpt_status aim_commit(struct recover_bench *b, struct dpt_err *err)
{
    const struct recover_hit *victim = &b->hits[0];
    const pid_t rank = recover_node_rank(victim->node, victim->local);
    if (rank <= 0 || b->cluster.run.one_host || !recover_catch(rank, b->commit_bytes))
        return aim_apply(b, err);
    return poll_for(b, b->trial->step_ms + CAUGHT_MS, err);
}

/* Waits for the moment of the first fault: any moment within a step, or about the end of a step.
 * There the fault hits the optimizer, or a commit that only some ranks have received. */
static enum dpt_status aim_first(struct recover_bench *b, struct dpt_err *err)
{
    const struct recover_trial *t = b->trial;
    if (t->aim == REC_AIM_STEP)
        return poll_for(b, draw_real(b, 0, t->step_ms), err);
    b->step_seen = b->watch.step;
    DPT_TRY(wait_for(b, "a step", true, has_stepped, err));
    return t->aim == REC_AIM_COMMIT ? aim_commit(b, err) : aim_apply(b, err);
}

/* Waits for the moment of the second fault: while ranks report to the server, or while they create
 * communicators and move state. */
static enum dpt_status aim_second(struct recover_bench *b, struct dpt_err *err)
{
    if (b->trial->aim_second == REC_AIM_PREPARE) {
        DPT_TRY(wait_for(b, "the next generation begins to form", true, forms_after_fault, err));
        return poll_for(b, draw_real(b, 0, SECOND_MS), err);
    }
    DPT_TRY(wait_for(b, "the next generation has a plan", true, is_planned, err));
    return poll_for(b, draw_real(b, 0, recover_watch_median_healing_ms(&b->watch) + 2), err);
}

/* ---- results of a trial ---- */

static void remember_survivors(struct recover_bench *b)
{
    b->n_survivors = 0;
    for (int i = 0; i < REC_NODES_MAX; i++) {
        const struct recover_node *node = &b->cluster.nodes[i];
        if (node->pid <= 0)
            continue;
        struct recover_survivor *s = &b->survivors[b->n_survivors++];
        *s = (struct recover_survivor){.node = node, .agent = node->pid};
        for (int local = 0; local < ranks_per_node(b); local++)
            s->ranks[local] = recover_node_rank(node, local);
    }
}

static bool was_hit(const struct recover_bench *b, const struct recover_node *node, int local)
{
    for (int i = 0; i < b->n_hits; i++)
        if (b->hits[i].node == node &&
            (b->hits[i].fault != REC_KILL_RANK || b->hits[i].local == local))
            return true;
    return false;
}

static bool survivors_kept(const struct recover_bench *b)
{
    for (int i = 0; i < b->n_survivors; i++) {
        const struct recover_survivor *s = &b->survivors[i];
        for (int local = 0; local < ranks_per_node(b); local++)
            if (!was_hit(b, s->node, local) &&
                (s->node->pid != s->agent || s->ranks[local] == 0 ||
                 recover_node_rank(s->node, local) != s->ranks[local]))
                return false;
    }
    return true;
}

static void take_figures(struct recover_bench *b)
{
    struct recover_trial *t = b->trial;
    const double last = b->hits[b->n_hits - 1].time;
    t->generation = *recover_watch_generation(&b->watch, b->resumed);
    t->resumed_ms = (t->generation.first_step - last) * 1e3;
    t->outage_ms = (t->generation.first_step - b->hits[0].time) * 1e3;
    t->pause_ms = (t->generation.first_step - t->generation.step_before) * 1e3;
    t->landing = recover_watch_landing(&b->watch, last);
    const struct recover_generation *first = recover_watch_generation(&b->watch, b->from + 1);
    if (!t->doubled && first && first->forming > 0)
        t->noticed_ms = (first->forming - last) * 1e3;
    t->measured = true;
}

/* ---- restoring the nodes ---- */

static enum dpt_status take_exit(struct recover_bench *b, struct recover_node *node, bool drained,
                                 struct dpt_err *err)
{
    int status = 0;
    char id[sizeof node->id];
    memcpy(id, node->id, sizeof id);
    b->awaited = node;
    DPT_TRY(
        recover_wait(b, "the worker that was told to end, or killed, ends", awaited_ended, err));
    (void)recover_node_gone(node, &status);
    if (drained && status != 0)
        return dpt_fail(err, DPT_EPEER, "worker %s was told to leave and ended with status 0x%x",
                        id, status);
    return DPT_OK;
}

static enum dpt_status settle_hit(struct recover_bench *b, const struct recover_hit *hit,
                                  struct dpt_err *err)
{
    if (hit->fault == REC_KILL_NODE || hit->fault == REC_DRAIN)
        return take_exit(b, hit->node, hit->fault == REC_DRAIN, err);
    if (hit->fault == REC_STOP) {
        signal_node(b, hit->node, SIGCONT);
        b->world += ranks_per_node(b);
    }
    return DPT_OK;
}

/* Restores the initial number of nodes: starts a worker for each node that died, continues stopped
 * nodes, and drains a node after a join. */
static enum dpt_status restore_nodes(struct recover_bench *b, struct dpt_err *err)
{
    const int wanted = b->nodes * ranks_per_node(b);
    for (int i = 0; i < b->n_hits; i++)
        DPT_TRY(settle_hit(b, &b->hits[i], err));
    while (b->world < wanted)
        DPT_TRY(inject_fault(b, &(struct recover_hit){.fault = REC_JOIN}, err));
    if (b->world == wanted)
        return recover_wait(b, "all nodes train again", recover_steady, err);
    struct recover_hit one = {.fault = REC_DRAIN};
    DPT_ASSERT(draw_victim(b, NULL, &one));
    DPT_TRY(inject_fault(b, &one, err));
    DPT_TRY(take_exit(b, one.node, true, err));
    return recover_wait(b, "the others train after one left", recover_steady, err);
}

/* leaves_state needs the rank number of every process; from -1 it would allow the loss of two ranks
 * that hold one shard. */
static enum dpt_status recover_check_places(const struct recover_bench *b, struct dpt_err *err)
{
    for (int i = 0; i < REC_NODES_MAX; i++)
        for (int local = 0; local < ranks_per_node(b); local++) {
            const struct recover_node *node = &b->cluster.nodes[i];
            if (node->pid > 0 && recover_node_place(&b->cluster, node, local) < 0)
                return dpt_fail(err, DPT_EPROTO,
                                "the log of local rank %d of node %s has no line 'rank N of M "
                                "continues'",
                                local, node->id);
        }
    return DPT_OK;
}

enum dpt_status recover_trial_run(struct recover_bench *b, struct dpt_err *err)
{
    struct recover_trial *t = b->trial;
    const int64_t lost_before = b->watch.steps_lost;
    DPT_TRY(recover_check_places(b, err));
    plan_trial(b);
    remember_survivors(b);
    DPT_TRY(aim_first(b, err));
    b->from = b->watch.newest;
    DPT_TRY(inject_fault(b, &b->hits[0], err));
    recover_catch_end();
    if (t->doubled) {
        DPT_TRY(aim_second(b, err));
        b->from = b->watch.newest;
        b->n_hits = 2;
        DPT_TRY(inject_fault(b, &b->hits[1], err));
    }
    DPT_TRY(recover_wait(b, "a step of the next generation, without what died", has_resumed, err));
    take_figures(b);
    DPT_TRY(recover_wait(b, "all ranks that are left train", recover_steady, err));
    t->survivors_kept = survivors_kept(b);
    DPT_TRY(restore_nodes(b, err));
    t->back_ms = (dpt_wall_seconds() - b->hits[0].time) * 1e3;
    t->steps_lost = b->watch.steps_lost - lost_before;
    t->end_step = b->watch.step + 1;
    return DPT_OK;
}
