/* Rank processes: started by exec (rank_protocol.h lists what they inherit), each in a process
 * group of its own, killed as a group, watched through a pidfd.
 *
 * No process that a rank started outlives the rank. The rank's group is killed before the rank is
 * reaped; until then no other process gets its id. Processes that left the group become children of
 * the agent, which is the child subreaper and kills them. If the agent is killed, the kernel kills
 * the ranks (PR_SET_PDEATHSIG). One thread must call all functions: the kernel sends that signal
 * when the thread that started the rank ends. */
#ifndef DPT_WORKER_AGENT_RANK_PROCESS_H
#define DPT_WORKER_AGENT_RANK_PROCESS_H

#include "base/err.h"
#include "worker/agent/rank_protocol.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum {
    /* Sweeps for orphans. A sweep finds the children of the processes that the sweep before has
     * killed. */
    DPT_ORPHAN_ROUNDS_MAX = 64,
    DPT_ORPHANS_MAX = 1024 /* killed in one sweep */
};

/* One rank process. Descriptors are -1 when closed. */
struct dpt_rank_process {
    pid_t pid;     /* 0: none */
    int pid_fd;    /* readable when the process has ended */
    int link_fd;   /* socket pair, agent's end */
    int output_fd; /* stdout and stderr of the process, non-blocking */
    int step_fd;   /* memfd with the newest completed step */
};

struct dpt_rank_process_options {
    const char *program; /* exec'd; NULL: /proc/self/exe */
    const struct dpt_rank_start *start;
    const char *config_text;
    size_t config_bytes;
};

/* Starts a rank. Returns when its exec has succeeded, or DPT_EIO with the reason. DPT_EOVERFLOW:
 * this process can open no more files. */
DPT_MUST_USE enum dpt_status dpt_rank_process_start(const struct dpt_rank_process_options *options,
                                                    struct dpt_rank_process *ret,
                                                    struct dpt_err *err);

/* SIGKILL to its process group. dpt_rank_process_reap returns its exit code. */
void dpt_rank_process_kill(const struct dpt_rank_process *process);

/* True when the process has ended and was not reaped. Its last frames can still be received. */
DPT_MUST_USE bool dpt_rank_process_ended(const struct dpt_rank_process *process);

/* Reaps the process if it has ended; never blocks. True: the rest of its group is killed, pid_fd
 * and link_fd are closed, and *ret_exit_code is its exit status, or -signal. output_fd stays open
 * for the last output. */
DPT_MUST_USE bool dpt_rank_process_reap(struct dpt_rank_process *process, int *ret_exit_code);

/* The step in the process's memfd; 0: none. Also valid after the process was reaped, until
 * dpt_rank_process_forget_step. */
int64_t dpt_rank_process_step(const struct dpt_rank_process *process);
void dpt_rank_process_forget_step(struct dpt_rank_process *process);

/* Closes the open descriptors. Does not kill. */
void dpt_rank_process_fini(struct dpt_rank_process *process);

/* Makes this process the parent of its orphaned descendants. */
DPT_MUST_USE enum dpt_status dpt_orphans_adopt(struct dpt_err *err);

/* Kills and reaps every child of this process except the `n` in `spare`. Returns how many it found.
 * Blocks until they have ended. */
int dpt_orphans_kill(const pid_t *spare, size_t n);

#endif
