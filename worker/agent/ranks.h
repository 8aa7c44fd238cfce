/* The rank processes of a node, one slot for each local rank: their processes, logs and frames. */
#ifndef DPT_WORKER_AGENT_RANKS_H
#define DPT_WORKER_AGENT_RANKS_H

#include "base/err.h"
#include "rendezvous/proto/message.h"
#include "worker/agent/node.h"
#include "worker/agent/ranklog.h"
#include "worker/agent/spawn.h"

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    DPT_RANK_TEXT_BYTES = DPT_RANK_LOG_ERROR_BYTES + 64,
    DPT_RANK_FDS_MAX = 3,
    DPT_RANK_EOF_MS = 50 /* from the end of the link to its event: a process that ends closes the
                            link before it can be reaped, and its exit status tells more */
};

/* One local rank. */
struct dpt_rank_slot {
    struct dpt_rank_process process;
    struct dpt_rank_log log;
    uint32_t spawn;    /* of the newest process; 0: none yet */
    int64_t eof_ms;    /* time of the link's end; 0: no end, or its event was returned */
    bool exit_pending; /* the process ended or was not started, and no event has told it */
    bool exit_final;   /* and no other can be started: the agent has no descriptor left */
    int exit_code;
    char text[DPT_RANK_TEXT_BYTES]; /* its last error, or why it was not started */
};

struct dpt_ranks {
    struct dpt_rank_slot slots[DPT_PROTO_RANKS_MAX];
    int n;
    uint8_t *frame;            /* DPT_RANK_FRAME_BYTES_MAX */
    Dpt__RankToAgent *message; /* of the newest event; NULL: none */
};

/* Slots for n ranks that log into log_dir/node-ID. */
DPT_MUST_USE enum dpt_status dpt_ranks_init(struct dpt_ranks *ranks, int n, const char *log_dir,
                                            const char *node, struct dpt_err *err);

/* Kills every rank, waits at most wait_ms for their ends, kills their orphans, closes the logs. */
void dpt_ranks_fini(struct dpt_ranks *ranks, bool may_write, int wait_ms);

/* Starts process `start->spawn` of start->local_rank. A failure becomes its EXITED event. */
void dpt_ranks_spawn(struct dpt_ranks *ranks, const struct dpt_spawn_options *options);

/* A start that failed before there was a process becomes an EXITED event. */
void dpt_ranks_spawn_failed(struct dpt_ranks *ranks, uint32_t local_rank, uint32_t spawn,
                            const char *text);

/* SIGKILL to process `spawn` of the local rank, if it runs. */
void dpt_ranks_kill(struct dpt_ranks *ranks, uint32_t local_rank, uint32_t spawn);

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

/* Adds the descriptors to wait for; returns how many (at most n * DPT_RANK_FDS_MAX). */
int dpt_ranks_poll(const struct dpt_ranks *ranks, struct pollfd *ret_items);

/* The longest wait for events: 0 if an EXITED event is due, short after the end of a link, else
 * `wait_ms`. */
int64_t dpt_ranks_wait_ms(const struct dpt_ranks *ranks, int64_t wait_ms);

/* Writes the lines that logs held back, or drops them (the incarnation is expelled). */
void dpt_ranks_release_logs(struct dpt_ranks *ranks);
void dpt_ranks_discard_logs(struct dpt_ranks *ranks);

#endif
