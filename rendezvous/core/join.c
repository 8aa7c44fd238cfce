/* What an agent's message changes: who it is, whether it may be here, and what its ranks report.
 *
 * A message is whole state. It is taken only if it is newer than what was taken from the same
 * (node, incarnation); anything else changes nothing. */
#include "base/hash.h"
#include "rendezvous/core/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t dpt_rdzv_id_hash(const char *id)
{
    return dpt_hash128(id, strlen(id)).lo;
}

static void copy_text(char *to, size_t to_bytes, const char *from)
{
    (void)snprintf(to, to_bytes, "%s", from);
}

/* ---- runs ---- */

static struct run *find_run(struct dpt_rdzv *core, const char *name)
{
    for (size_t i = 0; i < core->n_runs; i++)
        if (strcmp(core->runs[i]->name, name) == 0)
            return core->runs[i];
    return NULL;
}

struct run *dpt_rdzv_run_create(struct dpt_rdzv *core, const Dpt__AgentState *message)
{
    struct run *run = calloc(1, sizeof *run);
    const Dpt__RunSpec *spec = message->spec;
    char *digest = strdup(spec->config_digest), *yaml = strdup(spec->config_yaml);
    char *user = strdup(spec->user);
    if (run == NULL || digest == NULL || yaml == NULL || user == NULL) {
        free(run);
        free(digest);
        free(yaml);
        free(user);
        core->out.no_memory = true;
        return NULL;
    }
    copy_text(run->name, sizeof run->name, message->stamp->run);
    copy_text(run->fingerprint, sizeof run->fingerprint, message->fingerprint);
    copy_text(run->data_digest, sizeof run->data_digest, message->data_digest);
    copy_text(run->checkpoint_dir_id, sizeof run->checkpoint_dir_id, message->checkpoint_dir_id);
    run->spec = *spec;
    run->spec.base.n_unknown_fields = 0; /* a newer version's: the message's own memory */
    run->spec.base.unknown_fields = NULL;
    run->spec.config_digest = digest;
    run->spec.config_yaml = yaml;
    run->spec.user = user;
    run->timing = dpt_timing_of_run(spec->timeout_ms, spec->drain_ms);
    run->phase = DPT_RDZV_WAITING;
    run->phase_ms = core->now_ms;
    run->empty_ms = run->waits_since_ms = core->now_ms;
    const struct forgotten_run *former = dpt_rdzv_find_forgotten(core, run->name);
    run->generation_floor = former != NULL ? former->generation : core->generation_floor;
    run->ran_before = former != NULL ? former->run_generation : 0;
    run->adopt_until_ms = run->regather_until_ms = run->error_ms = -1;
    run->step = run->step_best = run->final_step = run->grant_step = -1;
    run->saved_step = run->farewell_step = -1;
    core->runs[core->n_runs++] = run;
    char timing[DPT_PROTO_TEXT_BYTES];
    dpt_timing_print(&run->timing, timing, sizeof timing);
    dpt_outbox_log(&core->out, DPT_LOG_INFO, run->name, 0, "new run of %u to %u nodes, %s",
                   spec->min_nodes, spec->max_nodes, timing);
    dpt_outbox_record(&core->out, &(struct dpt_rdzv_record){.kind = DPT_RDZV_RECORD_RUN,
                                                            .run = run->name,
                                                            .step = -1,
                                                            .spec = &run->spec});
    return run;
}

static void node_destroy(struct node *node)
{
    for (uint32_t i = 0; i < node->n_ranks; i++)
        free(node->ranks[i].outcome);
    free(node->ranks);
    free(node);
}

void dpt_rdzv_run_destroy(struct run **run)
{
    if (*run == NULL)
        return;
    for (size_t i = 0; i < (*run)->n_nodes; i++)
        node_destroy((*run)->nodes[i]);
    free((*run)->nodes);
    dpt_rdzv_plan_fini(&(*run)->plan);
    free((*run)->spec.config_digest);
    free((*run)->spec.config_yaml);
    free((*run)->spec.user);
    free(*run);
    *run = NULL;
}

/* ---- nodes ---- */

static struct node *find_node(const struct run *run, const char *id)
{
    uint64_t hash = dpt_rdzv_id_hash(id);
    for (size_t i = 0; i < run->n_nodes; i++)
        if (run->nodes[i]->id_hash == hash)
            return run->nodes[i];
    return NULL;
}

