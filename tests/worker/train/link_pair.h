/* A rank's link; the test simulates the agent. */
#ifndef DPT_TESTS_WORKER_TRAIN_LINK_PAIR_H
#define DPT_TESTS_WORKER_TRAIN_LINK_PAIR_H

#include "tests/worker/train/agent_end.h"
#include "worker/train/link/link.h"

#include <stdatomic.h>

enum { HEARTBEAT_MS = 20, NEVER_MS = 60000 };

struct link_pair {
    int agent; /* fd */
    struct dpt_link *link;
    atomic_int prepares, closes; /* numbers of calls of on_interrupt, on_closed */
    _Atomic uint64_t prepared;   /* generation of the last on_interrupt */
};

void link_pair_begin(struct link_pair *p, int heartbeat_ms);
void link_pair_end(struct link_pair *p);

/* The next message of the rank, owned by the caller; fails the test after AGENT_END_DEADLINE_MS. */
Dpt__RankToAgent *link_pair_hear(struct link_pair *p);
/* Takes messages until the rank reports the step. */
void link_pair_hear_step(struct link_pair *p, int64_t step);

/* Publishes the rank's report unchanged. */
void link_pair_publish(struct link_pair *p);

#endif
