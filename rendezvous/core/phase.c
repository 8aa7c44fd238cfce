/* The phases of a run and what moves it from one to the next (diagram in core.h). */
#include "rendezvous/core/internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { TRANSITIONS_MAX = 8 }; /* in one step; a formation of ready ranks takes fewer */

const char *dpt_rdzv_phase_name(enum dpt_rdzv_phase phase)
{
    static const char *const names[DPT_RDZV_PHASE_COUNT] = {
        "WAITING", "SETTLING", "PREPARING", "PLANNED", "RUNNING", "DRAINING", "DONE", "FAILED"};
    return (unsigned)phase < DPT_RDZV_PHASE_COUNT ? names[phase] : "?";
}

const char *dpt_rdzv_cause_name(enum cause_kind kind)
{
    static const char *const names[CAUSE_COUNT] = {"start",          "joined",     "left",
                                                   "server_restart", "comm_error", "stalled",
                                                   "rank_lost",      "node_lost"};
    return (unsigned)kind < CAUSE_COUNT ? names[kind] : "?";
}

struct cause dpt_rdzv_cause(enum cause_kind kind, int64_t detect_ms, const char *fmt, ...)
{
    struct cause cause = {.kind = kind, .detect_ms = detect_ms < 0 ? 0 : detect_ms};
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(cause.text, sizeof cause.text, fmt, ap);
    va_end(ap);
    return cause;
}

/* ---- what ranks and nodes are good for ---- */

bool dpt_rdzv_rank_is_alive(const struct rank *rank)
{
    return rank->spawn != 0 && rank->phase != DPT__RANK_PHASE__RANK_STARTING &&
           rank->phase != DPT__RANK_PHASE__RANK_DEAD;
}

bool dpt_rdzv_rank_is_member(const struct run *run, const struct rank *rank)
{
    return run->plan.generation != 0 && rank->plan_generation == run->plan.generation;
}

bool dpt_rdzv_has_finished(const struct run *run, const struct rank *rank)
{
    return dpt_rdzv_rank_is_member(run, rank) && run->plan.places[rank->plan_rank].finished;
}

bool dpt_rdzv_has_quiesced(const struct run *run, const struct rank *rank)
{
    return rank->phase == DPT__RANK_PHASE__RANK_QUIESCED && rank->generation == run->generation;
}

bool dpt_rdzv_is_benched(const struct dpt_rdzv *core, const struct node *node)
{
    return node->benched_until_ms > core->now_ms;
}

uint32_t dpt_rdzv_min_nodes(const struct run *run)
{
    for (size_t i = 0; run->final_step >= 0 && i < run->n_nodes; i++)
        for (uint32_t k = 0; k < run->nodes[i]->n_ranks; k++)
            if (run->nodes[i]->ranks[k].step_applied == run->final_step)
                return 1;
    return run->spec.min_nodes;
}

bool dpt_rdzv_node_is_ready(const struct dpt_rdzv *core, const struct run *run, struct node *node)
{
    uint32_t alive = 0;
    if (dpt_rdzv_is_suspect(core, run, node))
        return false;
    for (uint32_t i = 0; i < node->n_ranks; i++)
        alive += dpt_rdzv_rank_is_alive(&node->ranks[i]);
    if (alive == 0 || alive == node->n_ranks) {
        node->ready_since_ms = -1;
        return alive > 0;
    }
    if (node->ready_since_ms < 0)
        node->ready_since_ms = core->now_ms;
    return core->now_ms - node->ready_since_ms >= run->timing.timeout_ms;
}

static uint32_t ready_nodes(const struct dpt_rdzv *core, struct run *run)
{
    uint32_t n = 0;
    for (size_t i = 0; i < run->n_nodes; i++)
        n += dpt_rdzv_node_is_ready(core, run, run->nodes[i]) && !run->nodes[i]->leaving;
    return n;
}

bool dpt_rdzv_node_is_member(const struct run *run, const struct node *node)
{
    for (uint32_t i = 0; i < node->n_ranks; i++)
        if (dpt_rdzv_rank_is_member(run, &node->ranks[i]))
            return true;
    return false;
}

bool dpt_rdzv_may_hold_newest(const struct run *run, const struct node *node)
{
    if (node->returned || (run->run_generation == 0 && node->generation > 0))
        return true;
    for (uint32_t i = 0; i < node->n_ranks; i++)
        if (node->ranks[i].plan_generation != 0 &&
            node->ranks[i].plan_generation >= run->run_generation)
            return true;
    return false;
}

