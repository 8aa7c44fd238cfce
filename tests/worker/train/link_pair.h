/* A rank's link with a test in the place of its agent. */
#ifndef DPT_TESTS_WORKER_TRAIN_LINK_PAIR_H
#define DPT_TESTS_WORKER_TRAIN_LINK_PAIR_H

#include "tests/worker/train/agent_end.h"
#include "worker/train/link/link.h"

#include <stdatomic.h>

enum { HEARTBEAT_MS = 20, NEVER_MS = 60000 };

struct link_pair {
    int agent; /* fd */
    struct dpt_link *link;
    atomic_int prepares, closes; /* calls of on_interrupt, on_closed */
    _Atomic uint64_t prepared;   /* the newest generation of on_interrupt */
};

void link_pair_begin(struct link_pair *p, int heartbeat_ms);
void link_pair_end(struct link_pair *p);

/* The next message of the rank, to be freed; fails the test after AGENT_END_DEADLINE_MS. */
Dpt__RankToAgent *link_pair_hear(struct link_pair *p);
/* Takes messages until the rank reports the step. */
void link_pair_hear_step(struct link_pair *p, int64_t step);

/* Sends the report as it is. */
void link_pair_publish(struct link_pair *p);

#endif
