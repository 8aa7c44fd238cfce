/* Core, layer 5: the stages of this node. */
#ifndef DPT_WORKER_AGENT_CORE_STAGE_H
#define DPT_WORKER_AGENT_CORE_STAGE_H

#include "worker/agent/core_state.h"

/* The server has expelled this incarnation. world_step: of the world that runs without this node;
 * 0: no world does, or unknown. */
void dpt_agent_on_expelled(struct dpt_agent *agent, int64_t world_step, const char *text);
void dpt_agent_on_signal(struct dpt_agent *agent);
/* The deadlines of this node. At TICK. */
void dpt_agent_check_stage(struct dpt_agent *agent);
/* Goes on when the last process has been reaped. After every event. */
void dpt_agent_settle_stage(struct dpt_agent *agent);

#endif
