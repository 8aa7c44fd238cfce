/* The agent's end of a rank's link. The test's own thread uses it, or a thread that repeats its
 * messages as agents do. */
#ifndef DPT_TESTS_WORKER_TRAIN_AGENT_END_H
#define DPT_TESTS_WORKER_TRAIN_AGENT_END_H

#include "rendezvous/proto/message.h"

#include <stdbool.h>
#include <stdint.h>

enum { AGENT_END_DEADLINE_MS = 10000, AGENT_END_LEASE_MS = 100000 };

/* Sends one frame; returns false if that fails. */
bool agent_end_send(int fd, Dpt__RankCommand command, uint64_t generation, int64_t grant_step,
                    int64_t lease_until_ms, bool leaving);

/* The next message of the rank, owned by the caller. NULL: none came within `wait_ms`, or the rank
 * closed the link. */
Dpt__RankToAgent *agent_end_receive(int fd, int wait_ms);

#endif
