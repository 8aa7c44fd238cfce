/* Core, layer 4: the end of this node, with a rescue of its steps before it. */
#ifndef DPT_WORKER_AGENT_CORE_END_H
#define DPT_WORKER_AGENT_CORE_END_H

#include "worker/agent/core_state.h"

/* Begins the end with `code` and a line for a person. Ranks are told to exit and killed after
 * exit_ms; _at_once kills them now. Steps that are lost with this node are logged; if a checkpoint
 * should have them, DPT_EXIT_DONE becomes DPT_EXIT_EXPELLED. */
void dpt_agent_end(struct dpt_agent *agent, int code, const char *fmt, ...) DPT_PRINTF(3, 4);
void dpt_agent_end_at_once(struct dpt_agent *agent, int code, const char *fmt, ...)
    DPT_PRINTF(3, 4);
void dpt_agent_end_done(struct dpt_agent *agent);

/* The end by an event after which no other node saves the steps here: the ranks first write them as
 * a rescue if they can. */
void dpt_agent_end_saved(struct dpt_agent *agent, int code, const char *text);

/* A node that leaves without a server: begins the rescue, and ends when the rescue is whole or
 * cannot become whole. At TICK and after a signal. */
void dpt_agent_check_rescue(struct dpt_agent *agent);

/* ACTION_EXIT: the last action. */
void dpt_agent_finish(struct dpt_agent *agent);

#endif
