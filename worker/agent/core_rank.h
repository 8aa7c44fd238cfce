/* Core, layer 3: the rank processes of this node. */
#ifndef DPT_WORKER_AGENT_CORE_RANK_H
#define DPT_WORKER_AGENT_CORE_RANK_H

#include "worker/agent/core_state.h"

/* A local rank without a process. */
void dpt_agent_rank_reset(struct agent_rank *rank, uint32_t local_rank);

/* The events of core.h; those of an earlier spawn change nothing. */
void dpt_agent_on_rank(struct dpt_agent *agent, const struct dpt_agent_event *event);
void dpt_agent_on_rank_eof(struct dpt_agent *agent, const struct dpt_agent_event *event);
void dpt_agent_on_rank_waits(struct dpt_agent *agent, const struct dpt_agent_event *event);
void dpt_agent_on_rank_exited(struct dpt_agent *agent, const struct dpt_agent_event *event);
/* The step in the memfd of a process. */
void dpt_agent_on_rank_step(struct dpt_agent *agent, uint32_t local_rank, int64_t step);

/* Starts processes whose pause is over, kills those that are silent or do not quiesce. At TICK. */
void dpt_agent_check_ranks(struct dpt_agent *agent);
/* Starts a process in every empty local rank. */
void dpt_agent_spawn_ranks(struct dpt_agent *agent);
/* SIGKILL to every process; not counted as a crash. */
void dpt_agent_kill_ranks(struct dpt_agent *agent);
/* The local rank is DOWN, and a process starts in it after its pause. */
bool dpt_agent_will_respawn(const struct dpt_agent *agent, uint32_t local_rank);

#endif
