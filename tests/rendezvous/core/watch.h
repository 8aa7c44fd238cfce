/* Looks at a server's machine from outside and says when a promise is broken (docs/membership.md),
 * whatever the agents told it: used by the unit tests, the simulator and the fuzzer alike.
 *
 * After every step: each message decodes, and at most one goes to a connection; to one incarnation
 * counters grow and generations never fall; a run's generations are used once, by no later run of
 * its name either, and a plan's nonce by no other plan; all who get a plan get the same; ranks,
 * positions and checkpoint slots of a plan are dense and unique, and each rank is one process that
 * is counted in; who heals does it from one who holds; a checkpoint is granted in the newest plan
 * alone, and never twice; DONE is said when every member of the newest plan has said FINISHED
 * there, and nothing follows an end; a repeated message, or one of an earlier incarnation, changes
 * nothing; and no node is lost while nobody at all is heard for longer than its run's gap. */
#ifndef DPT_TESTS_RENDEZVOUS_CORE_WATCH_H
#define DPT_TESTS_RENDEZVOUS_CORE_WATCH_H

#include "tests/rendezvous/core/view.h"

struct watch;

/* For one server's life: another server, another watch. `decodes`: the watch encodes and decodes
 * every message; the caller does not. */
struct watch *watch_create(bool decodes);
void watch_destroy(struct watch **watch);

/* After a step. NULL: all is well; else the broken promise, valid until the next call. */
const char *watch_step(struct watch *watch, const struct dpt_rdzv *core,
                       const struct dpt_rdzv_event *event, const struct dpt_rdzv_output *out);

#endif