/* ---- transitions ---- */

static void enter(struct dpt_rdzv *core, struct run *run, enum dpt_rdzv_phase phase)
{
    run->phase = phase;
    run->phase_ms = core->now_ms;
    run->changed = true;
    if (phase == DPT_RDZV_WAITING && run->waits_since_ms < 0) {
        run->waits_since_ms = core->now_ms;
        run->partings = 0;
    }
    /* A generation that is adopted comes here without a plan. */
    const bool forms = phase == DPT_RDZV_PLANNED || phase == DPT_RDZV_RUNNING;
    if (phase == DPT_RDZV_SETTLING || (forms && !run->plan.farewell))
        run->waits_since_ms = -1;
}

void dpt_rdzv_prepare(struct dpt_rdzv *core, struct run *run, bool soft, const struct cause *cause)
{
    if (run->phase == DPT_RDZV_DONE || run->phase == DPT_RDZV_FAILED)
        return;
    bool forming = run->phase == DPT_RDZV_PREPARING || run->phase == DPT_RDZV_PLANNED;
    if (!forming || cause->kind > run->cause.kind)
        run->cause = *cause;
    const bool failed = !soft && cause->kind >= CAUSE_COMM_ERROR;
    run->parted = failed || (run->phase == DPT_RDZV_PREPARING && run->parted);
    if (!soft)
        run->plan.in_force = false; /* no more grants: its ranks are being taken apart */
    if (run->phase == DPT_RDZV_PREPARING && (soft || !run->soft))
        return;
    if (run->generation_high > run->generation)
        run->generation = run->generation_high;
    if (run->generation_floor > run->generation)
        run->generation = run->generation_floor;
    run->generation++;
    run->soft = soft && run->plan.in_force;
    run->adopt_until_ms = -1;
    enter(core, run, DPT_RDZV_PREPARING);
    for (size_t i = 0; i < run->n_nodes; i++) {
        run->nodes[i]->spoken_ms = 0;
        for (uint32_t k = 0; k < run->nodes[i]->n_ranks; k++)
            if (dpt_rdzv_rank_is_alive(&run->nodes[i]->ranks[k]))
                run->nodes[i]->ranks[k].asked = run->generation;
    }
    dpt_outbox_record(&core->out, &(struct dpt_rdzv_record){.kind = DPT_RDZV_RECORD_GENERATION,
                                                            .run = run->name,
                                                            .generation = run->generation,
                                                            .step = -1,
                                                            .text = cause->text});
    dpt_outbox_log(&core->out, DPT_LOG_INFO, run->name, run->generation,
                   "forming generation %llu%s: %s", (unsigned long long)run->generation,
                   run->soft ? " at the next step boundary" : "", cause->text);
}

static void end(struct dpt_rdzv *core, struct run *run, enum dpt_rdzv_phase phase, const char *text)
{
    run->plan.in_force = false;
    (void)snprintf(run->end_text, sizeof run->end_text, "%s", text);
    enter(core, run, phase);
    dpt_outbox_record(&core->out, &(struct dpt_rdzv_record){.kind = DPT_RDZV_RECORD_END,
                                                            .run = run->name,
                                                            .generation = run->generation,
                                                            .step = run->step,
                                                            .text = text});
}

void dpt_rdzv_fail(struct dpt_rdzv *core, struct run *run, const char *text)
{
    if (run->phase == DPT_RDZV_DONE || run->phase == DPT_RDZV_FAILED)
        return;
    end(core, run, DPT_RDZV_FAILED, text);
    dpt_outbox_log(&core->out, DPT_LOG_ERROR, run->name, run->generation, "run failed: %s", text);
}

static void done(struct dpt_rdzv *core, struct run *run)
{
    const uint64_t generations = run->generation - run->generation_floor;
    end(core, run, DPT_RDZV_DONE, "");
    dpt_outbox_log(&core->out, DPT_LOG_INFO, run->name, run->generation,
                   "run done after %lld steps in %llu generation%s", (long long)run->final_step,
                   (unsigned long long)generations, generations == 1 ? "" : "s");
}

/* Those who hold no place that is in force may go when they want to, and have wanted to for so long
 * (0: all). */
