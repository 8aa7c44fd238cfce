/* What an agent and the rank process it starts agree on: the command line of the rank, the
 * descriptors it inherits, and frames on the socket pair between them. Both sides include this
 * file.
 *
 * A rank is `/proc/self/exe --rank key=value …`, exec'd, never a bare fork. It inherits
 *   fd 0    /dev/null
 *   fd 1,2  a pipe to the agent, which writes the rank's log file
 *   fd 3    SOCK_SEQPACKET socket, one protobuf message a frame (AgentToRank in, RankToAgent out);
 *           its end of file means that the agent is gone: the rank ends at once
 *   fd 4    sealed memfd with the canonical text of this node's config
 *   fd 5    memfd of DPT_RANK_STEP_BYTES, in which the rank keeps its newest step: the agent reads
 * it when the rank is dead or says nothing, so that no step is lost between two messages and
 * nothing else. */
#ifndef DPT_WORKER_AGENT_RANK_PROTOCOL_H
#define DPT_WORKER_AGENT_RANK_PROTOCOL_H

#include "base/claim.h"
#include "base/config.h"
#include "base/err.h"
#include "base/hash.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum {
    DPT_RANK_FD_LINK = 3,
    DPT_RANK_FD_CONFIG = 4,
    DPT_RANK_FD_STEP = 5,
    DPT_RANK_STEP_BYTES = 8, /* int64_t of this machine; zero at first */
    DPT_RANK_FRAME_BYTES_MAX = 256 * 1024,
    DPT_RANK_ALLOW_MAX = 16, /* --allow-change KEY given to the worker */
    DPT_RANK_ARGS_MAX = 24 + DPT_RANK_ALLOW_MAX,
    DPT_RANK_ARG_BYTES = DPT_CONFIG_PATH_BYTES + 32
};

/* What a rank is told when it starts, besides its config. Value type; zero-initialise. */
struct dpt_rank_start {
    char node[DPT_CONFIG_NAME_BYTES]; /* node id */
    uint64_t incarnation;             /* of the node */
    int local_rank;                   /* 0 … ranks - 1 */
    int ranks;                        /* rank processes of this node */
    int spawn;                        /* how many processes this local rank has had, from 1 */
    int threads;                      /* compute threads; 0: its share of the cores of its host */
    pid_t agent;                      /* parent: for the getppid check after PR_SET_PDEATHSIG */
    char address[64];                 /* numeric IP address on which the data plane listens */
    int log_level;                    /* enum dpt_log_level */
    /* Hash and stamp (worker/data/data.h) of data.train and data.val as the agent found them; "":
     * the run does not use them. */
    char data[DPT_HASH_HEX_BYTES], data_stamp[DPT_HASH_HEX_BYTES];
    char val[DPT_HASH_HEX_BYTES], val_stamp[DPT_HASH_HEX_BYTES];
    int n_allow;
    char allow[DPT_RANK_ALLOW_MAX][DPT_CONFIG_NAME_BYTES]; /* keys whose change resume accepts */
    bool allow_fresh; /* begin from step 0 though no checkpoint of those in checkpoint.dir is whole
                       */
    /* Of checkpoint.dir; number 0: none is held, and nothing is asked before a commit. */
    int64_t claim_number;
    char claim_token[DPT_CLAIM_TOKEN_BYTES];
};

/* argv of the rank: pointers into `text`, NULL-terminated. Self-contained: do not copy it. */
struct dpt_rank_args {
    char *argv[DPT_RANK_ARGS_MAX + 1];
    char text[DPT_RANK_ARGS_MAX][DPT_RANK_ARG_BYTES];
};

/* Makes the command line, argv[0] = program and argv[1] = "--rank" included. */
void dpt_rank_start_encode(const struct dpt_rank_start *start, const char *program,
                           struct dpt_rank_args *ret);

/* Reads it back: `argv` is the process's own. DPT_EINVAL names the argument that is wrong. */
DPT_MUST_USE enum dpt_status dpt_rank_start_decode(int argc, char *const *argv,
                                                   struct dpt_rank_start *ret, struct dpt_err *err);

/* Rank, first thing in main: asks for SIGKILL when the agent dies and checks that it has not died
 * already (getppid), ignores what ends the agent and SIGPIPE (leaving is the agent's to say), marks
 * the inherited descriptors close-on-exec. DPT_EPEER: the agent is gone. */
DPT_MUST_USE enum dpt_status dpt_rank_start_enter(const struct dpt_rank_start *start,
                                                  struct dpt_err *err);

/* Rank: loads the config from the inherited memfd and closes it. */
DPT_MUST_USE enum dpt_status dpt_rank_start_config(int config_fd, struct dpt_config *ret,
                                                   struct dpt_err *err);

/* Makes the pair, close-on-exec, with a buffer for at least one frame of the largest size:
 * ret_fds[0] for the agent, ret_fds[1] for the rank. */
DPT_MUST_USE enum dpt_status dpt_rank_link_pair(int ret_fds[2], struct dpt_err *err);

/* Sends one frame, never blocking. DPT_INPROGRESS: the peer's queue is full and the frame is
 * dropped (every message is whole state, the next one tells more). DPT_EPEER: the peer is gone.
 * DPT_EOVERFLOW: longer than DPT_RANK_FRAME_BYTES_MAX. Any thread; frames never mix. */
DPT_MUST_USE enum dpt_status dpt_rank_link_send(int fd, const void *frame, size_t bytes,
                                                struct dpt_err *err);

/* Waits at most timeout_ms (0: not at all; -1: for ever) for a frame and copies it to `buf` of
 * DPT_RANK_FRAME_BYTES_MAX bytes. DPT_INPROGRESS: none came (a signal counts as none).
 * DPT_EPEER: the peer is gone. DPT_EPROTO: too long a frame, which is dropped. */
DPT_MUST_USE enum dpt_status dpt_rank_link_recv(int fd, int timeout_ms, void *buf,
                                                size_t *ret_bytes, struct dpt_err *err);

#endif
