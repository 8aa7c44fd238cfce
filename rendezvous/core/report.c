/* Takes a node's report into the state of the run. */
#include "rendezvous/core/join.h"

#include "rendezvous/core/apply.h"
#include "rendezvous/core/queries.h"
#include "rendezvous/core/rules.h"
#include "rendezvous/core/tally.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Copies a text that check.c has found short enough. */
static void copy_text(char *to, size_t to_bytes, const char *from)
{
    const size_t bytes = strlen(from) + 1;
    DPT_ASSERT(bytes <= to_bytes);
    memcpy(to, from, bytes);
}

/* ---- ranks ---- */

/* Bytes of the outcome that a rank reports while it has quiesced; 0: none. */
static size_t outcome_bytes(const Dpt__RankState *state)
{
    return state->phase == DPT__RANK_PHASE__RANK_QUIESCED ? state->outcome.len : 0;
}

static void keep_outcome(struct run *run, struct rank *rank, const Dpt__RankState *state)
{
    const size_t bytes = outcome_bytes(state);
    bool no_memory = false;
    dpt_outcomes_drop(&rank->outcome);
    if (bytes > 0)
        rank->outcome = dpt_outcomes_keep(&run->outcomes, state->outcome.data, bytes, &no_memory);
    run->core->out.no_memory = run->core->out.no_memory || no_memory;
    if (rank->outcome != NULL || bytes == 0 || no_memory || run->outcomes.told_full)
        return;
    run->outcomes.told_full = true;
    dpt_rdzv_log(run, DPT_LOG_ERROR,
                 "node %s: outcome of step %lld is not kept: the ranks of the run report more than "
                 "%d different outcomes, which no two ranks of one step do",
                 rank->node->id, (long long)state->outcome_step, OUTCOMES_MAX);
}

static struct rank_work work_of(const Dpt__RankActivity *activity)
{
    if (activity == NULL)
        return (struct rank_work){.known = false};
    return (struct rank_work){.main = activity->main,
                              .comm = activity->comm,
                              .main_unit = activity->main_unit,
                              .main_slot = activity->main_slot,
                              .comm_unit = activity->comm_unit,
                              .main_ms = activity->main_ms,
                              .comm_ms = activity->comm_ms,
                              .known = true};
}

/* Keeps the stacks that an operator wants now, and drops earlier ones. */
static void copy_stacks(struct run *run, struct rank *rank, const Dpt__RankState *state)
{
    struct rank_stacks *stacks = &rank->work.stacks;
    const uint64_t dump = dpt_rdzv_dump_wanted(run);
    if (stacks->of == dump)
        return;
    free(stacks->text);
    *stacks = (struct rank_stacks){0};
    if (dump == 0 || state->stacks_of != dump)
        return;
    stacks->text = strdup(state->stacks);
    if (stacks->text == NULL)
        run->core->out.no_memory = true;
    else
        stacks->of = dump;
}

/* Copies everything that the rank itself reports. */
static void copy_rank_state(struct rank *rank, const Dpt__RankState *state)
{
    rank->phase = state->phase;
    rank->generation = state->generation;
    copy_text(rank->shm_addr, sizeof rank->shm_addr, state->shm_addr);
    copy_text(rank->tcp_addr, sizeof rank->tcp_addr, state->tcp_addr);
    rank->step_applied = state->step_applied;
    rank->outcome_step = state->outcome_step;
    rank->checkpoint_step = state->checkpoint_step;
    rank->grant_step = state->grant_step;
    rank->failed_generation = state->failed_generation;
    rank->suspect = state->suspect;
    rank->busy = state->busy;
    rank->step_ms_median = state->step_ms_median;
    rank->reported_rank = state->plan_rank;
    rank->n_shards = (int)state->n_shards; /* check.c: at most DPT_PROTO_SHARDS_MAX */
    for (int i = 0; i < rank->n_shards; i++) {
        const Dpt__Shard *shard = state->shards[i];
        rank->shards[i] = (struct dpt_shard){(int)shard->index, (int)shard->of};
        rank->pending[i] = shard->pending;
    }
    rank->gradient = state->gradient;
    rank->pending_generation = state->pending_generation;
    rank->ran_generation = state->ran_generation;
    rank->rebuilding = state->rebuilding;
    const struct rank_stacks stacks = rank->work.stacks;
    rank->work = work_of(state->activity);
    rank->work.stacks = stacks;
    rank->work.done = state->work_done;
}