struct grave *dpt_rdzv_remove(struct run *run, struct node *node, bool released)
{
    struct grave *grave = &run->graves[run->n_graves++ % GRAVES_MAX];
    *grave = (struct grave){.id_hash = node->id_hash,
                            .incarnation = node->incarnation,
                            .released = released,
                            .cut_off = node->cut_off,
                            .awaited = node->cut_off && dpt_rdzv_may_hold_newest(run, node),
                            .counter_seen = node->counter_seen};
    memcpy(grave->secret, node->secret, sizeof grave->secret);
    for (uint32_t i = 0; i < run->plan.world_size; i++)
        if (run->plan.places[i].node == node)
            run->plan.places[i].node = NULL;
    for (uint32_t i = 0; i < node->n_ranks; i++)
        if (dpt_rdzv_rank_is_alive(&node->ranks[i]))
            dpt_rdzv_note_loss(run, node, &node->ranks[i]);
    size_t at = 0;
    while (run->nodes[at] != node)
        at++;
    memmove(&run->nodes[at], &run->nodes[at + 1], (run->n_nodes - at - 1) * sizeof run->nodes[0]);
    run->n_nodes--;
    node_destroy(node);
    return grave;
}

struct node *dpt_rdzv_node_create(struct dpt_rdzv *core, struct run *run,
                                  const Dpt__AgentState *message)
{
    if (run->n_nodes == run->nodes_max) {
        size_t wanted = run->nodes_max == 0 ? 16 : 2 * run->nodes_max;
        struct node **bigger = realloc(run->nodes, wanted * sizeof(struct node *));
        if (bigger == NULL) {
            core->out.no_memory = true;
            return NULL;
        }
        run->nodes = bigger;
        run->nodes_max = wanted;
    }
    struct node *node = calloc(1, sizeof *node);
    if (node == NULL) {
        core->out.no_memory = true;
        return NULL;
    }
    copy_text(node->id, sizeof node->id, message->stamp->node);
    node->id_hash = dpt_rdzv_id_hash(node->id);
    node->incarnation = message->stamp->incarnation;
    dpt_rdzv_secret_of(message, node->secret);
    node->joined = ++run->joins;
    node->joined_ms = node->heard_ms = core->now_ms;
    node->broken_ms = node->ready_since_ms = -1;
    node->crashes = message->crashes; /* those before this server knew it do not count */
    run->nodes[run->n_nodes++] = node;
    run->changed = true; /* the others show how many have joined */
    const bool back = message->stamp->epoch == core->epoch && message->stamp->generation > 0;
    dpt_outbox_log(&core->out, DPT_LOG_INFO, run->name, run->generation,
                   "node %s %s (%zu of %u to %u)", node->id,
                   back ? "is back with its state" : "joined", run->n_nodes, run->spec.min_nodes,
                   run->spec.max_nodes);
    return node;
}

/* ---- reports ---- */

static void take_outcome(struct dpt_rdzv *core, struct rank *rank, const Dpt__RankState *state)
{
    free(rank->outcome);
    rank->outcome = NULL;
    rank->outcome_bytes = 0;
    if (state->phase != DPT__RANK_PHASE__RANK_QUIESCED || state->outcome.len == 0)
        return;
    rank->outcome = malloc(state->outcome.len);
    if (rank->outcome == NULL) {
        core->out.no_memory = true;
        return;
    }
    memcpy(rank->outcome, state->outcome.data, state->outcome.len);
    rank->outcome_bytes = state->outcome.len;
}

static void take_shards(struct rank *rank, const Dpt__RankState *state)
{
    rank->n_shards = (int)state->n_shards; /* bounded by the message's check */
    for (int i = 0; i < rank->n_shards; i++) {
        rank->shards[i] =
            (struct dpt_shard){(int)state->shards[i]->index, (int)state->shards[i]->of};
        rank->pending[i] = state->shards[i]->pending;
    }
    rank->gradient = state->gradient;
    rank->pending_generation = state->pending_generation;
    rank->ran_generation = state->ran_generation;
    rank->rebuilding = state->rebuilding;
}

