/* The agent's line of state while no server answers. Pure. */
#ifndef DPT_WORKER_AGENT_PROGRESS_OUTAGE_H
#define DPT_WORKER_AGENT_PROGRESS_OUTAGE_H

#include "worker/agent/progress.h"

/* Whether the ranks of this node stand and hold steps that no checkpoint has. */
bool dpt_progress_holds_steps(const struct dpt_agent_view *view);
/* True: the node waits for a server without limit, as it or others keep steps that no checkpoint
 * has. */
bool dpt_progress_waits_with_steps(const struct dpt_agent_view *view);

/* What has happened to the server, what this node does meanwhile, and what to do. */
void dpt_progress_outage_text(const struct dpt_progress *progress,
                              const struct dpt_agent_view *view, char ret[DPT_TEXT_LINE_BYTES]);

#endif
