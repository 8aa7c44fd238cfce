/* The rank processes of this node: when they are started, what they are told, and when they are
 * given up. */
#include "worker/agent/core_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void reset_state(struct agent_rank *rank, uint32_t local_rank)
{
    dpt__rank_state__init(&rank->state);
    rank->state.local_rank = local_rank;
    rank->state.spawn = rank->spawn;
    rank->state.step_applied = rank->state.outcome_step = rank->state.checkpoint_step = -1;
    rank->state.grant_step = -1;
    rank->state.suspect = rank->state.plan_rank = -1;
    free(rank->outcome);
    rank->outcome = NULL;
    rank->shm_addr[0] = rank->tcp_addr[0] = rank->text[0] = rank->weights_hash[0] = '\0';
    rank->state.shm_addr = rank->shm_addr;
    rank->state.tcp_addr = rank->tcp_addr;
    rank->state.text = rank->text;
    rank->state.weights_hash = rank->weights_hash;
    rank->tokens_per_s = 0;
    rank->val_step = rank->saved_step = 0;
    rank->n_steps = 0;
    rank->has_summary = false;
    rank->step_ms_median = 0;
    rank->started = rank->doomed = false;
    rank->kept_step = 0;
    rank->asked_generation = 0;
    rank->plan_rank = -1;
}

void dpt_agent_rank_init(struct agent_rank *rank, uint32_t local_rank)
{
    reset_state(rank, local_rank);
    rank->life = LIFE_NONE;
}

void dpt_agent_rank_fini(struct agent_rank *rank)
{
    free(rank->outcome);
    rank->outcome = NULL;
}

static bool is_ours(const struct dpt_agent *agent, uint32_t local_rank, uint32_t spawn)
{
    return local_rank < agent->n_ranks && agent->ranks[local_rank].spawn == spawn &&
           (agent->ranks[local_rank].life == LIFE_UP ||
            agent->ranks[local_rank].life == LIFE_KILLED);
}

bool dpt_agent_has_processes(const struct dpt_agent *agent)
{
    for (uint32_t i = 0; i < agent->n_ranks; i++)
        if (agent->ranks[i].life == LIFE_UP || agent->ranks[i].life == LIFE_KILLED)
            return true;
    return false;
}

bool dpt_agent_is_computing(const struct dpt_agent *agent)
{
    for (uint32_t i = 0; i < agent->n_ranks; i++)
        if (agent->ranks[i].life == LIFE_UP &&
            agent->ranks[i].state.phase == DPT__RANK_PHASE__RANK_RUNNING)
            return true;
    return false;
}

int64_t dpt_agent_newest_of(const struct agent_rank *rank)
{
    const int64_t told = rank->state.step_applied;
    return rank->kept_step > told ? rank->kept_step : told;
}

int64_t dpt_agent_step_of(const struct dpt_agent *agent)
{
    int64_t step = -1;
    for (uint32_t i = 0; i < agent->n_ranks; i++)
        if (agent->ranks[i].life == LIFE_UP && dpt_agent_newest_of(&agent->ranks[i]) > step)
            step = dpt_agent_newest_of(&agent->ranks[i]);
    return step;
}

/* ---- starting and killing ---- */

static void spawn_rank(struct dpt_agent *agent, uint32_t local_rank)
{
    struct agent_rank *rank = &agent->ranks[local_rank];
    rank->spawn++;
    reset_state(rank, local_rank);
    rank->life = LIFE_UP;
    rank->heard_ms = rank->word_ms = agent->now_ms;
    rank->tell = true;
    agent->tell_server = true;
    dpt_agent_act(agent, &(struct dpt_agent_action){.kind = DPT_AGENT_ACTION_SPAWN,
                                                    .local_rank = local_rank,
                                                    .spawn = rank->spawn,
                                                    .incarnation = agent->incarnation});
}

void dpt_agent_spawn_ranks(struct dpt_agent *agent)
{
    for (uint32_t i = 0; i < agent->n_ranks; i++)
        if (agent->ranks[i].life == LIFE_NONE || agent->ranks[i].life == LIFE_DOWN)
            spawn_rank(agent, i);
}

