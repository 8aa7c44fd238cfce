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

static struct run *run_create(struct dpt_rdzv *core, const Dpt__AgentState *message)
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
    run->timing = dpt_timing_from(spec->timeout_ms);
    run->phase = DPT_RDZV_WAITING;
    run->phase_ms = core->now_ms;
    run->empty_ms = core->now_ms;
    run->adopt_until_ms = run->error_ms = -1;
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

static const struct grave *find_grave(const struct run *run, uint64_t hash, uint64_t incarnation)
{
    size_t n = run->n_graves < GRAVES_MAX ? run->n_graves : GRAVES_MAX;
    for (size_t i = 0; i < n; i++)
        if (run->graves[i].id_hash == hash && run->graves[i].incarnation >= incarnation)
            return &run->graves[i];
    return NULL;
}

void dpt_rdzv_remove(struct run *run, struct node *node, bool released)
{
    struct grave *grave = &run->graves[run->n_graves++ % GRAVES_MAX];
    *grave = (struct grave){
        .id_hash = node->id_hash, .incarnation = node->incarnation, .released = released};
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
}

static struct node *node_create(struct dpt_rdzv *core, struct run *run,
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
    node->joined = ++run->joins;
    node->heard_ms = core->now_ms;
    node->broken_ms = node->ready_since_ms = -1;
    node->crashes = message->crashes; /* those before this server knew it do not count */
    run->nodes[run->n_nodes++] = node;
    run->changed = true; /* the others show how many have joined */
    dpt_outbox_log(&core->out, DPT_LOG_INFO, run->name, run->generation,
                   "node %s joined (%zu of %u to %u)", node->id, run->n_nodes, run->spec.min_nodes,
                   run->spec.max_nodes);
    return node;
}

/* ---- refusals ---- */

