/* Core, layer 6: the messages of the server. */
#ifndef DPT_WORKER_AGENT_CORE_SERVER_H
#define DPT_WORKER_AGENT_CORE_SERVER_H

#include "worker/agent/core_state.h"

void dpt_agent_on_server(struct dpt_agent *agent, const Dpt__ServerState *message);

#endif