static void kill_process(struct dpt_agent *agent, uint32_t local_rank)
{
    agent->ranks[local_rank].life = LIFE_KILLED;
    dpt_agent_act(agent, &(struct dpt_agent_action){.kind = DPT_AGENT_ACTION_KILL,
                                                    .local_rank = local_rank,
                                                    .spawn = agent->ranks[local_rank].spawn});
}

void dpt_agent_kill_ranks(struct dpt_agent *agent)
{
    for (uint32_t i = 0; i < agent->n_ranks; i++)
        if (agent->ranks[i].life == LIFE_UP)
            kill_process(agent, i);
    agent->kill_sent = true;
}

/* When the last rank of this node that computed has come to a stop. */
static void note_standstill(struct dpt_agent *agent)
{
    if (dpt_agent_is_computing(agent))
        agent->still_since_ms = -1;
    else if (agent->still_since_ms < 0)
        agent->still_since_ms = agent->now_ms;
}

/* ---- crashes ---- */

static void note_error(struct dpt_agent *agent, uint32_t local_rank, const char *text)
{
    if (agent->first_error[0] != '\0')
        return;
    agent->error_ms = agent->now_ms;
    agent->error_step = dpt_agent_step_of(agent);
    char line[DPT_PROTO_TEXT_BYTES];
    (void)snprintf(line, sizeof line, "rank process %u: %.470s", local_rank, text);
    dpt_agent_copy_text(agent->first_error, sizeof agent->first_error, line);
}

bool dpt_agent_will_respawn(const struct dpt_agent *agent, uint32_t local_rank)
{
    const struct agent_rank *rank = &agent->ranks[local_rank];
    return rank->life == LIFE_DOWN && rank->failed_starts < STARTS_MAX && !agent->leaving &&
           !agent->fatal && agent->stage == STAGE_JOINED;
}

/* What ends this node, and the run where no others train. */
static void set_fatal(struct dpt_agent *agent, int exit_code, uint32_t local_rank, const char *text)
{
    agent->fatal = true;
    agent->fatal_code = exit_code;
    agent->fatal_counter = agent->counter;
    agent->fatal_by_ms = agent->now_ms + agent->timing.timeout_ms;
    agent->first_error[0] = '\0'; /* it ends by this one, whatever came before */
    note_error(agent, local_rank, text);
    agent->tell_server = true;
}

/* No process is started in this place any more, for the reason in `text`: this machine lacks what
 * it needs, and the others shall not pay for it. The last place takes the node along. */
static void give_place_up(struct dpt_agent *agent, uint32_t local_rank, int exit_code,
                          const char *text)
{
    agent->ranks[local_rank].failed_starts = STARTS_MAX;
    for (uint32_t i = 0; i < agent->n_ranks; i++) {
        if (agent->ranks[i].failed_starts >= STARTS_MAX)
            continue;
        dpt_agent_log(agent, DPT_LOG_ERROR,
                      "rank process %u: %s; its place stays empty until this node joins anew",
                      local_rank, text);
        return;
    }
    if (!agent->fatal)
        set_fatal(agent, exit_code, local_rank, text);
}

/* Another process of this node has got as far as to stand by, and there is a run to take part in.
 */
static bool others_take_part(const struct dpt_agent *agent, uint32_t local_rank)
{
    for (uint32_t i = 0; i < agent->n_ranks; i++)
        if (i != local_rank && agent->ranks[i].life == LIFE_UP && agent->ranks[i].started)
            return agent->generation > 0;
    return false;
}

/* Where this node takes part in the next generation, the line of its begin tells why the last one
 * ended. None is near without a server, while too few are here, or for a node that leaves. */
static bool next_generation_tells(const struct dpt_agent *agent, uint32_t local_rank)
{
    if (agent->leaving || !agent->server_up || dpt_agent_lacks_server(agent) ||
        dpt_agent_is_waiting(agent))
        return false;
    return agent->ranks[local_rank].started &&
           (others_take_part(agent, local_rank) || agent->n_nodes <= agent->spec.min_nodes);
}

