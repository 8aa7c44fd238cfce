/* The rank's link to its agent: a thread that listens, says the rank's whole state with every
 * heartbeat and on change, and never computes and never touches files.
 *
 * The main thread publishes its state and waits for commands; the questions that it asks in the
 * middle of computing (interrupted, may I write) are atomics. */
#ifndef DPT_WORKER_TRAIN_LINK_LINK_H
#define DPT_WORKER_TRAIN_LINK_LINK_H

#include "base/err.h"
#include "rendezvous/proto/message.h"
#include "worker/train/log/run_files.h"

#include <stdbool.h>
#include <stdint.h>

struct dpt_link;

/* An epoch that a step ends; mirrors the epoch_ fields of StepRecord. */
struct dpt_step_epoch {
    int64_t number;     /* from 1 on; 0: none ends */
    int64_t first_step; /* of those that count */
    double avg_loss, seconds, samples_per_s;
};

/* A completed step, for people; mirrors StepRecord in dpt.proto. */
struct dpt_step_record {
    int64_t step;
    double loss, lr, grad_norm, tokens_per_s; /* 0: not known */
    int world_size;
    struct dpt_step_epoch epoch;
    bool passes; /* has no line of its own: not told if a newer step can be told in its place */
};

/* What the rank says of itself; mirrors RankState in dpt.proto. Plain value; texts are copied. */
struct dpt_rank_report {
    uint32_t local_rank, spawn;
    Dpt__RankPhase phase;
    uint64_t generation;
    char shm_addr[DPT_PROTO_ADDR_BYTES], tcp_addr[DPT_PROTO_ADDR_BYTES];
    int64_t step_applied, outcome_step;
    const void *outcome; /* copied by publish */
    size_t outcome_bytes;
    struct dpt_report_shard {
        int index, of;
        bool pending;
    } shards[DPT_PROTO_SHARDS_MAX];
    int n_shards;  /* 0: everything */
    bool gradient; /* of step_applied + 1, for all that is held */
    uint64_t pending_generation, ran_generation;
    bool rebuilding;
    int64_t checkpoint_step, rescued_step;
    bool rescue_failed;
    uint64_t failed_generation;
    int suspect;
    int64_t grant_step;
    float loss, tokens_per_s;
    int64_t step_ms_median;
    char weights_hash[40];
    char text[DPT_PROTO_TEXT_BYTES];
    bool busy;          /* in work between steps that has no deadline */
    uint32_t work_done; /* grows while busy goes on */
    int64_t val_step;   /* completed steps of the newest evaluation; 0: none */
    double val_loss;
    int64_t val_right, val_samples; /* predicted labels, of so many samples; 0: without labels */
    int64_t saved_step;             /* newest checkpoint taken part in or loaded; 0: none */
    bool has_summary;               /* at its end */
    struct dpt_summary summary;
    bool fatal, broken; /* why it ends: the run with it; or it alone */
    bool sound;         /* with fatal: it stays to write what it holds as a rescue */
    uint32_t exit_code;
};

struct dpt_link_options {
    int fd; /* SOCK_SEQPACKET; owned by the link from here on */
    int64_t heartbeat_ms;
    /* On the link's thread: a hard PREPARE of `generation`, an EXIT or a RESCUE (UINT64_MAX),
     * repeated with every heartbeat, and the end of the agent. */
    void (*on_interrupt)(void *ctx, uint64_t generation);
    void (*on_closed)(void *ctx);
    void *ctx;
};

DPT_MUST_USE enum dpt_status dpt_link_create(const struct dpt_link_options *options,
                                             const struct dpt_rank_report *first,
                                             struct dpt_link **ret, struct dpt_err *err);
void dpt_link_destroy(struct dpt_link **link);

/* Replaces what is said of this rank. `now`: it is sent at once, else with the next heartbeat. Any
 * thread; the caller orders its own calls. */
void dpt_link_publish(struct dpt_link *link, const struct dpt_rank_report *report, bool now);

/* Queues a step to be told with the next heartbeat, or sooner when many wait. Of more than
 * DPT_PROTO_STEPS_MAX that wait the oldest are lost. Main thread. */
void dpt_link_tell_step(struct dpt_link *link, const struct dpt_step_record *record);

/* The newest command, borrowed until the next call of dpt_link_wait; NULL before the first one.
 * Main thread. */
const Dpt__AgentToRank *dpt_link_command(const struct dpt_link *link);

/* Waits until a command arrives that differs in (command, generation) from the one dpt_link_command
 * gives, or until the agent is gone (DPT_EPEER), or wait_ms is over (DPT_INPROGRESS; -1: no
 * deadline). Main thread. */
DPT_MUST_USE enum dpt_status dpt_link_wait(struct dpt_link *link, int wait_ms, struct dpt_err *err);

/* True once a hard PREPARE of a generation above `generation`, an EXIT, a RESCUE, or the end of the
 * agent has been seen. Any thread. */
bool dpt_link_interrupted(const struct dpt_link *link, uint64_t generation);

/* True once any PREPARE of a generation above `generation` has been seen. Any thread. */
bool dpt_link_reform_wanted(const struct dpt_link *link, uint64_t generation);

/* The node drains. Any thread. */
bool dpt_link_leaving(const struct dpt_link *link);

/* The fence: false for a rank whose agent, or which itself, was stopped and may have been replaced.
 * Asked before every write to a file that outlives the process. Any thread. */
bool dpt_link_may_write(const struct dpt_link *link);

/* Waits until that write is allowed: an agent that is late gives the lease back with its next word,
 * and what is to be written waits for it. False: cancelled(ctx), asked within every heartbeat, or
 * the agent is gone. Any thread but the link's. */
bool dpt_link_await_write(struct dpt_link *link, bool (*cancelled)(void *ctx), void *ctx);

/* When the newest message was sent that the server has answered while it counted this node in
 * (dpt_now_ms). Any thread. */
int64_t dpt_link_confirmed_ms(const struct dpt_link *link);

/* Waits until a write to what other worlds write, too, is allowed: the fence, and the server's word
 * younger than grace_ms. False as above. Any thread but the link's. */
bool dpt_link_await_confirmed(struct dpt_link *link, int64_t grace_ms, bool (*cancelled)(void *ctx),
                              void *ctx);

/* True when the server grants the commit of `step`'s checkpoint in `generation`. Any thread. */
bool dpt_link_granted(struct dpt_link *link, uint64_t generation, int64_t step);

/* Waits for that grant; DPT_EABORTED when cancelled(ctx), asked with every heartbeat, holds first,
 * or the agent is gone. Any thread but the link's. */
DPT_MUST_USE enum dpt_status dpt_link_await_grant(struct dpt_link *link, uint64_t generation,
                                                  int64_t step, bool (*cancelled)(void *ctx),
                                                  void *ctx, struct dpt_err *err);

#endif
