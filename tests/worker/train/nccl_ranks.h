/* The NCCL double of nccl_fabric.h for the ranks of a director. */
#ifndef DPT_TESTS_WORKER_TRAIN_NCCL_RANKS_H
#define DPT_TESTS_WORKER_TRAIN_NCCL_RANKS_H

#include "tests/worker/comm/nccl_fabric.h"
#include "tests/worker/train/director.h"

extern struct fabric nccl_fabric;
extern struct fabric_rank nccl_views[DIRECTOR_RANKS_MAX]; /* by the ranks' handles */

/* Ranks that are started from now on use the double; `devices`: see struct fabric_devices. */
void nccl_ranks_begin(struct fabric_devices devices);
/* Later ranks do not use it. Checks that no communicator is left. */
void nccl_ranks_end(void);

#endif