static void say_crash(struct dpt_agent *agent, uint32_t local_rank, const char *how, bool is_told)
{
    const struct agent_rank *rank = &agent->ranks[local_rank];
    const bool differs = rank->text[0] != '\0' && strcmp(rank->text, how) != 0;
    char lost[2 * DPT_PROTO_NAME_BYTES] = "", next[DPT_PROTO_NAME_BYTES] = "";
    const int64_t gone = dpt_agent_gone_step(agent);
    if (gone > 0 && !dpt_agent_gone_is_elsewhere(agent))
        (void)snprintf(lost, sizeof lost, "; the steps after %lld, up to %lld, are lost with it",
                       (long long)dpt_agent_whole_step(agent), (long long)gone);
    if (!agent->leaving)
        (void)snprintf(next, sizeof next, "; starting it again in %lld ms",
                       (long long)rank->pause_ms);
    agent->gone_told = agent->gone_told || !is_told;
    dpt_agent_log(agent, is_told ? DPT_LOG_DEBUG : DPT_LOG_WARN,
                  "rank process %u (spawn %u) %s%s%s%s%s", local_rank, rank->spawn, how,
                  differs ? ": " : "", differs ? rank->text : "", lost, next);
}

/* Steps that it had made since its last message. */
static void take_kept_step(struct dpt_agent *agent, struct agent_rank *rank)
{
    if (rank->kept_step <= 0 || rank->kept_step <= rank->state.step_applied)
        return;
    rank->state.step_applied = rank->kept_step;
    rank->state.outcome_step = -1; /* no other can have it from here */
    if (rank->kept_step > agent->step_high)
        agent->step_high = rank->kept_step;
}

/* A process has ended by itself, or had to be ended. `said`: its newest words say why. So do those
 * of a fatal error; others are about a peer. */
static void crashed(struct dpt_agent *agent, uint32_t local_rank, const char *how, bool said)
{
    struct agent_rank *rank = &agent->ranks[local_rank];
    const struct dpt_timing *timing = &agent->timing;
    bool finished = rank->state.phase == DPT__RANK_PHASE__RANK_FINISHED;
    const bool given_up = agent->fatal || rank->failed_starts >= STARTS_MAX;
    if (rank->text[0] == '\0' || (!agent->fatal && !said))
        dpt_agent_copy_text(rank->text, sizeof rank->text, how);
    if (!finished) {
        agent->crashes += rank->started; /* else STARTS_MAX bounds them */
        note_error(agent, local_rank, rank->text);
    }
    take_kept_step(agent, rank);
    dpt_agent_note_gone(agent, rank);
    rank->life = LIFE_KILLED; /* or about to be, or reaped: its steps are gone */
    rank->state.phase = DPT__RANK_PHASE__RANK_DEAD;
    rank->plan_rank = -1;
    note_standstill(agent);
    rank->pause_ms = rank->pause_ms == 0 ? timing->respawn_ms : 2 * rank->pause_ms;
    if (rank->pause_ms > timing->respawn_max_ms)
        rank->pause_ms = timing->respawn_max_ms;
    rank->respawn_at_ms = agent->now_ms + rank->pause_ms;
    rank->failed_starts = rank->started ? 0 : rank->failed_starts + 1;
    agent->tell_server = true;
    if (given_up) /* and said: it is not started again */
        return;
    if (rank->failed_starts >= STARTS_MAX) {
        char text[DPT_PROTO_TEXT_BYTES];
        (void)snprintf(text, sizeof text,
                       "%d processes in a row ended before they stood by; the last: %.400s",
                       STARTS_MAX, rank->text);
        give_place_up(agent, local_rank, DPT_EXIT_FAILED, text);
        return;
    }
    say_crash(agent, local_rank, how, finished || next_generation_tells(agent, local_rank));
}

static void give_up(struct dpt_agent *agent, uint32_t local_rank, const char *why)
{
    crashed(agent, local_rank, why, false);
    kill_process(agent, local_rank);
}

void dpt_agent_on_rank_step(struct dpt_agent *agent, uint32_t local_rank, int64_t step)
{
    if (agent->ranks[local_rank].life == LIFE_UP)
        agent->ranks[local_rank].kept_step = step;
}

void dpt_agent_on_rank_eof(struct dpt_agent *agent, uint32_t local_rank, uint32_t spawn,
                           int64_t step)
{
    if (!is_ours(agent, local_rank, spawn) || agent->ranks[local_rank].life == LIFE_KILLED ||
        agent->stage >= STAGE_RESETTING)
        return; /* one that was told to exit closes its link before it is gone */
    dpt_agent_on_rank_step(agent, local_rank, step);
    give_up(agent, local_rank, "closed its link");
}

