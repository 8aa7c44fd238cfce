/* The agent's watch: checks an agent's state machine from outside after every step and reports a
 * broken promise (docs/membership.md). The promises hold for any messages of server and ranks. Unit
 * tests, the simulator and the fuzzer use it.
 *
 * - Each message decodes, and its counter is larger by one than that of the message before.
 * - A new incarnation begins only after the last process of the present one has ended.
 * - A local rank has one process at a time, and spawn numbers grow by one. Only a living process is
 *   killed or gets a message.
 * - Generations never decrease.
 * - A rank gets a plan only after it has quiesced for that plan, and GO only after the plan.
 * - A rank may not write for longer than the write time. After a stop of the loop it may not write
 *   until the server has answered again.
 * - The program ends once. Its exit code has a cause in the events.
 * - A stale message of the server changes nothing. */
#ifndef DPT_TESTS_SIM_AGENT_WATCH_H
#define DPT_TESTS_SIM_AGENT_WATCH_H

#include "worker/agent/core.h"

struct agent_watch;

/* A watch is for the life of one agent, of this node in this run (both borrowed). `decodes`: the
 * watch encodes and decodes every message. */
struct agent_watch *agent_watch_create(const char *run, const char *node, bool decodes);
void agent_watch_destroy(struct agent_watch **watch);

/* Call it after each step. Returns NULL, or the broken promise as text, valid until the next
 * call. */
const char *agent_watch_step(struct agent_watch *watch, const struct dpt_agent *agent,
                             const struct dpt_agent_event *event,
                             const struct dpt_agent_output *out);
/* The agent's view after the newest step; its pointers are valid until the next one. */
const struct dpt_agent_view *agent_watch_view(const struct agent_watch *watch);

#endif