/* True: the rank holds what it held, as far as held.c reads it. */
static bool holds_the_same(const struct rank *rank, const Dpt__RankState *state)
{
    bool same =
        state->spawn == rank->spawn && state->phase == rank->phase &&
        state->generation == rank->generation && state->step_applied == rank->step_applied &&
        state->outcome_step == rank->outcome_step &&
        outcome_bytes(state) == (rank->outcome != NULL ? rank->outcome->n_bytes : 0) &&
        state->checkpoint_step == rank->checkpoint_step &&
        (state->gradient != 0) == rank->gradient &&
        state->pending_generation == rank->pending_generation &&
        state->ran_generation == rank->ran_generation && state->n_shards == (size_t)rank->n_shards;
    for (int i = 0; same && i < rank->n_shards; i++)
        same = state->shards[i]->index == (uint32_t)rank->shards[i].index &&
               state->shards[i]->of == (uint32_t)rank->shards[i].of &&
               (state->shards[i]->pending != 0) == rank->pending[i];
    return same;
}

static void note_finished(struct plan *plan, const struct rank *rank)
{
    struct place *place = &plan->places[rank->plan_rank];
    if (rank->phase != DPT__RANK_PHASE__RANK_FINISHED || rank->generation != plan->generation)
        return;
    plan->n_finished += !place->finished;
    place->finished = true;
}

/* Keeps the newest failure to save, for an operator who waits for a checkpoint. Of equal ones the
 * first: the error of a full disk comes before that of a rank which waits for the part. */
static void note_unsaved(struct run *run, const struct node *node, const Dpt__RankState *state)
{
    struct unsaved *unsaved = &run->progress.unsaved;
    char rank[24] = "a rank";
    if (state->unsaved_step <= 0 || state->unsaved_generation < unsaved->generation ||
        (state->unsaved_generation == unsaved->generation && state->unsaved_step <= unsaved->step))
        return;
    if (state->plan_rank >= 0)
        (void)snprintf(rank, sizeof rank, "rank %d", state->plan_rank);
    unsaved->generation = state->unsaved_generation;
    unsaved->step = state->unsaved_step;
    (void)snprintf(unsaved->text, sizeof unsaved->text, "%s (node %s%s%s): %s", rank, node->id,
                   node->host_name[0] != '\0' ? ", host " : "", node->host_name,
                   state->unsaved_why);
}

/* Takes the report of one rank. True: a process died that had a place in the newest plan and had
 * not finished. */
static bool take_rank_report(struct run *run, struct rank *rank, const Dpt__RankState *state)
{
    const bool same = state->spawn == rank->spawn;
    const bool died = rank->spawn != 0 && rank->phase != DPT__RANK_PHASE__RANK_DEAD &&
                      (!same || state->phase == DPT__RANK_PHASE__RANK_DEAD);
    const bool lost = died && dpt_rdzv_rank_is_member(rank) && !dpt_rdzv_has_finished(rank);
    if (lost && same && state->step_applied > run->progress.steps_done)
        run->progress.steps_done = state->step_applied;
    if (died)
        dpt_rdzv_note_loss(rank);
    run->progress.unsaved_known = run->progress.unsaved_known && holds_the_same(rank, state);
    dpt_rdzv_count_rank(rank, -1);
    if (!same) {
        dpt_rdzv_rank_fini(rank);
        *rank = (struct rank){.node = rank->node, .spawn = state->spawn, .place = rank->place};
    }
    const bool member = dpt_rdzv_rank_is_member(rank);
    if (state->busy && state->work_done != rank->work.done && run->plan.in_force && member)
        run->progress.step_ms = dpt_rdzv_listened_ms(run); /* restarts the stall limit */
    rank->heard_ms = run->core->now_ms - state->silent_ms;
    copy_rank_state(rank, state);
    keep_outcome(run, rank, state);
    copy_stacks(run, rank, state);
    note_unsaved(run, rank->node, state);
    dpt_rdzv_count_rank(rank, 1);
    if (member)
        note_finished(&run->plan, rank);
    dpt_rdzv_note_step(run, rank);
    return lost;
}

