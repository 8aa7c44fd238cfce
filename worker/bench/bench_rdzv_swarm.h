/* A client process of dpt-bench rdzv: one thread with many nodes. */
#ifndef DPT_WORKER_BENCH_BENCH_RDZV_SWARM_H
#define DPT_WORKER_BENCH_BENCH_RDZV_SWARM_H

#include "worker/bench/bench_rdzv.h"

/* Carries out the commands that come through `command_fd` (struct rdzv_command) until RDZV_END or
 * its end of file. Returns the exit code of the process: 0, or 1 with shared->clients[client].error
 * set. */
int rdzv_swarm_run(struct rdzv_shared *shared, int client, int command_fd);

#endif