/* Why this agent may not join the run; false: it may. */
static bool refusal(const struct run *run, const Dpt__AgentState *message, char *ret_text,
                    size_t text_bytes, bool *ret_show_spec)
{
    const Dpt__RunSpec *mine = &run->spec, *theirs = message->spec;
    *ret_show_spec = false;
    if (strcmp(mine->user, theirs->user) != 0) {
        (void)snprintf(ret_text, text_bytes,
                       "run '%s' belongs to user '%s', not to '%s': choose another run name",
                       run->name, mine->user, theirs->user);
    } else if (strcmp(mine->config_digest, theirs->config_digest) != 0) {
        *ret_show_spec = true;
        (void)snprintf(ret_text, text_bytes, "the config differs from that of run '%s'", run->name);
    } else if (strcmp(run->fingerprint, message->fingerprint) != 0) {
        (void)snprintf(ret_text, text_bytes,
                       "this node computes by other means (%s) than the run (%s); train.reduction "
                       "'canonical' needs equal devices and libraries, 'fast' one cluster.backend "
                       "and strategy.offload that all nodes can have",
                       message->fingerprint, run->fingerprint);
    } else if (run->data_digest[0] != '\0' && message->data_digest[0] != '\0' &&
               strcmp(run->data_digest, message->data_digest) != 0) {
        (void)snprintf(ret_text, text_bytes,
                       "the data here (%s) are not those of run '%s' (%s): data.train, and "
                       "data.val when it evaluates",
                       message->data_digest, run->name, run->data_digest);
    } else if (mine->one_checkpoint_dir &&
               strcmp(run->checkpoint_dir_id, message->checkpoint_dir_id) != 0) {
        (void)snprintf(ret_text, text_bytes,
                       "%s of this node is not that of run '%s': under this strategy every rank "
                       "holds a part of the state and writes it into one folder; give all nodes "
                       "the same folder of a shared file system, or all of them none "
                       "(checkpoint.dir=null), or take strategy.name=ddp",
                       message->checkpoint_dir_id[0] ? "checkpoint.dir"
                                                     : "The missing "
                                                       "checkpoint.dir",
                       run->name);
    } else if (run->n_nodes >= DPT_PROTO_NODES_MAX) {
        (void)snprintf(ret_text, text_bytes, "run '%s' has %d nodes, which is the most", run->name,
                       DPT_PROTO_NODES_MAX);
    } else {
        return false;
    }
    return true;
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

static void take_ranks(struct dpt_rdzv *core, struct run *run, struct node *node,
                       const Dpt__AgentState *message)
{
    bool lost = false;
    if (message->n_ranks > node->n_ranks) {
        struct rank *bigger = realloc(node->ranks, message->n_ranks * sizeof *bigger);
        if (bigger == NULL) {
            core->out.no_memory = true;
            return;
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
        uint32_t before = rank->spawn;
        int64_t word_ms;
        if (take_rank(core, run, node, state, &word_ms) && !lost) {
            lost = true;
            struct cause cause =
                dpt_rdzv_cause(CAUSE_RANK_LOST, dpt_rdzv_noticed_ms(core, run, word_ms) - word_ms,
                               "node %s: rank process %zu (spawn %u) died%s%s", node->id, i, before,
                               state->text[0] != '\0' ? ": " : "", state->text);
            dpt_rdzv_member_lost(core, run, &cause);
        }
    }
}

static void take_errors(struct dpt_rdzv *core, struct run *run, struct node *node,
                        const Dpt__AgentState *message)
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
        uint32_t more = message->crashes - node->crashes;
        node->crashes = message->crashes;
        dpt_rdzv_count_crashes(core, run, more, message->first_error);
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

/* A node has met what no restart mends. Where it has a place in the newest plan, or nobody else
 * trains, that is the run's end; a newcomer's or a spare's own misfortune is nobody else's: it is
 * turned away, and `node` is gone. */
static void take_fatal(struct dpt_rdzv *core, struct run *run, struct node *node,
                       const Dpt__AgentState *message)
{
    char text[DPT_PROTO_TEXT_BYTES];
    const bool others = others_train(run, node);
    /* A young server may not have heard yet of those who train. The node says it again. */
    if (!others && run->run_generation == 0 && node->generation == 0 &&
        core->now_ms < core->start_ms + run->timing.lease_ms)
        return;
    if (dpt_rdzv_node_is_member(run, node) || !others) {
        (void)snprintf(text, sizeof text, "node %.63s: %.440s", node->id, message->first_error);
        dpt_rdzv_fail(core, run, text);
        return;
    }
    (void)snprintf(text, sizeof text, "it cannot take part: %.440s", message->first_error);
    if (node->conn != 0)
        dpt_rdzv_answer_stranger(core, node->conn, message->stamp,
                                 DPT__SERVER_PHASE__SERVER_EXPELLED, run, false, text);
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
    take_ranks(core, run, node, message);
    take_failures(core, run, node, message);
    if (message->fatal) {
        take_fatal(core, run, node, message);
        return;
    }
    take_errors(core, run, node, message);
    take_grants(core, run, node);
}

/* ---- the message ---- */

/* A straggler of a run that ended and was forgotten. */
static bool tell_end(struct dpt_rdzv *core, uint64_t conn, const Dpt__Stamp *stamp)
{
    uint64_t hash = dpt_rdzv_id_hash(stamp->run);
    size_t n = core->n_ended < ENDED_MAX ? core->n_ended : ENDED_MAX;
    for (size_t i = 0; i < n; i++) {
        const struct ended_run *ended = &core->ended[i];
        if (ended->name_hash != hash)
            continue;
        dpt_rdzv_answer_stranger(
            core, conn, stamp,
            ended->failed ? DPT__SERVER_PHASE__SERVER_FAILED : DPT__SERVER_PHASE__SERVER_DONE, NULL,
            false, ended->failed ? "it ended while this node was away" : "");
        return true;
    }
    return false;
}

/* A node that this run does not count in: refused, expelled, told the end, or taken in (then it is
 * returned). */
static struct node *meet(struct dpt_rdzv *core, uint64_t conn, struct run **run_at,
                         const Dpt__AgentState *message)
{
    const Dpt__Stamp *stamp = message->stamp;
    struct run *run = *run_at;
    const struct grave *grave =
        run == NULL ? NULL : find_grave(run, dpt_rdzv_id_hash(stamp->node), stamp->incarnation);
    bool was_here = stamp->epoch == core->epoch && stamp->generation > 0;
    if (run == NULL && stamp->epoch == core->epoch && tell_end(core, conn, stamp))
        return NULL;
    if (grave != NULL || was_here) {
        bool released =
            grave != NULL && grave->released && grave->incarnation == stamp->incarnation;
        dpt_rdzv_answer_stranger(core, conn, stamp,
                                 released ? DPT__SERVER_PHASE__SERVER_RELEASED
                                          : DPT__SERVER_PHASE__SERVER_EXPELLED,
                                 run, false, released ? "" : "this incarnation was lost");
        return NULL;
    }
    if (run != NULL && (run->phase == DPT_RDZV_DONE || run->phase == DPT_RDZV_FAILED)) {
        dpt_rdzv_answer_stranger(core, conn, stamp,
                                 run->phase == DPT_RDZV_DONE ? DPT__SERVER_PHASE__SERVER_DONE
                                                             : DPT__SERVER_PHASE__SERVER_FAILED,
                                 run, false, run->end_text);
        return NULL;
    }
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
        *run_at = run = run_create(core, message);
    if (run == NULL)
        return NULL;
    char text[DPT_PROTO_TEXT_BYTES];
    bool show_spec = false;
    if (refusal(run, message, text, sizeof text, &show_spec)) {
        dpt_outbox_log(&core->out, DPT_LOG_WARN, run->name, run->generation, "node %s refused: %s",
                       stamp->node, text);
        dpt_rdzv_answer_stranger(core, conn, stamp, DPT__SERVER_PHASE__SERVER_REFUSED, run,
                                 show_spec, text);
        return NULL;
    }
    /* It comes from an earlier server and trains: perhaps all do, then nothing need be formed. */
    if (stamp->generation > 0 && run->run_generation == 0 && run->adopt_until_ms < 0 &&
        (run->phase == DPT_RDZV_WAITING || run->phase == DPT_RDZV_SETTLING)) {
        run->phase = DPT_RDZV_WAITING;
        run->adopt_until_ms = core->now_ms + run->timing.lease_ms;
    }
    return node_create(core, run, message);
}

void dpt_rdzv_on_message(struct dpt_rdzv *core, uint64_t conn, const Dpt__AgentState *message)
{
    const Dpt__Stamp *stamp = message->stamp;
    dpt_rdzv_hear(core);
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
    if (node != NULL && stamp->incarnation < node->incarnation) {
        dpt_rdzv_answer_stranger(core, conn, stamp, DPT__SERVER_PHASE__SERVER_EXPELLED, run, false,
                                 "a newer incarnation of this node is here");
        return;
    }
    if (node != NULL && stamp->incarnation > node->incarnation) {
        dpt_rdzv_node_lost(core, run, node, "it came back as a new incarnation");
        node = NULL;
    }
    if (node == NULL)
        node = meet(core, conn, &run, message);
    if (node == NULL) {
        if (run != NULL)
            dpt_rdzv_advance(core, run);
        return;
    }
    if (message->counter <= node->counter_seen)
        return; /* repeated or overtaken */
    node->counter_seen = message->counter;
    node->conn = conn;
    node->broken_ms = -1;
    node->heard_ms = core->now_ms;
    node->extended_until_ms = node->forgiven_ms = 0;
    node->answer = true;
    take_state(core, run, node, message);
    dpt_rdzv_advance(core, run);
}