static bool reserve_ranks(struct node *node, size_t n_ranks)
{
    if (n_ranks <= node->n_ranks)
        return true;
    struct rank *bigger = realloc(node->ranks, n_ranks * sizeof *bigger);
    if (bigger == NULL)
        return false;
    for (size_t i = node->n_ranks; i < n_ranks; i++)
        bigger[i] = (struct rank){.node = node, .place = -1};
    node->ranks = bigger;
    node->n_ranks = (uint32_t)n_ranks;
    return true;
}

/* Records the newest checkpoint of the node, if no node has reported one as new. */
static void record_saved(struct run *run, const struct node *node, const Dpt__AgentState *message)
{
    int64_t step = run->progress.saved_step;
    for (size_t i = 0; i < message->n_ranks; i++) {
        const Dpt__RankState *state = message->ranks[i];
        if (state->spawn >= node->ranks[i].spawn && state->checkpoint_step > step)
            step = state->checkpoint_step;
    }
    if (step > run->progress.saved_step)
        dpt_rdzv_record(run, (struct dpt_rdzv_record){.kind = DPT_RDZV_RECORD_SAVED,
                                                      .generation = run->generation,
                                                      .step = step,
                                                      .node = node->id,
                                                      .host = node->host_name});
}

/* "killed by signal 9" -> "signal 9". */
static const char *short_error(const char *text)
{
    const char *killed = strstr(text, "killed by signal ");
    return killed != NULL ? killed + strlen("killed by ") : text;
}

/* Takes the reports of all ranks of the node. Returns how many processes died that had a place in
 * the newest plan and had not finished. */
static uint32_t take_rank_reports(struct run *run, struct node *node,
                                  const Dpt__AgentState *message)
{
    uint32_t lost = 0;
    if (!reserve_ranks(node, message->n_ranks)) {
        run->core->out.no_memory = true;
        return 0;
    }
    record_saved(run, node, message);
    for (size_t i = 0; i < message->n_ranks; i++) {
        const Dpt__RankState *state = message->ranks[i];
        struct rank *rank = &node->ranks[i];
        if (state->spawn < rank->spawn)
            continue;
        const int plan_rank = (int)rank->plan_rank;
        const char *how = short_error(state->text);
        const int64_t heard_ms =
            state->spawn == rank->spawn ? run->core->now_ms - state->silent_ms : rank->heard_ms;
        if (!take_rank_report(run, rank, state) || lost++ > 0)
            continue;
        const struct cause cause = dpt_rdzv_cause(
            CAUSE_RANK_LOST, dpt_rdzv_detect_ms(run, heard_ms), "rank %d (node %s%s%s) died%s%s",
            plan_rank, node->id, node->host_name[0] != '\0' ? ", host " : "", node->host_name,
            how[0] != '\0' ? ": " : "", how);
        dpt_rdzv_member_lost(run, cause);
    }
    return lost;
}

/* ---- errors ---- */

/* The time of the last sign of life of the process that broke the data plane: of the suspect or, if
 * it is unknown, of the member that has been silent longest. */
static int64_t last_heard_ms(const struct run *run, int32_t suspect)
{
    int64_t oldest_ms = run->core->now_ms;
    for (uint32_t i = 0; i < run->plan.world_size; i++) {
        const struct rank *rank = dpt_rdzv_rank_at(&run->plan.places[i]);
        if (rank != NULL && (suspect < 0 || (uint32_t)suspect == i) && rank->heard_ms < oldest_ms)
            oldest_ms = rank->heard_ms;
    }
    return oldest_ms;
}

/* Ends the generation in force if a rank of the node reports a data plane error in it, whichever
 * node caused the error. */
static void take_data_plane_error(struct run *run, const struct node *node,
                                  const Dpt__AgentState *message)
{
    for (uint32_t i = 0; run->plan.in_force && i < node->n_ranks; i++) {
        const struct rank *rank = &node->ranks[i];
        if (rank->failed_generation != run->plan.generation || !dpt_rdzv_rank_is_member(rank))
            continue;
        const char *text = i < message->n_ranks ? message->ranks[i]->text : "";
        const struct cause cause =
            dpt_rdzv_cause(CAUSE_COMM_ERROR, run->core->now_ms - last_heard_ms(run, rank->suspect),
                           "node %s: rank %d: %s", node->id, rank->plan_rank,
                           text[0] != '\0' ? text : "data plane error");
        dpt_rdzv_member_lost(run, cause);
        return;
    }
}

