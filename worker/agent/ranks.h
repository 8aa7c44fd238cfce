/* The rank processes of a node, with one slot for each local rank: starts, processes, logs and
 * frames. A rank starts only when the run's folders are claimed (claims.h); until then its start
 * waits. */
#ifndef DPT_WORKER_AGENT_RANKS_H
#define DPT_WORKER_AGENT_RANKS_H

#include "worker/agent/claims.h"
#include "worker/agent/loop.h"
#include "worker/agent/process_log.h"
#include "worker/agent/rank_process.h"

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    DPT_RANK_TEXT_BYTES = DPT_RANK_LOG_ERROR_BYTES + 64,
    DPT_RANK_FDS_MAX = 3,
    /* Time from the end of the link to the RANK_EOF event. A process that ends closes its link
     * before it can be reaped, and its exit status says more than the end of the link. */
    DPT_RANK_EOF_MS = 50
};

/* One local rank. */
struct dpt_rank_slot {
    struct dpt_rank_process process;
    struct dpt_process_log log;
    uint32_t spawn; /* spawn of the newest process; 0: none yet */
    /* Time at which the link ended; 0: the link has not ended, or its event was returned. */
    int64_t eof_ms;
    bool exit_pending; /* the process ended or was not started, and the event is due */
    /* No other process can start here: the agent has no free descriptor. */
    bool exit_final;
    int exit_code;
    char text[DPT_RANK_TEXT_BYTES];  /* last error of the process, or why it was not started */
    struct dpt_agent_action waiting; /* the start that waits for the claims; spawn 0: none */
};

struct dpt_ranks {
    const struct dpt_loop_options *options; /* borrowed, like the node */
    const struct dpt_node *node;
    /* NULL: no rank has been started, or the run only evaluates. */
    struct dpt_claims *claims;
    struct dpt_rank_slot slots[DPT_PROTO_RANKS_MAX];
    int n;
    uint8_t *frame;            /* DPT_RANK_FRAME_BYTES_MAX */
    Dpt__RankToAgent *message; /* the message of the newest event; NULL: none */
};

/* Makes a slot for each rank of the node. Both arguments are borrowed. */
DPT_MUST_USE enum dpt_status dpt_ranks_init(struct dpt_ranks *ranks,
                                            const struct dpt_loop_options *options,
                                            const struct dpt_node *node, struct dpt_err *err);

/* Kills every rank, waits at most wait_ms for their ends, kills their orphans and closes the logs.
 * Then releases the claims, for which it waits at most wait_ms again. */
void dpt_ranks_fini(struct dpt_ranks *ranks, bool may_write, int wait_ms);

/* Starts process action->spawn. The first start begins the claims; until they are held, starts
 * wait. If a process cannot be started, this becomes its EXITED event. DPT_EREFUSED and other
 * errors: the folders cannot be claimed. `epoch`: epoch of the server. */
DPT_MUST_USE enum dpt_status dpt_ranks_start(struct dpt_ranks *ranks,
                                             const struct dpt_agent_action *action, uint64_t epoch,
                                             struct dpt_err *err);

/* Starts the processes that have waited. The claims must be held. */
void dpt_ranks_start_waiting(struct dpt_ranks *ranks);

/* Whether no start has to wait: the claims are held, or the run has none. */
bool dpt_ranks_are_claimed(const struct dpt_ranks *ranks);

/* SIGKILL to process action->spawn, if it runs; a start that waits becomes an EXITED event. */
void dpt_ranks_kill(struct dpt_ranks *ranks, const struct dpt_agent_action *action);

/* Sends a frame to process `spawn`, if it runs; drops the frame when the rank does not read. */
void dpt_ranks_send(struct dpt_ranks *ranks, uint32_t local_rank, uint32_t spawn,
                    const Dpt__AgentToRank *message);

/* The next RANK_MESSAGE, RANK_EOF or RANK_EXITED event of local rank i; false: none. Never blocks.
 * `message` and `text` of the event are valid until the next call. Reads the output of the process
 * into its log, which is written if may_write. */
DPT_MUST_USE bool dpt_ranks_next(struct dpt_ranks *ranks, int i, bool may_write,
                                 struct dpt_agent_event *ret);

/* The step in the memfd of local rank i's process; 0: none, or no process. */
int64_t dpt_ranks_step(const struct dpt_ranks *ranks, int i);

/* Writes the descriptors to wait for to ret_items; returns their number, at most n *
 * DPT_RANK_FDS_MAX. */
int dpt_ranks_poll(const struct dpt_ranks *ranks, struct pollfd *ret_items);

/* The longest wait for events: 0 if an EXITED event is due, short if a link has just ended, else
 * `wait_ms`. */
int64_t dpt_ranks_wait_ms(const struct dpt_ranks *ranks, int64_t wait_ms);

/* Writes the lines that the logs held back, or drops them because the incarnation was expelled. */
void dpt_ranks_release_logs(struct dpt_ranks *ranks);
void dpt_ranks_discard_logs(struct dpt_ranks *ranks);

#endif