static void release_leaving(struct dpt_rdzv *core, struct run *run, int64_t since_ms)
{
    for (size_t i = run->n_nodes; i-- > 0;) {
        struct node *node = run->nodes[i];
        if (node->leaving && core->now_ms - node->leaving_ms >= since_ms &&
            !(run->plan.in_force && dpt_rdzv_node_is_member(run, node)))
            dpt_rdzv_release(core, run, node);
    }
}

/* While the generation without them is built, what they hold is of use: a node that is lost before
 * it runs may be the only other one that has it. So they stay for three quarters of their time. */
static void release_hurried(struct dpt_rdzv *core, struct run *run)
{
    release_leaving(core, run, run->timing.drain_ms * 3 / 4);
}

/* ---- WAITING, SETTLING ---- */

/* Agents of an earlier server: when every rank of one plan is here and running, nothing need be
 * formed; when that cannot come true, or not all came back within a lease, form anew. A number that
 * this server has used, for this run or an earlier one of its name, is not adopted. */
static void adopt(struct dpt_rdzv *core, struct run *run)
{
    const struct node *first = NULL;
    bool broken = false, differ = false;
    const bool used =
        run->generation_high <= run->generation || run->generation_high <= run->generation_floor;
    for (size_t i = 0; i < run->n_nodes; i++) {
        const struct node *node = run->nodes[i];
        if (node->generation == 0)
            continue; /* a newcomer */
        differ = differ || node->generation != run->generation_high;
        if (first == NULL && node->plan_digest[0] != '\0')
            first = node;
        for (uint32_t k = 0; k < node->n_ranks; k++) {
            const struct rank *rank = &node->ranks[k];
            broken = broken || rank->failed_generation == run->generation_high ||
                     rank->phase == DPT__RANK_PHASE__RANK_READY ||
                     (rank->phase == DPT__RANK_PHASE__RANK_QUIESCED &&
                      rank->generation == run->generation_high);
        }
    }
    if (!broken && !differ && first != NULL && !used &&
        dpt_rdzv_adopt_plan(core, run, run->generation_high, first->plan_digest,
                            first->plan_world)) {
        run->adopt_until_ms = -1;
        enter(core, run, DPT_RDZV_RUNNING);
        dpt_outbox_log(&core->out, DPT_LOG_INFO, run->name, run->generation,
                       "adopted generation %llu of an earlier server, world %u",
                       (unsigned long long)run->generation, run->plan.world_size);
        return;
    }
    if (!broken && core->now_ms < run->adopt_until_ms)
        return;
    /* Who has not come back yet may hold the newest state: none is planned without it before its
       lease is over. */
    run->plan_after_ms = run->adopt_until_ms;
    struct cause cause = dpt_rdzv_cause(CAUSE_SERVER_RESTART, 0, "%s and the generation %s",
                                        run->ran_before > 0 ? "nodes of this run are back"
                                                            : "the server was restarted",
                                        broken ? "had ended" : "was not whole any more");
    dpt_rdzv_prepare(core, run, false, &cause);
}

static void waiting(struct dpt_rdzv *core, struct run *run)
{
    const bool over = dpt_rdzv_wait_is_over(core, run);
    if (run->adopt_until_ms >= 0) {
        adopt(core, run);
        return;
    }
    if (run->generation > 0 && run->partings < PARTINGS_MAX &&
        dpt_rdzv_farewell_is_due(core, run)) {
        run->partings += over;
        struct cause cause =
            dpt_rdzv_cause(CAUSE_LEFT, 0, "%s with steps that no checkpoint has",
                           over ? "too few nodes have come, and the run ends" : "a node leaves");
        dpt_rdzv_prepare(core, run, false, &cause);
        return;
    }
    release_leaving(core, run, dpt_rdzv_hold_leaving_ms(run));
    const uint32_t ready = ready_nodes(core, run);
    if (ready < dpt_rdzv_min_nodes(run)) {
        if (over)
            dpt_rdzv_fail_waiting(core, run, ready);
        return;
    }
    if (run->generation == 0) {
        enter(core, run, DPT_RDZV_SETTLING);
        return;
    }
    /* What took the world below min nodes is why it is formed anew; whoever fills it up has mended
     * that. */
    struct cause cause = run->cause;
    if (cause.kind != CAUSE_RANK_LOST && cause.kind != CAUSE_NODE_LOST)
        cause = dpt_rdzv_cause(CAUSE_JOINED, 0, "enough nodes are here again");
    dpt_rdzv_prepare(core, run, false, &cause);
    run->parted = false; /* the generation failed long ago */
}

