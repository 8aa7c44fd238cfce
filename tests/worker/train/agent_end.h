/* The agent's end of a rank's link, played by the test's own thread or by one that repeats itself
 * as agents do. */
#ifndef DPT_TESTS_WORKER_TRAIN_AGENT_END_H
#define DPT_TESTS_WORKER_TRAIN_AGENT_END_H

#include "rendezvous/proto/message.h"

#include <stdbool.h>
#include <stdint.h>

enum { AGENT_END_DEADLINE_MS = 10000, AGENT_END_LEASE_MS = 100000 };

/* Sends one frame; false: it could not be sent. */
bool agent_end_send(int fd, Dpt__RankCommand command, uint64_t generation, int64_t grant_step,
                    int64_t lease_until_ms, bool leaving);

/* The next state that the rank says, owned by the caller; NULL: none within the deadline, or the
 * rank is gone. */
Dpt__RankToAgent *agent_end_receive(int fd, int wait_ms);

#endif
