/* A rank: the process (or, in tests, the thread) that trains. It follows its agent's commands
 * (dpt.proto: AgentToRank):
 *
 *   from          on                                              to
 *   STARTING      model, data and device are open                 STANDBY
 *   STANDBY       PREPARE(g)                                      QUIESCED(g)
 *   QUIESCED(g)   PLAN(g)                                         READY(g)
 *   READY(g)      GO(g)                                           RUNNING(g)
 *   RUNNING(g)    the last step is done                           FINISHED
 *   RUNNING(g)    PREPARE(g+1), at once, or (soft) at the step    QUIESCED(g+1)
 *                 where all ranks have agreed on it
 *   READY, RUNNING  the communicator failed: wait for PREPARE     QUIESCED(g+1)
 *   any           EXIT                                            the process ends
 *
 * Its state (weights, moments, step) lives as long as the process, through all generations. */
#ifndef DPT_WORKER_TRAIN_RANK_H
#define DPT_WORKER_TRAIN_RANK_H

#include "worker/train/state/rooms.h"

/* Runs a rank to its end. Returns the exit code, which the agent's last report also has: 0 after
 * EXIT, 2 for an error of the configuration or of its files, 75 for a folder that another run has
 * taken, 4 for other errors. The reason of an error is logged and reported to the agent. Blocks.
 * The log is the only process-wide state that the rank uses. */
int dpt_rank_run(const struct dpt_rank_options *options);

/* Runs the rank process, which ends when its agent ends. The link is file descriptor
 * DPT_RANK_FD_LINK. */
int dpt_rank_main(const struct dpt_rank_start *start, const struct dpt_config *config);

#endif