void dpt_agent_on_rank_waits(struct dpt_agent *agent, uint32_t local_rank, uint32_t spawn)
{
    struct agent_rank *rank = &agent->ranks[local_rank];
    if (rank->life == LIFE_UP && rank->spawn == spawn)
        rank->heard_ms = rank->word_ms = agent->now_ms;
}

void dpt_agent_on_rank_exited(struct dpt_agent *agent, const struct dpt_agent_event *event)
{
    const uint32_t local_rank = event->local_rank;
    const int exit_code = event->exit_code;
    const char *text = event->text != NULL ? event->text : "";
    if (!is_ours(agent, local_rank, event->spawn))
        return;
    struct agent_rank *rank = &agent->ranks[local_rank];
    bool counted = rank->life == LIFE_KILLED;
    dpt_agent_on_rank_step(agent, local_rank, event->step);
    rank->state.exit_code = exit_code;
    if (!counted && event->is_final && agent->stage < STAGE_RESETTING) { /* it never was */
        dpt_agent_copy_text(rank->text, sizeof rank->text, text);
        give_place_up(agent, local_rank, DPT_EXIT_FAILED, text);
    } else if (!counted && agent->stage < STAGE_RESETTING) {
        char how[DPT_PROTO_NAME_BYTES];
        (void)snprintf(how, sizeof how,
                       exit_code >= 0 ? "exited with status %d" : "was killed by signal %d",
                       exit_code >= 0 ? exit_code : -exit_code);
        crashed(agent, local_rank, text[0] != '\0' ? text : how, false);
    }
    rank->life = LIFE_DOWN;
    rank->state.phase = DPT__RANK_PHASE__RANK_DEAD;
    agent->tell_server = true;
}

/* ---- what a rank says ---- */

static bool is_news(const Dpt__RankState *old, const Dpt__RankState *new)
{
    return old->phase != new->phase || old->generation != new->generation ||
           old->failed_generation != new->failed_generation || old->grant_step != new->grant_step ||
           old->busy != new->busy || old->rescued_step != new->rescued_step ||
           old->rescue_failed != new->rescue_failed;
}

static void copy_state(struct dpt_agent *agent, struct agent_rank *rank, const Dpt__RankState *from)
{
    uint8_t *outcome = NULL;
    if (from->phase == DPT__RANK_PHASE__RANK_QUIESCED && from->outcome.len > 0) {
        outcome = malloc(from->outcome.len);
        if (outcome == NULL) {
            agent->no_memory = true;
            return;
        }
        memcpy(outcome, from->outcome.data, from->outcome.len);
    }
    free(rank->outcome);
    rank->outcome = outcome;
    dpt_agent_copy_text(rank->shm_addr, sizeof rank->shm_addr, from->shm_addr);
    dpt_agent_copy_text(rank->tcp_addr, sizeof rank->tcp_addr, from->tcp_addr);
    dpt_agent_copy_text(rank->text, sizeof rank->text, from->text);
    dpt_agent_copy_text(rank->weights_hash, sizeof rank->weights_hash, from->weights_hash);
    rank->state = *from;
    rank->state.base.n_unknown_fields = 0;
    rank->state.base.unknown_fields = NULL;
    rank->state.shm_addr = rank->shm_addr;
    rank->state.tcp_addr = rank->tcp_addr;
    rank->state.text = rank->text;
    rank->state.weights_hash = rank->weights_hash;
    rank->state.outcome = (ProtobufCBinaryData){outcome == NULL ? 0 : from->outcome.len, outcome};
    rank->state.shards = rank->shard_list;
    for (size_t i = 0; i < from->n_shards; i++) { /* bounded by the message's check */
        rank->shards[i] = *from->shards[i];
        rank->shards[i].base.n_unknown_fields = 0;
        rank->shards[i].base.unknown_fields = NULL;
        rank->shard_list[i] = &rank->shards[i];
    }
}

