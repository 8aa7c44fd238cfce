/* A modelled rank process (bench_rdzv_rank.h). */
#include "worker/bench/bench_rdzv_rank.h"

#include <stdio.h>

enum { FIRST_PORT = 20000 };

static int64_t step_of(const struct rdzv_rank *rank, int64_t now_ms)
{
    return rank->phase == DPT__RANK_PHASE__RANK_RUNNING
               ? rank->step + (now_ms - rank->go_ms) / RDZV_STEP_MS
               : rank->step;
}

void rdzv_rank_start(struct rdzv_rank *rank, uint32_t spawn, bool ready)
{
    *rank = (struct rdzv_rank){.spawn = spawn,
                               .phase = ready ? DPT__RANK_PHASE__RANK_STANDBY
                                              : DPT__RANK_PHASE__RANK_STARTING,
                               .step = -1,
                               .suspect = -1,
                               .plan_rank = -1,
                               .due = true};
}

void rdzv_rank_make_ready(struct rdzv_rank *rank)
{
    if (rank->spawn == 0 || rank->phase != DPT__RANK_PHASE__RANK_STARTING)
        return;
    rank->phase = DPT__RANK_PHASE__RANK_STANDBY;
    rank->due = true;
}

void rdzv_rank_break(struct rdzv_rank *rank, int32_t suspect)
{
    if (rank->phase != DPT__RANK_PHASE__RANK_RUNNING)
        return;
    rank->failed_generation = rank->generation;
    rank->suspect = suspect;
    rank->due = true;
}

static void quiesce(struct rdzv_rank *rank, uint64_t generation, int64_t now_ms)
{
    if (rank->phase == DPT__RANK_PHASE__RANK_STARTING || generation <= rank->generation)
        return;
    rank->step = step_of(rank, now_ms);
    rank->phase = DPT__RANK_PHASE__RANK_QUIESCED;
    rank->generation = generation;
    rank->due = true;
}

static void take_plan(struct rdzv_rank *rank, uint32_t local_rank, const Dpt__AgentToRank *message)
{
    if (rank->phase != DPT__RANK_PHASE__RANK_QUIESCED || rank->generation != message->generation)
        return;
    for (size_t i = 0; i < message->plan->n_ranks; i++)
        if (message->plan->ranks[i]->local_rank == (int32_t)local_rank)
            rank->plan_rank = (int32_t)message->plan->ranks[i]->rank;
    rank->world = message->plan->world_size;
    rank->step = message->plan->resume_step;
    rank->phase = DPT__RANK_PHASE__RANK_READY;
    rank->due = true;
}

static void take_go(struct rdzv_rank *rank, uint64_t generation, int64_t now_ms)
{
    if (rank->phase != DPT__RANK_PHASE__RANK_READY || rank->generation != generation)
        return;
    rank->phase = DPT__RANK_PHASE__RANK_RUNNING;
    rank->ran_generation = generation;
    rank->go_ms = now_ms;
    rank->due = true;
}

void rdzv_rank_command(struct rdzv_rank *rank, uint32_t local_rank, const Dpt__AgentToRank *message,
                       int64_t now_ms)
{
    switch (message->command) {
    case DPT__RANK_COMMAND__COMMAND_PREPARE_SOFT:
    case DPT__RANK_COMMAND__COMMAND_PREPARE:
        quiesce(rank, message->generation, now_ms);
        break;
    case DPT__RANK_COMMAND__COMMAND_PLAN:
        take_plan(rank, local_rank, message);
        break;
    case DPT__RANK_COMMAND__COMMAND_GO:
        take_go(rank, message->generation, now_ms);
        break;
    default:
        break;
    }
}

void rdzv_rank_print(const struct rdzv_rank *rank, int node, uint32_t local_rank, int64_t now_ms,
                     struct rdzv_rank_report *ret)
{
    Dpt__RankState *state = &ret->state;
    (void)snprintf(ret->shm_addr, sizeof ret->shm_addr, "dpt-bench-n%d-%u-%u", node, local_rank,
                   rank->spawn);
    (void)snprintf(ret->tcp_addr, sizeof ret->tcp_addr, "10.%d.%d.1:%u", node >> 8 & 255,
                   node & 255, FIRST_PORT + local_rank);
    dpt__rank_state__init(state);
    state->local_rank = local_rank;
    state->spawn = rank->spawn;
    state->phase = rank->phase;
    state->generation = rank->generation;
    state->shm_addr = ret->shm_addr;
    state->tcp_addr = ret->tcp_addr;
    state->step_applied = step_of(rank, now_ms);
    state->outcome_step = state->checkpoint_step = state->grant_step = -1;
    state->failed_generation = rank->failed_generation;
    state->suspect = rank->suspect;
    if (rank->failed_generation != 0)
        state->text = (char *)(uintptr_t) "connection with a peer ended";
    state->ran_generation = rank->ran_generation;
    dpt__rank_to_agent__init(&ret->message);
    ret->message.state = state;
    ret->message.step_ms_median = rank->ran_generation > 0 ? RDZV_STEP_MS : 0;
}