/* Whether a process that had a place in the generation in force is gone, and its last word. */
static bool take_rank(struct dpt_rdzv *core, struct run *run, struct node *node,
                      const Dpt__RankState *state, int64_t *ret_word_ms)
{
    struct rank *rank = &node->ranks[state->local_rank];
    int64_t word_ms = core->now_ms - state->silent_ms;
    *ret_word_ms = state->spawn == rank->spawn ? word_ms : rank->word_ms;
    bool died = rank->spawn != 0 && rank->phase != DPT__RANK_PHASE__RANK_DEAD &&
                (state->spawn > rank->spawn ||
                 (state->spawn == rank->spawn && state->phase == DPT__RANK_PHASE__RANK_DEAD));
    bool lost = died && dpt_rdzv_rank_is_member(run, rank) && !dpt_rdzv_has_finished(run, rank);
    if (lost && state->spawn == rank->spawn && state->step_applied > run->steps_done)
        run->steps_done = state->step_applied; /* its last word */
    if (died)
        dpt_rdzv_note_loss(run, node, rank);
    if (state->spawn != rank->spawn) {
        free(rank->outcome);
        *rank = (struct rank){.spawn = state->spawn};
    }
    rank->phase = state->phase;
    rank->generation = state->generation;
    copy_text(rank->shm_addr, sizeof rank->shm_addr, state->shm_addr);
    copy_text(rank->tcp_addr, sizeof rank->tcp_addr, state->tcp_addr);
    rank->step_applied = state->step_applied;
    rank->outcome_step = state->outcome_step;
    rank->checkpoint_step = state->checkpoint_step;
    if (state->checkpoint_step > run->saved_step)
        run->saved_step = state->checkpoint_step;
    rank->grant_step = state->grant_step;
    rank->failed_generation = state->failed_generation;
    rank->suspect = state->suspect;
    if (state->busy && state->work_done != rank->work_done && run->plan.in_force &&
        dpt_rdzv_rank_is_member(run, rank))
        run->step_ms = core->now_ms; /* it gets on: no stall */
    rank->busy = state->busy;
    rank->work_done = state->work_done;
    rank->step_ms_median = state->step_ms_median;
    rank->told_rank = state->plan_rank;
    rank->word_ms = word_ms;
    take_outcome(core, rank, state);
    take_shards(rank, state);
    if (rank->phase == DPT__RANK_PHASE__RANK_FINISHED && dpt_rdzv_rank_is_member(run, rank) &&
        rank->generation == run->plan.generation)
        run->plan.places[rank->plan_rank].finished = true;
    dpt_rdzv_note_step(core, run, rank);
    return lost;
}

/* In as few words as say it: "signal 9". */
static const char *how_it_ended(const char *text)
{
    const char *killed = strstr(text, "killed by signal ");
    return killed != NULL ? killed + strlen("killed by ") : text;
}

/* Returns how many processes with a place in the newest plan are gone. */
static uint32_t take_ranks(struct dpt_rdzv *core, struct run *run, struct node *node,
                           const Dpt__AgentState *message)
{
    uint32_t lost = 0;
    if (message->n_ranks > node->n_ranks) {
        struct rank *bigger = realloc(node->ranks, message->n_ranks * sizeof *bigger);
        if (bigger == NULL) {
            core->out.no_memory = true;
            return 0;
        }
        memset(&bigger[node->n_ranks], 0, (message->n_ranks - node->n_ranks) * sizeof bigger[0]);
        node->ranks = bigger;
        node->n_ranks = (uint32_t)message->n_ranks;
    }
    for (size_t i = 0; i < message->n_ranks; i++) {
        const Dpt__RankState *state = message->ranks[i];
        struct rank *rank = &node->ranks[i];
        if (state->spawn < rank->spawn)
            continue;
        const int plan_rank = (int)rank->plan_rank;
        const char *how = how_it_ended(state->text);
        int64_t word_ms;
        if (take_rank(core, run, node, state, &word_ms) && lost++ == 0) {
            struct cause cause =
                dpt_rdzv_cause(CAUSE_RANK_LOST, dpt_rdzv_noticed_ms(core, run, word_ms) - word_ms,
                               "rank %d (node %s%s%s) died%s%s", plan_rank, node->id,
                               node->host_name[0] != '\0' ? ", host " : "", node->host_name,
                               how[0] != '\0' ? ": " : "", how);
            dpt_rdzv_member_lost(core, run, &cause);
        }
    }
    return lost;
}

/* `lost` of the crashes that are told are of processes with a place in the newest plan. */
static void take_errors(struct dpt_rdzv *core, struct run *run, struct node *node,
                        const Dpt__AgentState *message, uint32_t lost)
{
    if (message->first_error[0] != '\0') {
        int64_t at_ms =
            core->now_ms - (message->first_error_ms_ago < 0 ? 0 : message->first_error_ms_ago);
        if (run->error_ms < 0 || at_ms < run->error_ms) {
            run->error_ms = at_ms < 0 ? 0 : at_ms;
            (void)snprintf(run->first_error, sizeof run->first_error, "node %.63s: %.440s",
                           node->id, message->first_error);
        }
    }
    if (message->crashes > node->crashes) {
        const uint32_t more = message->crashes - node->crashes;
        node->crashes = message->crashes;
        if (lost > 0)
            dpt_rdzv_count_incident(core, run, message->first_error);
        if (more > lost)
            dpt_rdzv_count_crashes(core, run, more - lost, message->first_error);
    }
}

