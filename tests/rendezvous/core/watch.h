/* The watch: checks the server's state machine from outside after every step and reports a broken
 * promise (docs/membership.md). The promises hold for any messages of agents. Unit tests, the
 * simulator and the fuzzer use it.
 *
 * - Each message decodes, and a connection gets at most one in a step.
 * - In the messages to one incarnation, counters grow and generations never decrease.
 * - A generation is used once, also by later runs of the same name. A nonce is in one plan only.
 * - All nodes that get a plan get the same plan. Its ranks, positions and checkpoint slots are
 * dense and unique. Each rank is one process, which is a member.
 * - A rank that takes state gets it from a rank that holds it.
 * - A checkpoint is granted in the newest plan only, and once.
 * - The server says DONE only after every member of the newest plan has said FINISHED in it.
 * Nothing follows the end of a run.
 * - A repeated message, or one of an earlier incarnation, changes nothing.
 * - A later server of the same journal uses no number again, grants no checkpoint twice, and says
 * nothing more about a run that has ended.
 * - No node is lost if the server has received nothing at all for longer than the run's gap. */
#ifndef DPT_TESTS_RENDEZVOUS_CORE_WATCH_H
#define DPT_TESTS_RENDEZVOUS_CORE_WATCH_H

#include "tests/rendezvous/core/view.h"

struct watch;

/* A watch is for the life of one server. `decodes`: the watch encodes and decodes every message,
 * because the caller does not. */
struct watch *watch_create(bool decodes);
void watch_destroy(struct watch **watch);
/* A record of an earlier server that its successor has got back. To be called for all of them,
 * before the first step. */
void watch_restore(struct watch *watch, const struct dpt_rdzv_record *record);

/* Call it after each step. Returns NULL, or the broken promise as text, valid until the next
 * call. */
const char *watch_step(struct watch *watch, const struct dpt_rdzv *core,
                       const struct dpt_rdzv_event *event, const struct dpt_rdzv_output *out);

#endif
