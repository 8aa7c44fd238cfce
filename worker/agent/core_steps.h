/* Core, layer 2: the steps that no checkpoint has, and the ranks that can save them. */
#ifndef DPT_WORKER_AGENT_CORE_STEPS_H
#define DPT_WORKER_AGENT_CORE_STEPS_H

#include "worker/agent/core_state.h"

/* The newest checkpoint or rescue that a rank here or the server has reported; 0: none. */
int64_t dpt_agent_saved_step(const struct dpt_agent *agent);
/* Living processes here hold steps that no checkpoint has, as far as this node knows. */
bool dpt_agent_holds_unsaved(const struct dpt_agent *agent);

/* Notes the step of a process that has died, or is about to be killed. */
void dpt_agent_note_gone(struct dpt_agent *agent, const struct agent_rank *rank);
/* The newest step that is saved, or that a living process here holds with a second holder for each
 * part. */
int64_t dpt_agent_whole_step(const struct dpt_agent *agent);
/* The newest step that died with a process here and is beyond dpt_agent_whole_step; 0: none. */
int64_t dpt_agent_gone_step(const struct dpt_agent *agent);
/* Another node has that step, as far as this node knows. */
bool dpt_agent_gone_is_elsewhere(const struct dpt_agent *agent);

/* A living process holds exactly `step` and can write it. */
bool dpt_agent_holds_step(const struct agent_rank *rank, int64_t step);
/* The rank writes (its part of) the rescue. */
bool dpt_agent_is_rescuer(const struct dpt_agent *agent, uint32_t local_rank);
/* What a signal would save without a server. */
enum dpt_agent_rescue dpt_agent_rescue_of(const struct dpt_agent *agent);

#endif
