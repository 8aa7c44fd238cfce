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

#include "worker/train/state/rank_options.h"

/* Runs a rank to its end; returns the exit code that was also told to the agent: 0 after EXIT, 2
 * for what the configuration or its files cause, 4 for other errors. The reason of an error is
 * logged and told to the agent. Blocks; uses no process-wide state but the log. */
int dpt_rank_run(const struct dpt_rank_options *options);

/* The rank process: fd DPT_RANK_FD_LINK, dies with its agent. */
int dpt_rank_main(const struct dpt_rank_start *start, const struct dpt_config *config);

#endif
