/* Rank processes: started by exec, each in a process group of its own, killed as a group, watched
 * through a pidfd. rank_protocol.h says what a rank inherits.
 *
 * Nothing that a rank started outlives it: its group is killed before it is reaped (while its
 * process id cannot be used again), and what left the group comes to the agent, which is the child
 * subreaper, and is killed there. If the agent itself is killed, the kernel kills the ranks
 * (PR_SET_PDEATHSIG). All functions are called from the thread that spawned: the death signal is
 * tied to it. */
#ifndef DPT_WORKER_AGENT_SPAWN_H
#define DPT_WORKER_AGENT_SPAWN_H

#include "base/err.h"
#include "worker/agent/rank_protocol.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum {
    DPT_ORPHAN_ROUNDS_MAX =
        64, /* sweeps for what ranks left behind; each finds the children of the last */
    DPT_ORPHANS_MAX = 1024 /* killed in one sweep */
};

/* One rank process as its agent holds it. Descriptors are -1 when closed. */
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

/* Starts a rank and returns when its exec has succeeded (or DPT_EIO with the reason). */
DPT_MUST_USE enum dpt_status dpt_rank_spawn(const struct dpt_spawn_options *options,
                                            struct dpt_rank_process *ret, struct dpt_err *err);

/* SIGKILL to its process group. It has ended when dpt_rank_reap says so. */
void dpt_rank_kill(const struct dpt_rank_process *process);

/* True when it has ended and waits to be reaped. What it sent before is still to be received. */
DPT_MUST_USE bool dpt_rank_ended(const struct dpt_rank_process *process);

/* Never blocks. True when the process has ended: the rest of its group is killed, it is reaped,
 * pid_fd and link_fd are closed, *ret_exit_code is its status, or -signal. output_fd stays open for
 * what it still wrote. */
DPT_MUST_USE bool dpt_rank_reap(struct dpt_rank_process *process, int *ret_exit_code);

/* The newest step that it has kept; 0: none. Also of one that has been reaped, until it is
 * forgotten. */
int64_t dpt_rank_step(const struct dpt_rank_process *process);
void dpt_rank_process_forget_step(struct dpt_rank_process *process);

/* Closes what is open. Does not kill. */
void dpt_rank_process_fini(struct dpt_rank_process *process);

/* Makes this process the one that inherits orphans of its descendants. */
DPT_MUST_USE enum dpt_status dpt_orphans_adopt(struct dpt_err *err);

/* Kills and reaps every child of this process except the `n` in `spare`. Returns how many it found.
 * Blocks for the moment a killed process needs to die. */
int dpt_orphans_kill(const pid_t *spare, size_t n);

#endif