/* Whether others than this node train, or wait with their state until they can. */
static bool others_train(const struct run *run, const struct node *node)
{
    for (size_t i = 0; i < run->n_nodes; i++)
        if (run->nodes[i] != node &&
            (run->nodes[i]->generation > 0 || dpt_rdzv_node_is_member(run, run->nodes[i])))
            return true;
    return false;
}

/* Whether the run has its minimum of nodes without this one. They may meet the same: then the last
 * of them ends the run. */
static bool is_dispensable(const struct run *run, const struct node *node)
{
    uint32_t others = 0;
    for (size_t i = 0; i < run->n_nodes; i++)
        others += run->nodes[i] != node && !run->nodes[i]->leaving;
    return others > 0 && others >= dpt_rdzv_min_nodes(run);
}

/* The step of the world that goes on without this member, which made its steps together with it:
 * the others hold it, but for shards that nobody has twice. 0: there is none. */
static int64_t step_kept(const struct run *run, const struct node *node)
{
    int64_t step = run->step;
    bool others = false;
    for (size_t i = 0; i < run->n_nodes; i++)
        others = others || (run->nodes[i] != node && dpt_rdzv_node_is_member(run, run->nodes[i]));
    for (uint32_t k = 0; k < node->n_ranks; k++)
        if (node->ranks[k].step_applied > step)
            step = node->ranks[k].step_applied;
    return others && (!run->spec.sharded || run->redundant) ? step : 0;
}

/* A node has met what no restart mends. Where the run has enough nodes without it, or others train
 * and it has no place, it is turned away and `node` is gone; else that is the run's end. */
static void take_fatal(struct dpt_rdzv *core, struct run *run, struct node *node,
                       const Dpt__AgentState *message)
{
    char text[DPT_PROTO_TEXT_BYTES];
    const bool others = others_train(run, node), dispensable = is_dispensable(run, node);
    /* A young server may not have heard yet of those who train. The node says it again. */
    if (!others && !dispensable && run->run_generation == 0 && node->generation == 0 &&
        dpt_rdzv_is_young(core, run))
        return;
    if (!dispensable && (dpt_rdzv_node_is_member(run, node) || !others)) {
        (void)snprintf(text, sizeof text, "node %.63s: %.440s", node->id, message->first_error);
        dpt_rdzv_fail(core, run, text);
        return;
    }
    (void)snprintf(text, sizeof text, "it cannot take part: %.440s", message->first_error);
    if (node->conn != 0)
        dpt_rdzv_expel(core, node->conn, message->stamp, run, step_kept(run, node), text);
    dpt_rdzv_node_lost(core, run, node, text);
}

/* The last sign of life of what broke a data plane: of the suspect, or, when nobody is suspected,
 * of the member that has been silent longest. */
static int64_t last_word_ms(const struct dpt_rdzv *core, const struct run *run, int32_t suspect)
{
    int64_t oldest_ms = core->now_ms;
    for (uint32_t i = 0; i < run->plan.world_size; i++) {
        const struct place *place = &run->plan.places[i];
        if (place->node == NULL || (suspect >= 0 && (uint32_t)suspect != i) ||
            place->node->ranks[place->local_rank].spawn != place->spawn)
            continue;
        int64_t word_ms = place->node->ranks[place->local_rank].word_ms;
        oldest_ms = word_ms < oldest_ms ? word_ms : oldest_ms;
    }
    return oldest_ms;
}

/* A data plane that broke in the generation in force ends it, whoever's fault it is. */
static void take_failures(struct dpt_rdzv *core, struct run *run, struct node *node,
                          const Dpt__AgentState *message)
{
    for (uint32_t i = 0; i < node->n_ranks; i++) {
        struct rank *rank = &node->ranks[i];
        if (!run->plan.in_force || rank->failed_generation != run->plan.generation ||
            !dpt_rdzv_rank_is_member(run, rank))
            continue;
        struct cause cause = dpt_rdzv_cause(
            CAUSE_COMM_ERROR, core->now_ms - last_word_ms(core, run, rank->suspect),
            "node %s: rank %d: %s", node->id, rank->plan_rank,
            i < message->n_ranks && message->ranks[i]->text[0] != '\0' ? message->ranks[i]->text
                                                                       : "data plane error");
        dpt_rdzv_member_lost(core, run, &cause);
        return;
    }
}

