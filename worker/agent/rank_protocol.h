/* The protocol between an agent and the rank processes that it starts: the command line of a rank,
 * the descriptors that a rank inherits, the frames on the socket pair, and the rank's report. Both
 * sides include this file.
 *
 * A rank is `/proc/self/exe --rank key=value …`, always exec'd. It inherits
 *   fd 0    /dev/null
 *   fd 1,2  a pipe to the agent, which writes the rank's log file
 *   fd 3    SOCK_SEQPACKET socket, one protobuf message a frame (AgentToRank in, RankToAgent out);
 *           an end of file means that the agent ended, and the rank ends at once
 *   fd 4    sealed memfd with the canonical text of the node's config
 *   fd 5    memfd of DPT_RANK_STEP_BYTES with the rank's newest completed step. The agent reads the
 *           step at every event. So it knows how far a rank came that died after its last report.
 */
#ifndef DPT_WORKER_AGENT_RANK_PROTOCOL_H
#define DPT_WORKER_AGENT_RANK_PROTOCOL_H

#include "base/claim.h"
#include "base/config.h"
#include "base/err.h"
#include "base/hash.h"
#include "rendezvous/proto/message.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum {
    DPT_RANK_FD_LINK = 3,
    DPT_RANK_FD_CONFIG = 4,
    DPT_RANK_FD_STEP = 5,
    DPT_RANK_STEP_BYTES = 8, /* int64_t in native byte order; 0 before the first step */
    DPT_RANK_FRAME_BYTES_MAX = 256 * 1024,
    DPT_RANK_ALLOW_MAX = 16, /* options --allow-change KEY of one worker */
    DPT_RANK_ARGS_MAX = 24 + DPT_RANK_ALLOW_MAX,
    DPT_RANK_ARG_BYTES = DPT_CONFIG_PATH_BYTES + 32
};

/* ---- the command line ---- */

/* Start parameters of a rank, besides its config. Value type; zero-initialise. */
struct dpt_rank_start {
    char node[DPT_CONFIG_NAME_BYTES]; /* node id */
    uint64_t incarnation;             /* incarnation of the node */
    int local_rank;                   /* 0 … ranks - 1 */
    int ranks;                        /* rank processes of this node */
    int spawn;                        /* number of the process in this local rank, from 1 */
    int threads;                      /* compute threads; 0: an equal share of the host's cores */
    pid_t agent;                      /* the parent; checked with getppid after PR_SET_PDEATHSIG */
    char address[64];                 /* numeric IP address on which the data plane listens */
    int log_level;                    /* enum dpt_log_level */
    /* Hash and stamp (worker/data/data.h) of data.train and data.val; "": no such data in the
     * run. */
    char data[DPT_HASH_HEX_BYTES], data_stamp[DPT_HASH_HEX_BYTES];
    char val[DPT_HASH_HEX_BYTES], val_stamp[DPT_HASH_HEX_BYTES];
    int n_allow;
    char allow[DPT_RANK_ALLOW_MAX][DPT_CONFIG_NAME_BYTES]; /* keys that may differ on resume */
    bool allow_fresh; /* start at step 0 if every checkpoint in checkpoint.dir is damaged */
    /* The claim on checkpoint.dir. Number 0: there is no claim, and a commit checks none. */
    int64_t claim_number;
    char claim_token[DPT_CLAIM_TOKEN_BYTES];
};

/* argv of the rank: NULL-terminated, with pointers into `text`. Points into itself: do not copy. */
struct dpt_rank_args {
    char *argv[DPT_RANK_ARGS_MAX + 1];
    char text[DPT_RANK_ARGS_MAX][DPT_RANK_ARG_BYTES];
};

/* Makes the command line, with argv[0] = program and argv[1] = "--rank". */
void dpt_rank_start_encode(const struct dpt_rank_start *start, const char *program,
                           struct dpt_rank_args *ret);

/* Reads the command line of this process. DPT_EINVAL names the wrong argument. */
DPT_MUST_USE enum dpt_status dpt_rank_start_decode(int argc, char *const *argv,
                                                   struct dpt_rank_start *ret, struct dpt_err *err);