static void settling(struct dpt_rdzv *core, struct run *run)
{
    release_leaving(core, run, 0);
    uint32_t ready = ready_nodes(core, run);
    if (ready < run->spec.min_nodes) {
        enter(core, run, DPT_RDZV_WAITING);
        return;
    }
    if (ready < run->spec.max_nodes && core->now_ms < dpt_rdzv_last_call_until_ms(core, run))
        return;
    struct cause cause = dpt_rdzv_cause(CAUSE_START, 0, "start");
    dpt_rdzv_prepare(core, run, false, &cause);
}

/* ---- FORMING ---- */

/* Every member of the newest plan has said FINISHED there. Nobody can be left out, not even who is
 * gone: only the first writer knows that the last checkpoint was committed. */
static bool all_finished(const struct run *run)
{
    for (uint32_t i = 0; i < run->plan.world_size; i++)
        if (!run->plan.places[i].finished)
            return false;
    return run->plan.world_size > 0;
}

/* Those who were asked, or are dead by now; at a step boundary also those who have become ready
 * since, for they answer at once and may be the heirs of one who leaves. A suspect node is waited
 * for only if it may hold the newest state. */
static bool all_reported(const struct dpt_rdzv *core, const struct run *run)
{
    for (size_t i = 0; i < run->n_nodes; i++) {
        const struct node *node = run->nodes[i];
        if (dpt_rdzv_is_suspect(core, run, node) && !dpt_rdzv_may_hold_newest(run, node))
            continue;
        for (uint32_t k = 0; k < node->n_ranks; k++) {
            const struct rank *rank = &node->ranks[k];
            if ((rank->asked == run->generation || run->soft) && dpt_rdzv_rank_is_alive(rank) &&
                !dpt_rdzv_has_quiesced(run, rank))
                return false;
        }
    }
    return true;
}

/* Who leaves has little time, and a step may take more: then the step in flight is given up and
 * runs again without the node. Where nobody stays what was held before it is saved in a farewell;
 * but if the step has come to its end, the ranks are busy saving that. */
static void hasten(struct dpt_rdzv *core, struct run *run)
{
    const struct node *due = NULL;
    bool some_stay = false, busy = false;
    for (size_t i = 0; i < run->n_nodes; i++) {
        const struct node *node = run->nodes[i];
        some_stay = some_stay || (dpt_rdzv_node_is_member(run, node) && !node->leaving);
        if (node->leaving && core->now_ms - node->leaving_ms >= run->timing.boundary_ms)
            due = node;
        for (uint32_t k = 0; k < node->n_ranks; k++)
            busy = busy || (dpt_rdzv_rank_is_member(run, &node->ranks[k]) && node->ranks[k].busy);
    }
    if (!run->soft || run->plan.farewell || due == NULL || (!some_stay && busy))
        return;
    const struct cause cause = dpt_rdzv_cause(
        CAUSE_LEFT, 0, "node %s leaves and cannot wait for the end of the step", due->id);
    dpt_rdzv_prepare(core, run, false, &cause);
}

static void preparing(struct dpt_rdzv *core, struct run *run)
{
    if (all_finished(run)) {
        done(core, run);
        return;
    }
    hasten(core, run);
    if (!all_reported(core, run) || core->now_ms < run->plan_after_ms ||
        dpt_rdzv_awaits_return(core, run))
        return;
    dpt_rdzv_judge_pairs(core, run);
    if (run->plan.farewell && run->soft)
        run->farewell_step = run->plan.resume_step; /* saved, or it cannot be */
    if (!dpt_rdzv_make_plan(core, run)) {
        run->plan.in_force = false;
        dpt_outbox_log(&core->out, DPT_LOG_WARN, run->name, run->generation,
                       run->n_nodes > 0 ? "fewer than %u nodes: waiting for more, state is kept"
                                        : "fewer than %u nodes, as none is left: waiting for those "
                                          "that come back with their state, and for others",
                       dpt_rdzv_min_nodes(run));
        enter(core, run, DPT_RDZV_WAITING);
        return;
    }
    enter(core, run, DPT_RDZV_PLANNED);
    dpt_outbox_record(&core->out, &(struct dpt_rdzv_record){.kind = DPT_RDZV_RECORD_PLAN,
                                                            .run = run->name,
                                                            .generation = run->generation,
                                                            .step = run->plan.resume_step,
                                                            .text = run->plan.digest});
    dpt_outbox_log(&core->out, DPT_LOG_INFO, run->name, run->generation,
                   "plan of generation %llu: world %u on %u node%s, from step %lld (%s)",
                   (unsigned long long)run->generation, run->plan.world_size, run->plan.n_nodes,
                   run->plan.n_nodes == 1 ? "" : "s", (long long)run->plan.resume_step,
                   run->cause.text);
}

