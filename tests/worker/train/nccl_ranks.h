/* NCCL for the ranks of a director: a double among them (nccl_fabric.h). */
#ifndef DPT_TESTS_WORKER_TRAIN_NCCL_RANKS_H
#define DPT_TESTS_WORKER_TRAIN_NCCL_RANKS_H

#include "tests/worker/comm/nccl_fabric.h"
#include "tests/worker/train/director.h"

extern struct fabric nccl_fabric;
extern struct fabric_rank nccl_views[DIRECTOR_RANKS_MAX]; /* by the ranks' handles */

/* Ranks that are started from now on have it; `devices`: as in struct fabric. */
void nccl_ranks_begin(struct fabric_devices devices);
/* None has it; checks that nothing is left of it. */
void nccl_ranks_end(void);

#endif
