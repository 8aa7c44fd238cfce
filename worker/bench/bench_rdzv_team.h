/* The processes of dpt-bench rdzv: one dpt-rdzv and the client processes. */
#ifndef DPT_WORKER_BENCH_BENCH_RDZV_TEAM_H
#define DPT_WORKER_BENCH_BENCH_RDZV_TEAM_H

#include "worker/bench/bench.h"
#include "worker/bench/bench_rdzv.h"

#include <sys/types.h>

struct rdzv_team {
    char dir[DPT_BENCH_DIR_BYTES]; /* the server's files */
    pid_t server;                  /* 0: there is none */
    pid_t clients[RDZV_CLIENTS_MAX];
    int commands[RDZV_CLIENTS_MAX]; /* pipes to the client processes */
    int n_clients;                  /* that were started */
    struct rdzv_shared *shared;     /* never freed */
};

/* Allows this process as many descriptors as the system permits. DPT_EUNSUPPORTED: the server or a
 * client process would need more than that. */
DPT_MUST_USE enum dpt_status rdzv_team_check_limit(const struct rdzv_setup *setup,
                                                   struct dpt_err *err);

/* Starts all processes; fills setup->endpoint of the copy in team->shared. The caller ends the
 * team, also after an error. */
DPT_MUST_USE enum dpt_status rdzv_team_start(struct rdzv_team *team, const struct rdzv_setup *setup,
                                             struct dpt_err *err);
/* Kills and reaps every process and removes the server's files. After an error (`failed`) first
 * prints the end of the server's output. */
DPT_MUST_USE enum dpt_status rdzv_team_end(struct rdzv_team *team, bool failed,
                                           struct dpt_err *err);

DPT_MUST_USE enum dpt_status rdzv_team_command(struct rdzv_team *team, struct rdzv_command command,
                                               struct dpt_err *err);

/* Waits for a moment. DPT_EPEER: the server or a client process has ended, and why; DPT_EABORTED: a
 * signal ends the bench. `during` names what is measured. */
DPT_MUST_USE enum dpt_status rdzv_team_pause(struct rdzv_team *team, const char *during,
                                             struct dpt_err *err);

/* Sum over the client processes. */
struct rdzv_counts rdzv_team_counts(const struct rdzv_team *team);

/* CPU time of the server since its start, of all of its threads. */
DPT_MUST_USE enum dpt_status rdzv_team_server_cpu_ns(const struct rdzv_team *team, int64_t *ret,
                                                     struct dpt_err *err);
/* The server's resident memory: its peak (VmHWM), and now (VmRSS). */
DPT_MUST_USE enum dpt_status rdzv_team_server_memory(const struct rdzv_team *team,
                                                     int64_t *ret_peak_bytes,
                                                     int64_t *ret_now_bytes, struct dpt_err *err);

#endif