static const struct rank *rank_of(const struct place *place)
{
    if (place->node == NULL || place->local_rank >= place->node->n_ranks ||
        place->node->ranks[place->local_rank].spawn != place->spawn)
        return NULL;
    return &place->node->ranks[place->local_rank];
}

static void planned(struct dpt_rdzv *core, struct run *run)
{
    release_hurried(core, run);
    for (uint32_t i = 0; i < run->plan.world_size; i++) {
        const struct rank *rank = rank_of(&run->plan.places[i]);
        if (rank == NULL || rank->phase != DPT__RANK_PHASE__RANK_READY ||
            rank->generation != run->generation)
            return;
    }
    run->run_generation = run->generation;
    dpt_rdzv_await_nobody(run);
    run->n_losses = 0;
    if (run->plan.guests > 0) { /* they have handed over: on without them */
        struct cause cause = dpt_rdzv_cause(CAUSE_LEFT, 0, "guests have handed over their state");
        dpt_rdzv_prepare(core, run, false, &cause);
        return;
    }
    run->redundant = dpt_rdzv_is_redundant(core, run);
    run->rebuilding = dpt_rdzv_is_rebuilding(run);
    run->steps_done = run->plan.resume_step; /* only now: one that never ran has told no loss */
    run->stepped = false;
    run->step_ms = core->now_ms;
    enter(core, run, DPT_RDZV_RUNNING);
    if (run->plan.farewell) {
        dpt_outbox_log(&core->out, DPT_LOG_INFO, run->name, run->generation,
                       "too few nodes stay to go on: generation %llu saves step %lld, world %u",
                       (unsigned long long)run->generation, (long long)run->plan.resume_step,
                       run->plan.world_size);
        return;
    }
    dpt_outbox_log(&core->out, DPT_LOG_INFO, run->name, run->generation,
                   "generation %llu runs, world %u, from step %lld%s",
                   (unsigned long long)run->generation, run->plan.world_size,
                   (long long)run->plan.resume_step,
                   !run->spec.sharded ? ""
                   : run->redundant   ? ", redundancy whole"
                   : run->rebuilding  ? ", redundancy rebuilding"
                                      : ", redundancy none");
}

/* ---- RUNNING, DRAINING ---- */

/* A node with a rank that could enter the world now; NULL: none. */
static const struct node *joiner(const struct dpt_rdzv *core, struct run *run)
{
    uint32_t member_nodes = 0;
    for (size_t i = 0; i < run->n_nodes; i++)
        member_nodes += dpt_rdzv_node_is_member(run, run->nodes[i]);
    bool at_end = run->final_step >= 0 && run->plan.resume_step == run->final_step;
    if (run->plan.world_size >= run->spec.max_world || at_end)
        return NULL;
    for (size_t i = 0; i < run->n_nodes; i++) {
        struct node *node = run->nodes[i];
        if (node->leaving || dpt_rdzv_is_benched(core, node) ||
            (!dpt_rdzv_node_is_member(run, node) && member_nodes >= run->spec.max_nodes) ||
            !dpt_rdzv_node_is_ready(core, run, node))
            continue;
        for (uint32_t k = 0; k < node->n_ranks; k++)
            if (dpt_rdzv_rank_is_alive(&node->ranks[k]) &&
                !dpt_rdzv_rank_is_member(run, &node->ranks[k]))
                return node;
    }
    return NULL;
}

/* Every rank has heard GO: only a rank that steps can be asked to stop at a step boundary. */
static bool all_step(const struct run *run)
{
    for (uint32_t i = 0; i < run->plan.world_size; i++) {
        const struct rank *rank = rank_of(&run->plan.places[i]);
        if (rank == NULL || rank->phase != DPT__RANK_PHASE__RANK_RUNNING)
            return false;
    }
    return true;
}