/* What is for people. */
static void take_story(struct agent_rank *rank, const Dpt__RankToAgent *message)
{
    rank->tokens_per_s = message->tokens_per_s;
    rank->val_step = message->val_step;
    rank->val_loss = message->val_loss;
    rank->val_right = message->val_right;
    rank->val_samples = message->val_samples;
    rank->saved_step = message->saved_step;
    if (message->n_steps > 0)
        rank->n_steps = message->n_steps; /* bounded by the message's check */
    for (size_t i = 0; i < message->n_steps; i++) {
        const Dpt__StepRecord *from = message->steps[i];
        rank->steps[i] = (struct dpt_agent_step){.step = from->step,
                                                 .loss = from->loss,
                                                 .lr = from->lr,
                                                 .grad_norm = from->grad_norm,
                                                 .tokens_per_s = from->tokens_per_s,
                                                 .world_size = from->world_size,
                                                 .epoch = from->epoch,
                                                 .epoch_first_step = from->epoch_first_step,
                                                 .epoch_avg_loss = from->epoch_avg_loss,
                                                 .epoch_seconds = from->epoch_seconds,
                                                 .epoch_samples_per_s = from->epoch_samples_per_s};
    }
    rank->has_summary = message->summary != NULL;
    if (message->summary == NULL)
        return;
    rank->summary = *message->summary;
    rank->summary.base.n_unknown_fields = 0;
    rank->summary.base.unknown_fields = NULL;
    rank->summary.weights_hash = rank->weights_hash;
}

void dpt_agent_on_rank(struct dpt_agent *agent, uint32_t local_rank, uint32_t spawn,
                       const Dpt__RankToAgent *message)
{
    if (!is_ours(agent, local_rank, spawn) || agent->ranks[local_rank].life != LIFE_UP ||
        message->state->phase == DPT__RANK_PHASE__RANK_DEAD)
        return;
    struct agent_rank *rank = &agent->ranks[local_rank];
    rank->heard_ms = rank->word_ms = agent->now_ms;
    rank->step_ms_median = message->step_ms_median;
    take_story(rank, message);
    if (is_news(&rank->state, message->state)) {
        agent->tell_server = true;
        rank->tell = true;
    }
    copy_state(agent, rank, message->state);
    note_standstill(agent);
    rank->started = rank->started || rank->state.phase != DPT__RANK_PHASE__RANK_STARTING;
    /* What one process has seen saved is so after its end, too. */
    if (rank->state.checkpoint_step > agent->saved_step)
        agent->saved_step = rank->state.checkpoint_step;
    if (rank->state.step_applied > agent->step_high)
        agent->step_high = rank->state.step_applied;
    if (agent->first_error[0] != '\0' && !agent->fatal &&
        rank->state.step_applied >= agent->error_step + FORGIVEN_STEPS) {
        agent->first_error[0] = '\0';
        rank->pause_ms = 0;
    }
    if (message->broken && !agent->fatal) { /* what it holds may not even let go of it */
        crashed(agent, local_rank, "cannot go on", true);
        kill_process(agent, local_rank);
        return;
    }
    rank->doomed = rank->doomed || (message->fatal && !message->sound);
    if (!message->fatal || agent->fatal)
        return;
    const int exit_code = message->exit_code > 0 ? (int)message->exit_code : DPT_EXIT_FAILED;
    const char *text = rank->text[0] != '\0' ? rank->text : "fatal error";
    if (!rank->started && others_take_part(agent, local_rank))
        give_place_up(agent, local_rank, exit_code, text);
    else
        set_fatal(agent, exit_code, local_rank, text);
}

/* ---- what a rank is told ---- */

void dpt_agent_tell_ranks(struct dpt_agent *agent)
{
    for (uint32_t i = 0; i < agent->n_ranks; i++)
        agent->ranks[i].tell = true;
}