/* The rank's first call in main. Asks for SIGKILL when the agent dies, and checks that the agent
 * lives (getppid). Ignores SIGPIPE and the signals that end an agent, because the agent tells a
 * rank to leave. Marks the inherited descriptors close-on-exec. DPT_EPEER: the agent has ended. */
DPT_MUST_USE enum dpt_status dpt_rank_start_enter(const struct dpt_rank_start *start,
                                                  struct dpt_err *err);

/* In the rank: loads the config from the inherited memfd and closes the memfd. */
DPT_MUST_USE enum dpt_status dpt_rank_start_config(int config_fd, struct dpt_config *ret,
                                                   struct dpt_err *err);

/* ---- frames ---- */

/* Makes the socket pair: ret_fds[0] for the agent, ret_fds[1] for the rank. Both are close-on-exec;
 * their send buffers hold at least one frame of the largest size. */
DPT_MUST_USE enum dpt_status dpt_rank_link_pair(int ret_fds[2], struct dpt_err *err);

/* Sends one frame without blocking. DPT_INPROGRESS: the peer's queue is full, and the frame is
 * dropped; every message holds the whole state of its sender, so the next message replaces it.
 * DPT_EPEER: the peer has ended. DPT_EOVERFLOW: the frame is longer than DPT_RANK_FRAME_BYTES_MAX.
 * Any thread. */
DPT_MUST_USE enum dpt_status dpt_rank_link_send(int fd, const void *frame, size_t bytes,
                                                struct dpt_err *err);

/* Waits at most timeout_ms (0: not at all; -1: without limit) for a frame and copies it to `buf` of
 * DPT_RANK_FRAME_BYTES_MAX bytes. DPT_INPROGRESS: no frame has come, or a signal interrupted the
 * wait. DPT_EPEER: the peer has ended. DPT_EPROTO: the frame was too long and is dropped. */
DPT_MUST_USE enum dpt_status dpt_rank_link_recv(int fd, int timeout_ms, void *buf,
                                                size_t *ret_bytes, struct dpt_err *err);

/* ---- the rank's report ---- */

/* The newest report of one rank: the message RankToAgent of dpt.proto with memory for everything
 * that it points to. The rank writes the fields of `message` and `state` in place and encodes
 * `message`. The agent keeps the newest report of each process. Points into itself: copy it only by
 * dpt_report_copy. */
struct dpt_report {
    Dpt__RankToAgent message;   /* .state: &state; .summary: NULL or &summary; .steps: step_list */
    Dpt__RankState state;       /* its strings, shards and outcome are the arrays below */
    Dpt__RunSummary summary;    /* .weights_hash: that of `state` */
    Dpt__RankActivity activity; /* state.activity: NULL or this */
    char shm_addr[DPT_PROTO_ADDR_BYTES], tcp_addr[DPT_PROTO_ADDR_BYTES];
    char text[DPT_PROTO_TEXT_BYTES], weights_hash[DPT_PROTO_DIGEST_BYTES];
    char stacks[DPT_PROTO_STACKS_BYTES], unsaved_why[DPT_PROTO_TEXT_BYTES];
    Dpt__Shard shards[DPT_PROTO_SHARDS_MAX], *shard_list[DPT_PROTO_SHARDS_MAX];
    Dpt__StepRecord steps[DPT_PROTO_STEPS_MAX], *step_list[DPT_PROTO_STEPS_MAX];
    uint8_t outcome[DPT_PROTO_OUTCOME_BYTES_MAX];
};

/* The report of a process that has just started: phase RANK_STARTING, no state, no steps. Records
 * of steps and shards are not initialised. */
void dpt_report_init(struct dpt_report *report);

/* Replaces the initialised `report` by a message within the limits of message.h, which was decoded
 * or belongs to another report. Keeps the outcome only in phase RANK_QUIESCED. If the message has
 * no steps, the steps of `report` stay. */
void dpt_report_copy(struct dpt_report *report, const Dpt__RankToAgent *from);

#endif
