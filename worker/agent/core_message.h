/* Core, layer 3: the messages of this node. */
#ifndef DPT_WORKER_AGENT_CORE_MESSAGE_H
#define DPT_WORKER_AGENT_CORE_MESSAGE_H

#include "worker/agent/core_state.h"

/* Adds the message for a rank process to the outputs. */
void dpt_agent_send_to_rank(struct dpt_agent *agent, uint32_t local_rank);

/* Makes the next message to the server; valid until the next event. */
const Dpt__AgentState *dpt_agent_make_state(struct dpt_agent *agent);

#endif