/* Counts the crashes that the node reports. `lost` of them are crashes of processes with a place in
 * the newest plan. */
static void take_crashes(struct run *run, struct node *node, const Dpt__AgentState *message,
                         uint32_t lost)
{
    const int64_t ago_ms = message->first_error_ms_ago < 0 ? 0 : message->first_error_ms_ago;
    const int64_t at_ms = run->core->now_ms > ago_ms ? run->core->now_ms - ago_ms : 0;
    char error[DPT_PROTO_TEXT_BYTES];
    (void)snprintf(error, sizeof error, "node %.63s: %.440s", node->id, message->first_error);
    if (message->first_error[0] != '\0')
        dpt_rdzv_note_error(run, at_ms, error);
    if (message->crashes <= node->crashes)
        return;
    const uint32_t more = message->crashes - node->crashes;
    node->crashes = message->crashes;
    if (lost > 0)
        dpt_rdzv_count_incident(run, message->first_error);
    if (more > lost)
        dpt_rdzv_count_crashes(run, more - lost, message->first_error);
}

/* ---- fatal errors ---- */

/* Facts about the nodes of the run, without one node. */
struct others {
    bool train;   /* one of them trains, or keeps its state until it can */
    bool members; /* one of them has a place in the newest plan */
    uint32_t staying;
};

static struct others others_than(const struct run *run, const struct node *node)
{
    struct others others = {0};
    for (size_t i = 0; i < run->n_nodes; i++) {
        const struct node *other = run->nodes[i];
        const bool member = other != node && dpt_rdzv_node_is_member(other);
        others.members = others.members || member;
        others.train = others.train || member || (other != node && other->generation > 0);
        others.staying += other != node && !other->leaving;
    }
    return others;
}

int64_t dpt_rdzv_step_kept_by_others(const struct run *run, const struct node *node)
{
    int64_t step = run->progress.step;
    for (uint32_t k = 0; k < node->n_ranks; k++)
        if (node->ranks[k].step_applied > step)
            step = node->ranks[k].step_applied;
    const bool has_copies = !run->spec.sharded || run->progress.redundant;
    return has_copies && others_than(run, node).members ? step : 0;
}

/* Takes an error that no restart mends. The server expels the node if enough nodes stay without it,
 * or if the node has no place and others train. Otherwise the run fails. If all nodes have the same
 * error, the server expels nodes until the run needs the next one; then the run fails. */
static void take_fatal_error(struct run *run, struct node *node, const struct inquiry *from)
{
    const char *error = from->message->first_error;
    char text[DPT_PROTO_TEXT_BYTES];
    const struct others others = others_than(run, node);
    const bool dispensable = others.staying > 0 && others.staying >= dpt_rdzv_min_nodes(run);
    /* A young server may not have heard the nodes that train, so it waits. The node will report the
     * error again. */
    if (!others.train && !dispensable && run->formation.run_generation == 0 &&
        node->generation == 0 && dpt_rdzv_is_young(run))
        return;
    if (!dispensable && (dpt_rdzv_node_is_member(node) || !others.train)) {
        (void)snprintf(text, sizeof text, "node %.63s: %.440s", node->id, error);
        dpt_rdzv_fail_run(run, text);
        return;
    }
    (void)snprintf(text, sizeof text, "it cannot take part: %.440s", error);
    const struct answer answer = {.phase = DPT__SERVER_PHASE__SERVER_EXPELLED,
                                  .run = run,
                                  .world_step = dpt_rdzv_step_kept_by_others(run, node),
                                  .text = text};
    dpt_rdzv_answer_outsider(from, &answer);
    dpt_rdzv_node_lost(run, node, text);
}

/* ---- the node ---- */

