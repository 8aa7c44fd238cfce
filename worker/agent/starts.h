/* The starts of a node's rank processes. A rank starts once the run's folders are claimed
 * (claims.h); until then its start waits. */
#ifndef DPT_WORKER_AGENT_STARTS_H
#define DPT_WORKER_AGENT_STARTS_H

#include "worker/agent/claims.h"
#include "worker/agent/loop.h"
#include "worker/agent/ranks.h"

/* Zero-initialise; the first two are borrowed. */
struct dpt_starts {
    const struct dpt_loop_options *options;
    struct dpt_ranks *ranks;
    struct dpt_claims *claims; /* NULL: before the first start, and of a run that only evaluates */
    struct dpt_agent_action waiting[DPT_PROTO_RANKS_MAX]; /* spawn 0: none */
};

/* Starts process action->spawn of `node`, or lets it wait. A failure of the process becomes its
 * EXITED event. DPT_EREFUSED and others: the folders cannot be claimed. `epoch`: of the server. */
DPT_MUST_USE enum dpt_status dpt_starts_add(struct dpt_starts *starts, const struct dpt_node *node,
                                            const struct dpt_agent_action *action, uint64_t epoch,
                                            struct dpt_err *err);

/* Starts what has waited. The claims must be held. */
void dpt_starts_release(struct dpt_starts *starts, const struct dpt_node *node);

/* SIGKILL to the process; one that waits becomes an EXITED event. */
void dpt_starts_kill(struct dpt_starts *starts, const struct dpt_agent_action *action);

bool dpt_starts_is_claimed(const struct dpt_starts *starts);

#endif