static void take_grants(struct dpt_rdzv *core, struct run *run, struct node *node)
{
    bool running = run->phase == DPT_RDZV_RUNNING || run->phase == DPT_RDZV_DRAINING ||
                   (run->phase == DPT_RDZV_PREPARING && run->soft && run->plan.in_force);
    for (uint32_t i = 0; running && i < node->n_ranks; i++) {
        struct rank *rank = &node->ranks[i];
        if (rank->grant_step <= run->grant_step || rank->generation != run->plan.generation ||
            !dpt_rdzv_rank_is_member(run, rank))
            continue;
        run->grant_step = rank->grant_step;
        run->changed = true;
        dpt_outbox_record(&core->out, &(struct dpt_rdzv_record){.kind = DPT_RDZV_RECORD_GRANT,
                                                                .run = run->name,
                                                                .generation = run->plan.generation,
                                                                .step = run->grant_step});
    }
}

static void take_state(struct dpt_rdzv *core, struct run *run, struct node *node,
                       const Dpt__AgentState *message)
{
    copy_text(node->host, sizeof node->host, message->host);
    copy_text(node->host_name, sizeof node->host_name, message->host_name);
    copy_text(node->log_dir_id, sizeof node->log_dir_id, message->log_dir_id);
    copy_text(node->checkpoint_dir_id, sizeof node->checkpoint_dir_id, message->checkpoint_dir_id);
    copy_text(node->plan_digest, sizeof node->plan_digest, message->plan_digest);
    node->plan_world = message->plan_world;
    node->generation = message->stamp->generation;
    if (message->leaving && !node->leaving) {
        node->leaving_ms = core->now_ms;
        dpt_outbox_log(&core->out, DPT_LOG_INFO, run->name, run->generation, "node %s leaves",
                       node->id);
    }
    node->leaving = message->leaving;
    /* Generations that an earlier server used are used up. */
    if (node->generation > run->generation_high)
        run->generation_high = node->generation;
    /* A server that has sent nobody off yet: only they know what was done before. */
    if (run->run_generation == 0 && message->step_high > run->steps_done)
        run->steps_done = message->step_high;
    const uint32_t lost = take_ranks(core, run, node, message);
    take_failures(core, run, node, message);
    if (message->fatal) {
        take_fatal(core, run, node, message);
        return;
    }
    take_errors(core, run, node, message, lost);
    take_grants(core, run, node);
}

/* ---- the message ---- */

void dpt_rdzv_on_message(struct dpt_rdzv *core, uint64_t conn, const Dpt__AgentState *message)
{
    const Dpt__Stamp *stamp = message->stamp;
    dpt_rdzv_hear_stranger(core); /* until it is taken */
    if (message->version != DPT_PROTO_VERSION) {
        char text[DPT_PROTO_TEXT_BYTES];
        (void)snprintf(text, sizeof text,
                       "this worker (%s) speaks protocol %u, the server protocol %d: install the "
                       "same version on both",
                       message->software, message->version, DPT_PROTO_VERSION);
        dpt_rdzv_answer_stranger(core, conn, stamp, DPT__SERVER_PHASE__SERVER_REFUSED, NULL, false,
                                 text);
        return;
    }
    struct run *run = find_run(core, stamp->run);
    struct node *node = run == NULL ? NULL : find_node(run, stamp->node);
    const bool own = node != NULL && dpt_rdzv_is_own(node, message);
    if (own && stamp->incarnation < node->incarnation) {
        dpt_rdzv_expel(core, conn, stamp, run, 0, "a newer incarnation of this node is here");
        return;
    }
    const bool met = !own || stamp->incarnation > node->incarnation;
    if (met)
        node = dpt_rdzv_meet(core, conn, &run, node, message);
    if (node == NULL) {
        if (run != NULL)
            dpt_rdzv_advance(core, run);
        return;
    }
    if (message->counter <= node->counter_seen)
        return; /* repeated or overtaken */
    dpt_rdzv_hear(core);
    node->counter_seen = message->counter;
    node->conn = conn;
    dpt_rdzv_unsuspect(core, run, node);
    dpt_rdzv_count_spoken(core, run, node);
    node->heard_ms = core->now_ms;
    node->extended_until_ms = node->forgiven_ms = 0;
    node->answer = true;
    take_state(core, run, node, message);
    node = met ? find_node(run, stamp->node) : NULL; /* a fatal error may have cost its place */
    if (node != NULL && stamp->epoch == core->epoch && stamp->generation > 0)
        dpt_rdzv_came_back(core, run, node);
    dpt_rdzv_advance(core, run);
}