/* Grants the newest commit that a member of the generation in force asks for. */
static void grant_commits(struct run *run, const struct node *node)
{
    const bool running =
        run->phase == DPT_RDZV_RUNNING || run->phase == DPT_RDZV_DRAINING ||
        (run->phase == DPT_RDZV_PREPARING && run->formation.soft && run->plan.in_force);
    const int64_t granted = dpt_rdzv_granted_step(run);
    int64_t step = granted;
    for (uint32_t i = 0; running && i < node->n_ranks; i++) {
        const struct rank *rank = &node->ranks[i];
        if (rank->grant_step > step && rank->generation == run->plan.generation &&
            dpt_rdzv_rank_is_member(rank))
            step = rank->grant_step;
    }
    if (step == granted)
        return;
    run->changed = true;
    dpt_rdzv_record(run, (struct dpt_rdzv_record){.kind = DPT_RDZV_RECORD_GRANT,
                                                  .generation = run->plan.generation,
                                                  .step = step});
}

static void take_leaving(struct run *run, struct node *node, bool leaving)
{
    struct membership *membership = &run->membership;
    if (leaving && !node->leaving) {
        node->leaving_ms = run->core->now_ms;
        if (membership->n_leaving == 0)
            membership->leaving_since_ms = node->leaving_ms;
        dpt_rdzv_log(run, DPT_LOG_INFO, "node %s leaves", node->id);
    }
    membership->n_leaving += leaving;
    membership->n_leaving -= node->leaving;
    node->leaving = leaving;
}

/* Takes the node's generation, and prepares under another number if the node has the present one,
 * or a later one, of another server: the journal is an older copy then, and nodes take higher
 * numbers only. The members are not known either: a lease passes before a plan. */
static void take_generation(struct run *run, struct node *node, const Dpt__Stamp *stamp)
{
    struct formation *formation = &run->formation;
    node->generation = stamp->generation;
    formation->generation_high = dpt_rdzv_newer(formation->generation_high, node->generation);
    const bool is_used = run->phase == DPT_RDZV_PREPARING && stamp->epoch != run->core->epoch &&
                         node->generation >= run->generation;
    if (is_used) {
        if (!formation->outdated)
            formation->plan_after_ms = run->core->now_ms + run->timing.lease_ms;
        dpt_rdzv_prepare_number(run);
        dpt_rdzv_log(run, DPT_LOG_WARN,
                     "node %s is in generation %llu of another server, or of a newer journal than "
                     "this one: forming generation %llu in place of the one begun",
                     node->id, (unsigned long long)node->generation,
                     (unsigned long long)run->generation);
    }
    /* A later number, or the word of a server that is not of this journal. */
    if (is_used || node->generation > run->generation ||
        (node->generation > 0 && !dpt_rdzv_is_own_epoch(run->core, stamp->epoch)))
        formation->outdated = true;
}

struct node *dpt_rdzv_take_report(struct run *run, struct node *node, const struct inquiry *from)
{
    const Dpt__AgentState *message = from->message;
    const size_t n_nodes = run->n_nodes;
    copy_text(node->location.rack, sizeof node->location.rack, message->rack);
    copy_text(node->location.host, sizeof node->location.host, message->host);
    copy_text(node->host_name, sizeof node->host_name, message->host_name);
    copy_text(node->log_dir_id, sizeof node->log_dir_id, message->log_dir_id);
    copy_text(node->checkpoint_dir_id, sizeof node->checkpoint_dir_id, message->checkpoint_dir_id);
    copy_text(node->plan_digest, sizeof node->plan_digest, message->plan_digest);
    node->plan_world = message->plan_world;
    take_generation(run, node, message->stamp);
    take_leaving(run, node, message->leaving);
    if (node->plan_world > 0 && node->generation == run->formation.generation_high)
        run->formation.adopt_world = node->plan_world;
    /* Before the first generation of this server, only the agents know how many steps the run has
     * done. */
    if (run->formation.run_generation == 0 && message->step_high > run->progress.steps_done)
        run->progress.steps_done = message->step_high;
    const uint32_t lost = take_rank_reports(run, node, message);
    dpt_rdzv_note_readiness(node);
    take_data_plane_error(run, node, message);
    if (message->fatal) {
        take_fatal_error(run, node, from);
        return run->n_nodes == n_nodes ? node : NULL;
    }
    take_crashes(run, node, message, lost);
    grant_commits(run, node);
    return node;
}
