/* Looks at an agent's machine from outside and says when a promise is broken (docs/membership.md),
 * whatever server and ranks told it: used by the unit tests, the simulator and the fuzzer alike.
 *
 * After every step: what is said decodes; counters grow by one; an incarnation is only followed
 * when its last process is gone; one process a local rank at a time, spawns count up, only what
 * lives is killed or spoken to; generations never fall; a rank is told a plan only if it has
 * quiesced for it, and GO only after that plan; no leave to write beyond the write time, and none
 * from a stop of the loop until the server has answered since; the program ends once, with a code
 * that somebody gave cause for; a stale message of the server changes nothing. */
#ifndef DPT_TESTS_SIM_AGENT_WATCH_H
#define DPT_TESTS_SIM_AGENT_WATCH_H

#include "worker/agent/core.h"

struct agent_watch;

/* For one agent's life, of this node in this run (borrowed). `decodes`: every message is encoded
 * and decoded again. */
struct agent_watch *agent_watch_create(const char *run, const char *node, bool decodes);
void agent_watch_destroy(struct agent_watch **watch);

/* After a step. NULL: all is well; else what is broken, valid until the next call. */
const char *agent_watch_step(struct agent_watch *watch, const struct dpt_agent *agent,
                             const struct dpt_agent_event *event,
                             const struct dpt_agent_output *out);

#endif