/* Copies that were made while training went on are whole. */
static void notice_rebuilt(struct dpt_rdzv *core, struct run *run)
{
    if (!run->rebuilding || dpt_rdzv_is_rebuilding(run))
        return;
    run->rebuilding = false;
    run->redundant = dpt_rdzv_is_redundant(core, run);
    run->changed = true;
    dpt_outbox_log(&core->out, DPT_LOG_INFO, run->name, run->generation,
                   "generation %llu: redundancy %s after step %lld",
                   (unsigned long long)run->generation, run->redundant ? "whole" : "none",
                   (long long)run->step);
}

static void running(struct dpt_rdzv *core, struct run *run)
{
    char who[WHO_BYTES];
    for (uint32_t i = 0; i < run->plan.world_size; i++)
        if (run->plan.places[i].finished) {
            enter(core, run, DPT_RDZV_DRAINING);
            return;
        }
    release_leaving(core, run, 0);
    notice_rebuilt(core, run);
    const struct node *node = dpt_rdzv_foreigner(core, run);
    if (node != NULL) {
        struct cause cause = dpt_rdzv_cause(CAUSE_SERVER_RESTART, 0,
                                            "node %s trains by an earlier server", node->id);
        dpt_rdzv_prepare(core, run, false, &cause);
        return;
    }
    if (!all_step(run))
        return;
    if (run->plan.farewell) {
        struct cause cause = dpt_rdzv_cause(CAUSE_LEFT, 0, "what is held is saved");
        dpt_rdzv_prepare(core, run, true, &cause);
        return;
    }
    for (size_t i = 0; i < run->n_nodes; i++)
        if (run->nodes[i]->leaving) {
            dpt_rdzv_who(run, run->nodes[i], who);
            struct cause cause = dpt_rdzv_cause(CAUSE_LEFT, 0, "%s leaves", who);
            dpt_rdzv_prepare(core, run, true, &cause);
            return;
        }
    node = joiner(core, run);
    if (node != NULL) {
        dpt_rdzv_who(run, node, who);
        struct cause cause = dpt_rdzv_cause(CAUSE_JOINED, 0, "%s joined", who);
        dpt_rdzv_prepare(core, run, true, &cause);
    }
}

static void draining(struct dpt_rdzv *core, struct run *run)
{
    release_leaving(core, run, 0);
    if (all_finished(run))
        done(core, run);
}

void dpt_rdzv_advance(struct dpt_rdzv *core, struct run *run)
{
    for (int i = 0; i < TRANSITIONS_MAX; i++) {
        enum dpt_rdzv_phase phase = run->phase;
        switch (phase) {
        case DPT_RDZV_WAITING:
            waiting(core, run);
            break;
        case DPT_RDZV_SETTLING:
            settling(core, run);
            break;
        case DPT_RDZV_PREPARING:
            preparing(core, run);
            break;
        case DPT_RDZV_PLANNED:
            planned(core, run);
            break;
        case DPT_RDZV_RUNNING:
            running(core, run);
            break;
        case DPT_RDZV_DRAINING:
            draining(core, run);
            break;
        default:
            break;
        }
        if (run->phase == phase)
            return;
    }
}

static void sooner(int64_t *due_ms, int64_t at_ms)
{
    if (at_ms < *due_ms)
        *due_ms = at_ms;
}

int64_t dpt_rdzv_due_ms(const struct dpt_rdzv *core, const struct run *run)
{
    /* What is not worth an entry here is looked at once a heartbeat. */
    int64_t due_ms = core->now_ms + run->timing.heartbeat_ms;
    for (size_t i = 0; i < run->n_nodes; i++) {
        const struct node *node = run->nodes[i];
        sooner(&due_ms, dpt_rdzv_lease_end_ms(core, run, node) + 1);
        sooner(&due_ms, dpt_rdzv_suspect_due_ms(core, run, node));
    }
    if (run->phase == DPT_RDZV_WAITING && run->spec.wait_ms > 0 && run->waits_since_ms >= 0)
        sooner(&due_ms, run->waits_since_ms + run->spec.wait_ms);
    const int64_t plan_ms[] = {run->plan_after_ms, run->regather_until_ms};
    for (int i = 0; run->phase == DPT_RDZV_PREPARING && i < 2; i++)
        sooner(&due_ms, plan_ms[i] > core->now_ms ? plan_ms[i] : INT64_MAX);
    return due_ms > core->now_ms ? due_ms : core->now_ms + 1;
}