static Dpt__RankCommand command_for(const struct dpt_agent *agent, const struct agent_rank *rank)
{
    if (agent->stage == STAGE_ENDING)
        return DPT__RANK_COMMAND__COMMAND_EXIT;
    if (agent->rescuing)
        return dpt_agent_is_rescuer(agent, (uint32_t)(rank - agent->ranks))
                   ? DPT__RANK_COMMAND__COMMAND_RESCUE
                   : DPT__RANK_COMMAND__COMMAND_STANDBY;
    if (rank->state.phase == DPT__RANK_PHASE__RANK_STARTING)
        return DPT__RANK_COMMAND__COMMAND_STANDBY;
    switch (agent->order) {
    case ORDER_PREPARE_SOFT:
        return DPT__RANK_COMMAND__COMMAND_PREPARE_SOFT;
    case ORDER_PREPARE:
        return DPT__RANK_COMMAND__COMMAND_PREPARE;
    case ORDER_PLAN:
        return rank->plan_rank >= 0 ? DPT__RANK_COMMAND__COMMAND_PLAN
                                    : DPT__RANK_COMMAND__COMMAND_STANDBY;
    case ORDER_GO:
        return rank->plan_rank >= 0 ? DPT__RANK_COMMAND__COMMAND_GO
                                    : DPT__RANK_COMMAND__COMMAND_STANDBY;
    default:
        return DPT__RANK_COMMAND__COMMAND_STANDBY;
    }
}

void dpt_agent_tell_rank(struct dpt_agent *agent, uint32_t local_rank)
{
    struct agent_rank *rank = &agent->ranks[local_rank];
    Dpt__AgentToRank *message = &agent->to_rank[local_rank];
    dpt__agent_to_rank__init(message);
    message->command = command_for(agent, rank);
    message->generation = agent->generation;
    bool planned = message->command == DPT__RANK_COMMAND__COMMAND_PLAN ||
                   message->command == DPT__RANK_COMMAND__COMMAND_GO;
    /* A rank that has carried the plan out does not need it again. */
    if (planned && (message->command == DPT__RANK_COMMAND__COMMAND_PLAN ||
                    rank->state.generation != agent->generation))
        message->plan = agent->plan;
    message->lease_until_ms = agent->write_until_ms;
    message->confirmed_ms = agent->confirmed_ms;
    message->grant_step = agent->grant_step;
    message->leaving = agent->leaving;
    message->prepare_ms = agent->prepare_ms;
    message->plan_ms = agent->plan_ms;
    /* Before the drain is over: then its end can still be told. */
    if (message->command == DPT__RANK_COMMAND__COMMAND_RESCUE)
        message->rescue_by_ms = agent->drain_by_ms - agent->timing.exit_ms;
    if (message->command == DPT__RANK_COMMAND__COMMAND_PREPARE &&
        rank->asked_generation != agent->generation) {
        rank->asked_generation = agent->generation;
        rank->asked_ms = agent->now_ms;
    }
    rank->tell = false;
    agent->sends[agent->n_sends++] =
        (struct dpt_agent_send){.local_rank = local_rank, .spawn = rank->spawn, .message = message};
}

/* ---- judging, at TICK ---- */

static void check_rank(struct dpt_agent *agent, uint32_t local_rank)
{
    struct agent_rank *rank = &agent->ranks[local_rank];
    const struct dpt_timing *timing = &agent->timing;
    int64_t now_ms = agent->now_ms;
    if (now_ms >= rank->respawn_at_ms && dpt_agent_will_respawn(agent, local_rank)) {
        spawn_rank(agent, local_rank);
        return;
    }
    if (rank->life != LIFE_UP)
        return;
    int64_t quiesce_ms = timing->quiesce_ms > 2 * rank->step_ms_median ? timing->quiesce_ms
                                                                       : 2 * rank->step_ms_median;
    bool quiesced = rank->state.phase == DPT__RANK_PHASE__RANK_QUIESCED &&
                    rank->state.generation == agent->generation;
    /* A rank that is silent or does not quiesce is killed so that a successor can take its place.
       Without a server none can, and the steps that only this rank may hold would be lost: it may
       only have been stopped. */
    const bool is_kept =
        dpt_agent_lacks_server(agent) && rank->state.step_applied > dpt_agent_saved_step(agent);
    if (now_ms - rank->heard_ms > timing->lease_ms && !is_kept)
        give_up(agent, local_rank, "was silent too long and is killed");
    else if (agent->order == ORDER_PREPARE && !agent->rescuing && !is_kept &&
             rank->asked_generation == agent->generation && !quiesced &&
             now_ms - rank->asked_ms > quiesce_ms)
        give_up(agent, local_rank, "did not quiesce in time and is killed");
}

void dpt_agent_check_ranks(struct dpt_agent *agent)
{
    if (agent->stage >= STAGE_RESETTING)
        return;
    for (uint32_t i = 0; i < agent->n_ranks; i++)
        check_rank(agent, i);
}
