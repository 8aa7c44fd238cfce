/* The rank's link to its agent. Its thread receives commands, and sends the rank's report with
 * every heartbeat and on change. The thread never computes, and opens no file, except
 * /proc/self/task for a dump of the stacks.
 *
 * The main thread writes the report and waits for commands. Functions that the main thread calls
 * while it computes (dpt_link_interrupted, dpt_link_may_write) read atomics only. */
#ifndef DPT_WORKER_TRAIN_LINK_LINK_H
#define DPT_WORKER_TRAIN_LINK_LINK_H

#include "base/err.h"
#include "worker/agent/rank_protocol.h"

#include <stdbool.h>
#include <stdint.h>

struct dpt_present_work;
struct dpt_link;

struct dpt_link_options {
    int fd; /* SOCK_SEQPACKET; taken by the link */
    int64_t heartbeat_ms;
    /* Both run on the link's thread. on_interrupt: a hard PREPARE of `generation`, or an EXIT or
     * RESCUE (UINT64_MAX), repeated with every heartbeat. on_closed: the agent has ended. */
    void (*on_interrupt)(void *ctx, uint64_t generation);
    void (*on_closed)(void *ctx);
    void *ctx;
    /* What the rank's threads do now, for the report; borrowed. NULL: not known. */
    const struct dpt_present_work *activity;
    /* For the first report, made by dpt_report_init. The link copies the addresses. */
    uint32_t local_rank, spawn;
    const char *shm_addr, *tcp_addr;
};

DPT_MUST_USE enum dpt_status dpt_link_create(const struct dpt_link_options *options,
                                             struct dpt_link **ret, struct dpt_err *err);
void dpt_link_destroy(struct dpt_link **link);

/* Locks the report and returns it, to be read or changed in place. dpt_link_publish unlocks it and
 * sends it now (`now`) or with the next heartbeat. Only the link changes the report's steps and
 * soft_stop_seen. Any thread. */
struct dpt_report *dpt_link_edit(struct dpt_link *link);
void dpt_link_publish(struct dpt_link *link, bool now);

/* publish.c. Each function makes one change and publishes it. `busy`: between steps the rank does
 * work that has no deadline. While it is busy, an increasing work count shows that the rank is not
 * stalled. */
void dpt_link_publish_busy(struct dpt_link *link, bool busy);
void dpt_link_publish_work(struct dpt_link *link);
/* Reports that a checkpoint of `step` is complete. */
void dpt_link_publish_saved(struct dpt_link *link, int64_t step);
/* Reports why the newest attempt at a checkpoint failed: of `step`, in `generation`. Step 0: it
 * succeeded. */
void dpt_link_publish_unsaved(struct dpt_link *link, uint64_t generation, int64_t step,
                              const char *why);
/* Asks for the grant to commit the checkpoint of `step`; -1: withdraws the request. */
void dpt_link_publish_grant_wanted(struct dpt_link *link, int64_t step);
/* Reports that the communicator of `generation` failed. `suspect`: the rank that may have caused
 * this, or -1. */
void dpt_link_publish_failure(struct dpt_link *link, uint64_t generation, int suspect,
                              const char *text);
/* report_activity.c. Sets the report's activity: the work of the threads, and its time up to now.
 * Between dpt_link_edit and dpt_link_publish. */
void dpt_report_set_activity(struct dpt_report *report, const struct dpt_present_work *activity);
/* Sets the report's text, cut to its length. Between dpt_link_edit and dpt_link_publish. */
void dpt_report_set_text(struct dpt_report *report, const char *text);

/* Queues a completed step for the next heartbeat, or for an earlier sending if many steps wait. If
 * more than DPT_PROTO_STEPS_MAX steps wait, the oldest are lost. `passes`: the terminal has no line
 * for the step, and the step is left out if a newer one follows before it is sent. Main thread. */
void dpt_link_tell_step(struct dpt_link *link, const Dpt__StepRecord *record, bool passes);

/* The newest command, borrowed until the next call of dpt_link_wait; NULL before the first one.
 * Main thread. */
const Dpt__AgentToRank *dpt_link_command(const struct dpt_link *link);

/* Waits until a command arrives that differs in (command, generation) from the command of
 * dpt_link_command. DPT_EPEER: the agent has ended. DPT_INPROGRESS: wait_ms is over (-1: no
 * deadline). Main thread. */
DPT_MUST_USE enum dpt_status dpt_link_wait(struct dpt_link *link, int wait_ms, struct dpt_err *err);

/* True after a hard PREPARE of a generation above `generation`, an EXIT, a RESCUE, or the end of
 * the agent. Any thread. */
bool dpt_link_interrupted(const struct dpt_link *link, uint64_t generation);

/* True after any PREPARE of a generation above `generation`. Any thread. */
bool dpt_link_reform_wanted(const struct dpt_link *link, uint64_t generation);

/* Whether the node drains. Any thread. */
bool dpt_link_leaving(const struct dpt_link *link);

/* An operator wants a checkpoint of this step or a later one; 0: no request. Any thread. */
int64_t dpt_link_save_from(const struct dpt_link *link);

/* The fence. False: the agent or this process was suspended, so this rank may have been replaced.
 * Asked before every write to a file that outlives the process. Any thread. */
bool dpt_link_may_write(const struct dpt_link *link);

/* Waits until dpt_link_may_write: the next message of a late agent renews the lease. False:
 * cancelled(ctx) is true, which is asked with every heartbeat, or the agent has ended. Any thread
 * except the link's. */
bool dpt_link_await_write(struct dpt_link *link, bool (*cancelled)(void *ctx), void *ctx);

/* Whether a line made at made_ms may be appended to a file to which other worlds append as well.
 * The fence must allow a write. The server must also have counted this node as a member after
 * made_ms, or less than grace_ms ago: it expels no node within grace_ms. Times are dpt_now_ms. Any
 * thread. */
bool dpt_link_may_append(const struct dpt_link *link, int64_t made_ms, int64_t grace_ms);

/* Waits until a line made now may be appended. False: as for dpt_link_await_write. Any thread
 * except the link's. */
bool dpt_link_await_append(struct dpt_link *link, int64_t grace_ms, bool (*cancelled)(void *ctx),
                           void *ctx);

/* Whether the server grants the commit of `step`'s checkpoint in `generation`. Any thread. */
bool dpt_link_granted(struct dpt_link *link, uint64_t generation, int64_t step);

/* Waits for the grant of dpt_link_granted. DPT_EABORTED: cancelled(ctx) is true, which is asked
 * with every heartbeat, or the agent has ended. Any thread except the link's. */
DPT_MUST_USE enum dpt_status dpt_link_await_grant(struct dpt_link *link, uint64_t generation,
                                                  int64_t step, bool (*cancelled)(void *ctx),
                                                  void *ctx, struct dpt_err *err);

#endif
