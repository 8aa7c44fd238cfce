/* Rank processes: started by exec (rank_protocol.h has what they inherit), each in its own process
 * group, killed as a group, watched through a pidfd.
 *
 * No process that a rank started outlives it: its group is killed before it is reaped (until then
 * no other process gets its id), and processes that left the group become children of the agent,
 * the child subreaper, which kills them. If the agent is killed, the kernel kills the ranks
 * (PR_SET_PDEATHSIG). One thread calls all functions: the death signal is that of the thread which
 * has started the rank. */
#ifndef DPT_WORKER_AGENT_SPAWN_H
#define DPT_WORKER_AGENT_SPAWN_H

#include "base/err.h"
#include "worker/agent/rank_protocol.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum {
    DPT_ORPHAN_ROUNDS_MAX = 64, /* sweeps for orphans; each finds the children of the last */
    DPT_ORPHANS_MAX = 1024      /* killed in one sweep */
};

/* One rank process. Descriptors are -1 when closed. */
struct dpt_rank_process {
    pid_t pid;     /* 0: none */
    int pid_fd;    /* readable: it has ended */
    int link_fd;   /* socket pair, agent's end */
    int output_fd; /* its stdout and stderr, non-blocking */
    int step_fd;   /* its newest step */
};

struct dpt_spawn_options {
    const char *program; /* exec'd; NULL: /proc/self/exe */
    const struct dpt_rank_start *start;
    const char *config_text;
    size_t config_bytes;
};

/* Starts a rank and returns when its exec has succeeded (or DPT_EIO with the reason).
 * DPT_EOVERFLOW: this process can open no more files. */
DPT_MUST_USE enum dpt_status dpt_rank_spawn(const struct dpt_spawn_options *options,
                                            struct dpt_rank_process *ret, struct dpt_err *err);

/* SIGKILL to its process group. dpt_rank_reap returns its exit code. */
void dpt_rank_kill(const struct dpt_rank_process *process);

/* True when it has ended and was not reaped. Its last frames can still be received. */
DPT_MUST_USE bool dpt_rank_ended(const struct dpt_rank_process *process);

/* Never blocks. True when the process has ended: the rest of its group is killed, it is reaped,
 * pid_fd and link_fd are closed, *ret_exit_code is its status, or -signal. output_fd stays open for
 * its last output. */
DPT_MUST_USE bool dpt_rank_reap(struct dpt_rank_process *process, int *ret_exit_code);

/* The step in its memfd; 0: none. Also after it was reaped, until _forget_step. */
int64_t dpt_rank_step(const struct dpt_rank_process *process);
void dpt_rank_process_forget_step(struct dpt_rank_process *process);

/* Closes the open descriptors. Does not kill. */
void dpt_rank_process_fini(struct dpt_rank_process *process);

/* Orphaned descendants become children of this process. */
DPT_MUST_USE enum dpt_status dpt_orphans_adopt(struct dpt_err *err);

/* Kills and reaps every child of this process except the `n` in `spare`. Returns how many it found.
 * Blocks until they have ended. */
int dpt_orphans_kill(const pid_t *spare, size_t n);

#endif
